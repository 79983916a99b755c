// SPDX-License-Identifier: Apache-2.0

package apiserver_test

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/wasmplane/wasmplane/core/apiserver/apiservertest"
)

// Fields that are unknown or there twice are warned of or refused in upstream's words,
// whatever the body is written in. YAML tells all of its mistakes in one error of several
// lines, and a header has none.
func TestFieldsThatAreUnknownOrThereTwice(t *testing.T) {
	s := apiservertest.Start(t, apiservertest.Options{})
	client, err := rest.HTTPClientFor(s.Config("jane"))
	if err != nil {
		t.Fatal(err)
	}
	const (
		maps  = "/api/v1/namespaces/default/configmaps"
		json  = "application/json"
		yaml  = "application/yaml"
		apply = "application/apply-patch+yaml"
		merge = "application/merge-patch+json"
	)
	for name, c := range map[string]struct {
		method, path, media, body string
		status                    int
		warnings                  []string
		refusal                   string // with fieldValidation=Strict
	}{
		"JSON": {
			method: "POST", path: maps, media: json, status: 201, body: `{"metadata":{"name":"a","foo":1},"data":{"a":"b","a":"c"},"data":{}}`,
			warnings: []string{`duplicate field "data.a"`, `duplicate field "data"`, `unknown field "metadata.foo"`},
			refusal:  `strict decoding error: `,
		},
		"YAML": {
			method: "POST", path: maps, media: yaml, status: 201, body: "metadata: {name: b, foo: 1}\ndata:\n  a: b\n  a: c\ndata: {}\n",
			warnings: []string{`line 4: key "a" already set in map`, `line 5: key "data" already set in map`, `unknown field "metadata.foo"`},
			refusal:  `strict decoding error: `,
		},
		"apply": {
			method: "PATCH", path: maps + "/c?fieldManager=m", media: apply, status: 201,
			body:     "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata:\n  a: b\n  a: c\n",
			warnings: []string{`line 6: key "a" already set in map`}, refusal: "error strict decoding patch: ",
		},
		"apply that is refused": {
			method: "PATCH", path: maps + "/d?fieldManager=m", media: apply, status: 400,
			body: "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: d}\nunknown: x\ndata:\n  a: b\n  a: c\n", refusal: "field not declared in schema",
		},
		"merge patch": {
			method: "PATCH", path: maps + "/kept", media: merge, status: 200, body: `{"data":{"a":"b","a":"c"},"bar":1}`,
			warnings: []string{`duplicate field "data.a"`, `unknown field "bar"`}, refusal: `strict decoding error: duplicate field`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			send := func(method, path, media, body string) (*http.Response, string) {
				t.Helper()
				req, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, strings.NewReader(body))
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("Content-Type", media)
				resp, err := client.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				answer, err := io.ReadAll(resp.Body)
				if err != nil {
					t.Fatal(err)
				}
				return resp, string(answer)
			}
			if c.media == merge {
				send(http.MethodPost, maps, json, `{"metadata":{"name":"kept"}}`)
			}
			with := func(q string) string {
				if strings.Contains(c.path, "?") {
					return c.path + "&" + q
				}
				return c.path + "?" + q
			}
			resp, body := send(c.method, with("dryRun=All"), c.media, c.body)
			var want []string
			for _, w := range c.warnings {
				want = append(want, `299 - "`+strings.ReplaceAll(w, `"`, `\"`)+`"`)
			}
			got := resp.Header.Values("Warning")
			slices.Sort(got)
			slices.Sort(want)
			if resp.StatusCode != c.status || !slices.Equal(got, want) {
				t.Errorf("%d with warnings %q, expected %d with %q:\n%s", resp.StatusCode, got, c.status, want, body)
			}
			resp, body = send(c.method, with("dryRun=All&fieldValidation=Strict"), c.media, c.body)
			if resp.StatusCode < 400 || !strings.Contains(body, c.refusal) || len(resp.Header.Values("Warning")) > 0 {
				t.Errorf("strictly: %d with warnings %q, expected a refusal with %q:\n%s",
					resp.StatusCode, resp.Header.Values("Warning"), c.refusal, body)
			}
		})
	}
}
