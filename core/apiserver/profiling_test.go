// SPDX-License-Identifier: Apache-2.0

package apiserver_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/rest"

	"github.com/wasmplane/wasmplane/core/apiserver/apiservertest"
)

// byPath lets "profiler" get what is below /debug/pprof/, and nobody anything else.
type byPath struct{ apiservertest.Everybody }

func (byPath) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if !a.IsResourceRequest() && a.GetUser().GetName() == "profiler" && a.GetVerb() == "get" && strings.HasPrefix(a.GetPath(),
		"/debug/pprof/") {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

func TestProfilesAreForThoseWhoMay(t *testing.T) {
	s := apiservertest.Start(t, apiservertest.Options{Authorizer: byPath{}})
	for _, c := range []struct {
		who, path string
		status    int
		text      string
	}{
		{"jane", "/debug/pprof/heap?debug=1", http.StatusForbidden, `cannot get path \"/debug/pprof/heap\"`},
		{"profiler", "/debug/pprof/heap?debug=1", http.StatusOK, "heap profile:"},
		{"profiler", "/debug/pprof/", http.StatusOK, "goroutine"},
		{"profiler", "/debug/pprof/profile?seconds=600", http.StatusBadRequest, "expected a number from 0 to 60"},
		{"profiler", "/metrics", http.StatusForbidden, "cannot get path"},
	} {
		client, err := rest.HTTPClientFor(s.Config(c.who))
		if err != nil {
			t.Fatal(err)
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+c.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode != c.status || !strings.Contains(string(body), c.text) {
			t.Errorf("%s as %s: %d, %v; expected %d with %s:\n%.300s", c.path, c.who, resp.StatusCode, err, c.status, c.text, body)
		}
	}
}
