// SPDX-License-Identifier: Apache-2.0

package regotest_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/wasmplane/wasmplane/plugins/author/regotest"
	"github.com/wasmplane/wasmplane/plugins/author/suite"
)

var files = map[string]string{
	"old/policy.rego":       "package a\nviolation[{\"msg\": \"no\"}] { input.x > data.most }\n",
	"old/policy_test.rego":  "package a\ntest_over { count(violation) == 1 with input as {\"x\": 3} }\ntest_wrong { print(\"so it is\"); count(violation) == 5 with input as {\"x\": 3} }\ntodo_test_later { false }\ntest_net { http.send({\"method\": \"get\", \"url\": \"SERVER\"}) }\n",
	"old/data.json":         `{"most": 2}`,
	"old/other.yaml":        "kind: Pod\n---\nkind: Pod\n",
	"new/policy.rego":       "package b\nallow if input.user == \"ann\"\n",
	"new/deep/x_test.rego":  "package b_test\nimport data.b\ntest_mock if b.allow with input as {\"user\": \"ann\"}\ntest_time if { time.now_ns() == 7 with time.now_ns as 7 }\n",
	"broken/x_test.rego":    "package c\ntest_a {\n",
	"none/policy.rego":      "package d\nallow = true\n",
	"deeper/in/policy.rego": "package e\n",
	"deeper/in/a_test.rego": "package e\ntest_a if true\n",
}

func write(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a test reached the network") }))
	t.Cleanup(server.Close)
	for name, text := range files {
		text = strings.ReplaceAll(text, "SERVER", server.URL)
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// outcomes runs what there is at a path.
func outcomes(t *testing.T, path string) map[string]string {
	t.Helper()
	units, err := regotest.Find(path)
	if err != nil {
		t.Fatal(err)
	}
	out, failed := map[string]string{}, 0
	for _, u := range units {
		n, err := u.Run(t.Context(), func(r suite.Result) {
			out[r.Test+"/"+r.Case] = r.Problem
			if r.Skipped {
				out[r.Test+"/"+r.Case] = "skipped"
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		failed += n
	}
	for _, problem := range out {
		if problem != "" && problem != "skipped" {
			failed--
		}
	}
	if failed != 0 {
		t.Errorf("%d more tests failed than have a problem", failed)
	}
	return out
}

func TestTestsInRegoRun(t *testing.T) {
	dir := write(t)
	want := map[string]string{
		"data.a/test_over": "", "data.a/test_wrong": "so it is", "data.a/todo_test_later": "skipped", "data.a/test_net": "is not true",
		"data.b_test/test_mock": "", "data.b_test/test_time": "", "/": "broken/x_test.rego", "data.e/test_a": "",
	}
	got := outcomes(t, dir)
	for name, problem := range want {
		found, ran := got[name]
		if !ran || problem == "" && found != "" || !strings.Contains(found, problem) {
			t.Errorf("%s: ran %t, %q; want %q", name, ran, found, problem)
		}
	}
	if len(got) != len(want) {
		t.Errorf("ran %q", slices.Sorted(maps.Keys(got)))
	}
	if got := outcomes(t, filepath.Join(dir, "new/deep/x_test.rego")); len(got) != 2 || got["data.b_test/test_mock"] == "" {
		t.Errorf("a file alone, whose policy is elsewhere: %q", got)
	}
	if units, err := regotest.Find(filepath.Join(dir, "none")); err != nil || len(units) > 0 {
		t.Errorf("without tests: %v, %v", units, err)
	}
}

func TestTestsOfABundleRun(t *testing.T) {
	file := filepath.Join(t.TempDir(), "b.tar.gz")
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for name, text := range map[string]string{
		".manifest": `{"roots": ["b", "b_test"]}`, "b/policy.rego": files["new/policy.rego"], "b/x_test.rego": files["new/deep/x_test.rego"],
	} {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(text))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	got := outcomes(t, file)
	if want := map[string]string{"data.b_test/test_mock": "", "data.b_test/test_time": ""}; !maps.Equal(got, want) {
		t.Errorf("%q", got)
	}
}
