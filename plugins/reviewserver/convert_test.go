// SPDX-License-Identifier: Apache-2.0

package reviewserver_test

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/plugins/loader"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/plugintest"
	"github.com/wasmplane/wasmplane/plugins/reviewserver"
)

// converting serves the example that converts CronTabs.
func converting(t *testing.T) *httptest.Server {
	t.Helper()
	plugintest.Example(t, "crontab")
	root := plugintest.Root(t)
	var doc []yaml.Node
	if err := yaml.Unmarshal([]byte("[{name: crontab, source: \"file:crontab.wasm\", limits: {deadline: 30s}}]"), &doc); err != nil {
		t.Fatal(err)
	}
	entries, err := manifest.ParseAll(doc)
	if err != nil {
		t.Fatal(err)
	}
	l, err := loader.New(t.Context(), loader.Config{
		InProcess: true, Dir: filepath.Join(root, "build", "wasm"),
		CacheDir: filepath.Join(root, "build", "plugin-cache"), Entries: entries,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
	if err := l.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(reviewserver.Handler(reviewserver.Config{
		Admission: l.AdmissionPlugins, Converters: l.CustomResources, Authorizers: l.Authorizers,
		MayAuthorize: func(*http.Request) bool { return false }, Logger: slog.New(slog.DiscardHandler),
	}))
	t.Cleanup(s.Close)
	return s
}

func conversion(to string, objects ...string) string {
	return `{"apiVersion":"apiextensions.k8s.io/v1","kind":"ConversionReview","request":{"uid":"u1","desiredAPIVersion":"` + to + `","objects":[` + strings.Join(objects, ",") + `]}}`
}

func TestConversionReviews(t *testing.T) {
	s := converting(t)
	const v2 = "example.wasmplane.dev/v2"
	nightly := `{"apiVersion":"example.wasmplane.dev/v1","kind":"CronTab","metadata":{"name":"nightly"},"spec":{"cron":"30 3 * * 1-5","size":9007199254740993}}`
	broken := `{"apiVersion":"example.wasmplane.dev/v1","kind":"CronTab","metadata":{"name":"broken"},"spec":{"cron":"now and then"}}`
	other := `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web"}}`
	for _, c := range []struct {
		name, body, want string // want: of the failure's message; "" where all is well
	}{
		{"one", conversion(v2, nightly), ""},
		{"none", conversion(v2), ""},
		{"one that cannot be, and none is", conversion(v2, nightly, broken), `"now and then" has 3 fields`},
		{"of another group", conversion(v2, other), "objects[0] is of apiVersion"},
		{"no object", conversion(v2, "7"), "objects[0] is no object"},
		{"null", conversion(v2, "null"), "objects[0] is no object"},
		{"into nothing", conversion("", nightly), "desiredAPIVersion"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var a apiextensionsv1.ConversionReview
			if code := post(t, s.URL+"/convert/crontab", c.body, &a); code != http.StatusOK {
				t.Fatalf("status %d", code)
			}
			if a.Kind != "ConversionReview" || a.APIVersion != "apiextensions.k8s.io/v1" || a.Response == nil || a.Response.UID != "u1" {
				t.Fatalf("%+v", a)
			}
			r := a.Response
			if c.want != "" {
				if r.Result.Status != metav1.StatusFailure || !strings.Contains(r.Result.Message, c.want) || len(r.ConvertedObjects) > 0 {
					t.Errorf("%+v", r)
				}
				return
			}
			if r.Result.Status != metav1.StatusSuccess || len(r.ConvertedObjects) != strings.Count(c.body, "CronTab") {
				t.Fatalf("%+v", r)
			}
			for _, o := range r.ConvertedObjects {
				var got struct {
					APIVersion string
					Spec       struct {
						Schedule map[string]string
						Size     json.Number
					}
				}
				if err := json.Unmarshal(o.Raw, &got); err != nil {
					t.Fatal(err)
				}
				if got.APIVersion != v2 || got.Spec.Schedule["hour"] != "3" || got.Spec.Size != "9007199254740993" {
					t.Errorf("%s", o.Raw)
				}
			}
		})
	}
	for path, body := range map[string]string{
		"/convert/nobody": conversion(v2, nightly), "/convert/crontab": `{"kind":"ConversionReview"}`, "/convert/crontab?": "{",
	} {
		if code := post(t, s.URL+path, body, nil); code == http.StatusOK {
			t.Errorf("%s answered %d to %s", path, code, body)
		}
	}
}
