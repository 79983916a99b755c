// SPDX-License-Identifier: Apache-2.0

package openapi

import (
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"sort"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/api"
)

// upstreamFile reads a file of the k8s.io/kubernetes module that this is built
// with: what upstream's servers recorded of themselves.
func upstreamFile(t *testing.T, path string) []byte {
	t.Helper()
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes").Output()
	if err != nil {
		t.Fatalf("find the k8s.io/kubernetes module: %v", err)
	}
	b, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(out)), path))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Each group version describes the paths, operations, parameters and models
// that upstream's server describes. Upstream recorded CBOR, which is off by default.
func TestOpenAPIV3IsUpstreams(t *testing.T) {
	contract, err := api.New()
	if err != nil {
		t.Fatal(err)
	}
	d := New(contract)
	for _, g := range contract.Groups() {
		if g.Name == api.MetricsGroup { // metrics-server's, of which upstream records nothing
			continue
		}
		for _, v := range g.Versions {
			gv := schema.GroupVersion{Group: g.Name, Version: v}
			t.Run(gv.String(), func(t *testing.T) {
				file := "api__v1_openapi.json"
				if g.Name != "" {
					file = "apis__" + g.Name + "__" + v + "_openapi.json"
				}
				want := tree(t, upstreamFile(t, "api/openapi-spec/v3/"+file))
				ours, err := d.V3(gv, nil)
				if err != nil {
					t.Fatal(err)
				}
				if len(ours.Proto) == 0 {
					t.Error("no protobuf")
				}
				got := tree(t, ours.JSON)
				for _, part := range []string{"info", "openapi"} {
					if diff := cmp.Diff(want[part], got[part]); diff != "" {
						t.Errorf("%s (-upstream +ours):\n%s", part, diff)
					}
				}
				compareMaps(t, "path", without(want["paths"]), without(got["paths"]))
				compareMaps(t, "schema", at(want, "components", "schemas"), noEnums(at(got, "components", "schemas")).(map[string]any))
			})
		}
	}
}

// OpenAPI v2 has upstream's operations and definitions of all that is served.
func TestOpenAPIV2IsUpstreams(t *testing.T) {
	contract, err := api.New()
	if err != nil {
		t.Fatal(err)
	}
	d := New(contract)
	want := tree(t, upstreamFile(t, "api/openapi-spec/swagger.json"))
	ours, err := d.V2(nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(ours.Proto) == 0 {
		t.Error("no protobuf")
	}
	got := tree(t, ours.JSON)
	// What metrics-server would add, of which upstream records nothing.
	besides := func(name string, _ any) bool {
		return strings.Contains(name, "metrics") || strings.HasSuffix(name, "meta.v1.Duration")
	}
	maps.DeleteFunc(at(got, "paths"), besides)
	maps.DeleteFunc(at(got, "definitions"), besides)
	for _, d := range at(got, "definitions") {
		if kinds, ok := d.(map[string]any)["x-kubernetes-group-version-kind"].([]any); ok {
			d.(map[string]any)["x-kubernetes-group-version-kind"] = slices.DeleteFunc(kinds,
				func(k any) bool { return k.(map[string]any)["group"] == api.MetricsGroup })
		}
	}
	served := map[string]any{}
	for path := range at(got, "paths") {
		served[path] = at(want, "paths")[path]
	}
	compareMaps(t, "path", without(served), without(got["paths"]))
	defined := map[string]any{}
	for name := range at(got, "definitions") {
		defined[name] = at(want, "definitions")[name]
	}
	compareMaps(t, "definition", defined, noEnums(at(got, "definitions")).(map[string]any))
}

// noEnums drops enumerations: upstream records without them, and serves them.
func noEnums(v any) any {
	switch v := v.(type) {
	case map[string]any:
		if _, ok := v["enum"].([]any); ok {
			delete(v, "enum")
		}
		for k, x := range v {
			v[k] = noEnums(x)
		}
		if doc, ok := v["description"].(string); ok {
			text, _, found := strings.Cut(doc, "Possible enum values:")
			if v["description"] = strings.TrimRight(text, "\n"); found && text == "" {
				delete(v, "description")
			}
		}
	case []any:
		for i, x := range v {
			v[i] = noEnums(x)
		}
	}
	return v
}

func tree(t *testing.T, b []byte) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

func at(m map[string]any, keys ...string) map[string]any {
	for _, k := range keys {
		m, _ = m[k].(map[string]any)
	}
	return m
}

// without drops what upstream records of CBOR.
func without(v any) map[string]any {
	m, _ := drop(v).(map[string]any)
	return m
}

func drop(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for k, x := range v {
			if !strings.Contains(k, "cbor") {
				out[k] = drop(x)
			}
		}
		return out
	case []any:
		out := []any{}
		for _, x := range v {
			if s, ok := x.(string); ok && strings.Contains(s, "cbor") {
				continue
			}
			out = append(out, drop(x))
		}
		return out
	}
	return v
}

func compareMaps(t *testing.T, what string, want, got map[string]any) {
	t.Helper()
	keys := map[string]bool{}
	for k := range want {
		keys[k] = true
	}
	for k := range got {
		keys[k] = true
	}
	sorted := make([]string, 0, len(keys))
	for k := range keys {
		sorted = append(sorted, k)
	}
	sort.Strings(sorted)
	shown := 0
	for _, k := range sorted {
		if reflect.DeepEqual(want[k], got[k]) {
			continue
		}
		if shown++; shown > 5 {
			continue
		}
		t.Errorf("%s %s (-upstream +ours):\n%s", what, k, cmp.Diff(want[k], got[k]))
	}
	if shown > 5 {
		t.Errorf("... %d more of %d", shown-5, len(keys))
	}
}
