// SPDX-License-Identifier: Apache-2.0

package profiling

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestProfilesAreServed(t *testing.T) {
	for path, want := range map[string]struct {
		status int
		text   string
	}{
		"":                         {http.StatusOK, "goroutine"},
		"goroutine?debug=1":        {http.StatusOK, "goroutine profile: total"},
		"heap?debug=1":             {http.StatusOK, "heap profile:"},
		"cmdline":                  {http.StatusOK, ".test"},
		"no-such":                  {http.StatusNotFound, "Unknown profile"},
		"profile?seconds=61":       {http.StatusBadRequest, "expected a number from 0 to 60"},
		"trace?seconds=NaN":        {http.StatusBadRequest, "seconds"},
		"goroutine?seconds=-1":     {http.StatusBadRequest, "seconds"},
		"heap?seconds=forever":     {http.StatusBadRequest, "seconds"},
		"profile?seconds=99999999": {http.StatusBadRequest, "seconds"},
	} {
		w := httptest.NewRecorder()
		Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, Prefix+path, nil))
		if w.Code != want.status || !strings.Contains(w.Body.String(), want.text) {
			t.Errorf("%s: status %d, expected %d with %q:\n%.200s", path, w.Code, want.status, want.text, w.Body)
		}
	}
}
