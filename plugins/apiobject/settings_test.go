// SPDX-License-Identifier: Apache-2.0

package apiobject_test

import (
	"errors"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/wasmplane/wasmplane/plugins/apiobject"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/rights"
)

// TestWrongSettingsAreNotWritten: where the module's schema is known, the writer learns of it at once, with the field. What a write
// does not change is not looked at.
func TestWrongSettingsAreNotWritten(t *testing.T) {
	guard := apiobject.Guard{Rights: rights.New(may{}), Settings: func(e *manifest.Entry) error {
		settings, err := e.SettingsJSON()
		if err == nil && !strings.Contains(string(settings), "host") {
			err = errors.New("settings.repos[1].host is required")
		}
		return err
	}}
	const pinned = "source: oci://a.example/b:1\ndigest: " + digest + "\n"
	const right, wrong = pinned + "settings: {host: a}", pinned + "settings: {port: 1}"
	for _, c := range []struct{ name, old, spec, field string }{
		{"right", "", right, ""},
		{"wrong", "", wrong, "spec.settings.repos[1].host"},
		{"none", "", pinned, "spec.settings.repos[1].host"},
		{"of the candidate", "", right + "\ncandidate: {settings: {port: 2}}", "spec.candidate.settings.repos[1].host"},
		{"made wrong", right, wrong, "spec.settings.repos[1].host"},
		{"as wrong as before", wrong, wrong + "\nmode: Warn", ""},
		{"of another module", strings.Replace(wrong, "93a4", "0000", 1), wrong, "spec.settings.repos[1].host"},
	} {
		o := plugin(t, "p", c.spec)
		old := plugin(t, "p", c.old)
		if c.old == "" {
			old = nil
		}
		_, err := write(t, guard, "ann", o, old)
		if c.field == "" {
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), c.field+": is required") {
			t.Errorf("%s: got %v", c.name, err)
			continue
		}
		if cause := err.(apierrors.APIStatus).Status().Details.Causes[0]; cause.Field != c.field || cause.Message != "is required" { // it is one
			t.Errorf("%s: cause %+v", c.name, cause)
		}
	}
}
