// SPDX-License-Identifier: Apache-2.0

package differential

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// change is an object with one thing changed, and what that was.
type change struct {
	what   string
	object any
}

// broken is the object with each of its leaves and branches broken, one at a time.
func broken(object map[string]any) []change {
	var all []change
	visit(object, nil, func(path []any, value any) {
		for _, b := range breakages(value) {
			all = append(all, change{b.what + " " + show(path), replaced(object, path, b.object)})
		}
		if len(path) > 0 {
			all = append(all, change{"without " + show(path), removed(object, path)})
		}
	})
	return all
}

var long = strings.Repeat("long-", 60)

// breakages are values in the place of a right one.
func breakages(value any) []change {
	switch value.(type) {
	case string:
		return []change{{"empty", ""}, {"number", 7}, {"long", long}, {"odd text", "Not_Valid! é"}}
	case float64:
		return []change{{"negative", -1}, {"text", "x"}, {"zero", 0}, {"huge", 9999999999}, {"fraction", 1.5}}
	case bool:
		return []change{{"text", "yes"}}
	case []any:
		return []change{{"object", map[string]any{}}, {"empty", []any{}}, {"null item", []any{nil}}}
	case map[string]any:
		return []change{{"list", []any{}}, {"unknown field", map[string]any{"unknown": true}}, {"null", nil}}
	}
	return nil
}

// visit calls f for every value below v, v itself left out.
func visit(v any, path []any, f func(path []any, value any)) {
	if len(path) > 0 {
		f(path, v)
	}
	switch v := v.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			visit(v[name], append(slices.Clone(path), name), f)
		}
	case []any:
		for i, item := range v {
			visit(item, append(slices.Clone(path), i), f)
		}
	}
}

func show(path []any) string {
	parts := make([]string, 0, len(path))
	for _, p := range path {
		parts = append(parts, fmt.Sprint(p))
	}
	return strings.Join(parts, ".")
}

// replaced is a copy of v with another value at path.
func replaced(v any, path []any, value any) any {
	if len(path) == 0 {
		return value
	}
	switch v := v.(type) {
	case map[string]any:
		c := maps.Clone(v)
		name, _ := path[0].(string)
		c[name] = replaced(v[name], path[1:], value)
		return c
	case []any:
		c := slices.Clone(v)
		i, _ := path[0].(int)
		c[i] = replaced(v[i], path[1:], value)
		return c
	}
	// Grafts make what is missing on the way.
	if _, ok := path[0].(int); ok {
		return []any{replaced(nil, path[1:], value)}
	}
	return replaced(map[string]any{}, path, value)
}

// removed is a copy of v without what is at path.
func removed(v any, path []any) any {
	switch v := v.(type) {
	case map[string]any:
		c := maps.Clone(v)
		name, _ := path[0].(string)
		if len(path) == 1 {
			delete(c, name)
		} else {
			c[name] = removed(v[name], path[1:])
		}
		return c
	case []any:
		c := slices.Clone(v)
		i, _ := path[0].(int)
		if len(path) == 1 {
			return slices.Delete(c, i, i+1)
		}
		c[i] = removed(v[i], path[1:])
		return c
	}
	return v
}

// at is the value at path, and whether there is one.
func at(v any, path []any) (any, bool) {
	for _, step := range path {
		switch s := step.(type) {
		case string:
			m, ok := v.(map[string]any)
			if !ok {
				return nil, false
			}
			if v, ok = m[s]; !ok {
				return nil, false
			}
		case int:
			l, ok := v.([]any)
			if !ok || s >= len(l) {
				return nil, false
			}
			v = l[s]
		}
	}
	return v, true
}

// grafted is the valid object with each further field of the full one, one at a
// time: first whole, as far down as depth.
func grafted(valid, full map[string]any, depth int) []change {
	var all []change
	visit(full, nil, func(path []any, value any) {
		if len(path) > depth || path[0] == "metadata" || path[0] == "apiVersion" || path[0] == "kind" {
			return
		}
		if _, ok := at(valid, path); ok {
			return
		}
		all = append(all, change{"with " + show(path), replaced(valid, path, value)})
	})
	return all
}

// fullObject is upstream's object with every field filled.
func fullObject(t *testing.T, dir string, k kind) map[string]any {
	t.Helper()
	group := k.group
	switch {
	case group == "":
		group = "core"
	case group == "apiextensions.k8s.io" || group == "apiregistration.k8s.io":
		return nil // theirs are not among the published ones
	case !strings.Contains(group, "."):
	}
	data, err := os.ReadFile(filepath.Join(dir, "testdata", "HEAD", fmt.Sprintf("%s.%s.%s.json", group, k.version, k.kind)))
	if err != nil {
		t.Fatalf("upstream's full objects: %v", err)
	}
	var o map[string]any
	if err := json.Unmarshal(data, &o); err != nil {
		t.Fatal(err)
	}
	return o
}

// apiModule is where the published k8s.io/api lies.
func apiModule(t *testing.T) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/api").Output()
	if err != nil {
		t.Fatalf("go list -m k8s.io/api: %v", err)
	}
	return strings.TrimSpace(string(out))
}

func encode(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// created are stories of the kinds' objects: right, broken, full.
func created(t *testing.T) []story {
	t.Helper()
	dir := apiModule(t)
	var all []story
	for _, k := range kinds {
		valid := k.object(t)
		s := story{name: "create " + k.String()}
		post := func(what string, body any) {
			s.requests = append(s.requests, request{
				name: what, method: "POST", path: k.collection() + "?dryRun=All&fieldValidation=Strict",
				body: encode(t, body),
			})
		}
		post("valid", valid)
		for _, c := range broken(valid) {
			post(c.what, c.object)
		}
		if full := fullObject(t, dir, k); full != nil {
			meta := map[string]any{"name": valid["metadata"].(map[string]any)["name"]}
			post("full", replaced(full, []any{"metadata"}, meta))
			depth := 7
			if k.kind == "Pod" {
				depth = 9
			}
			for _, c := range grafted(valid, full, depth) {
				post(c.what, c.object)
			}
		}
		all = append(all, s)
	}
	return all
}
