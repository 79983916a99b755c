// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
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

func newContract(tb testing.TB) *Contract {
	tb.Helper()
	c, err := New()
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

func tree(t *testing.T, b []byte) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	return m
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

// Discovery of what is served is upstream's: names, kinds, verbs, short names.
func TestTableIsUpstreamsDiscovery(t *testing.T) {
	c := newContract(t)
	for _, g := range c.Groups() {
		if g.Name == MetricsGroup { // metrics-server's, of which upstream keeps no discovery
			continue
		}
		for _, v := range g.Versions {
			gv := schema.GroupVersion{Group: g.Name, Version: v}
			file := "api__v1.json"
			if g.Name != "" {
				file = "apis__" + g.Name + "__" + v + ".json"
			}
			compareMaps(t, gv.String(), recorded(t, upstreamFile(t, "api/discovery/"+file)), c.discovered(gv))
		}
	}
}

func recorded(t *testing.T, b []byte) map[string]any {
	t.Helper()
	var list struct{ Resources []map[string]any }
	if err := json.Unmarshal(b, &list); err != nil {
		t.Fatal(err)
	}
	out := map[string]any{}
	for _, r := range list.Resources {
		delete(r, "storageVersionHash")
		out[r["name"].(string)] = r
	}
	return out
}

func (c *Contract) discovered(gv schema.GroupVersion) map[string]any {
	out := map[string]any{}
	for _, r := range c.InVersion(gv) {
		m := map[string]any{
			"name": r.GroupResource.Resource, "kind": r.Kind, "namespaced": r.Namespaced, "singularName": r.Singular,
			"verbs": anys(r.Verbs),
		}
		if len(r.ShortNames) > 0 {
			m["shortNames"] = anys(r.ShortNames)
		}
		if len(r.Categories) > 0 {
			m["categories"] = anys(r.Categories)
		}
		out[r.GroupResource.Resource] = m
		for name, s := range r.Subresources {
			m := map[string]any{
				"name": r.GroupResource.Resource + "/" + name, "kind": s.Kind.Kind, "namespaced": r.Namespaced, "singularName": "",
				"verbs": anys(s.Verbs),
			}
			if s.Kind.Group != r.Group && s.Kind.Group != "" {
				m["group"], m["version"] = s.Kind.Group, s.Kind.Version
			}
			out[m["name"].(string)] = m
		}
	}
	return out
}

func anys(s []string) []any {
	out := []any{}
	for _, x := range s {
		out = append(out, x)
	}
	return slices.Clip(out)
}
