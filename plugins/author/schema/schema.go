// SPDX-License-Identifier: Apache-2.0

// Package schema describes the files that operators and authors write (a plugin's entry, the
// plugins of a configuration, cases) as JSON schemas, from the Go types that read them, so that
// editors complete and check what is written. What stands beside a field in Go is its description.
//
// A schema says what a file looks like. What only loading can tell (a module that is not there,
// settings that a plugin refuses) it leaves to loading.
package schema

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/author/cases"
	"github.com/wasmplane/wasmplane/plugins/manifest"
)

// Dir is the folder of the schemas in the repository.
const Dir = "docs/schemas"

// sources are the packages whose comments describe the fields.
var sources = []string{"plugins/manifest", "plugins/author/cases"}

// Files are the schemas by file name; root is the repository.
func Files(root string) (map[string][]byte, error) {
	g := &generator{comments: map[string]string{}, within: map[reflect.Type]bool{}}
	for _, dir := range sources {
		if err := g.read(filepath.Join(root, dir)); err != nil {
			return nil, err
		}
	}
	entry := g.of(reflect.TypeFor[manifest.Entry]())
	out := map[string][]byte{}
	for name, s := range map[string]node{
		"plugin": g.named("A plugin's entry: plugin.yaml", entry),
		"plugins": g.named("The plugins of a configuration", node{"type": "object", "properties": node{
			"plugins": node{"type": "array", "items": entry, "description": "Entries of plugins."},
		}}),
		"cases": g.named("A plugin's cases: cases.yaml", node{"type": "array", "items": g.of(reflect.TypeFor[cases.Case]())}),
	} {
		b, err := json.MarshalIndent(s, "", " ")
		if err != nil {
			return nil, err
		}
		out[name+".json"] = append(b, '\n')
	}
	return out, nil
}

type node map[string]any

type generator struct {
	comments map[string]string // by package, type and field
	within   map[reflect.Type]bool
}

func (g *generator) named(title string, s node) node {
	out := node{"$schema": "http://json-schema.org/draft-07/schema#", "title": title}
	for k, v := range s {
		out[k] = v
	}
	return out
}

// read collects the comments of a package's fields.
func (g *generator) read(dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("no Go files in %s: %w", dir, err)
	}
	for _, f := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), f, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return fmt.Errorf("read comments: %w", err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			t, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			s, ok := t.Type.(*ast.StructType)
			if !ok {
				return false
			}
			for _, field := range s.Fields.List {
				text := field.Doc.Text() + field.Comment.Text()
				for _, name := range field.Names {
					g.comments[parsed.Name.Name+"."+t.Name.Name+"."+name.Name] = strings.Join(strings.Fields(text), " ")
				}
			}
			return false
		})
	}
	return nil
}

// values are what texts of a type may be.
func values(t reflect.Type) []any {
	switch t {
	case reflect.TypeFor[manifest.ABI]():
		return list(manifest.ABIs())
	case reflect.TypeFor[manifest.Mode]():
		return list([]manifest.Mode{manifest.Enforce, manifest.Warn, manifest.Audit, manifest.Shadow})
	case reflect.TypeFor[manifest.FailurePolicy]():
		return list([]manifest.FailurePolicy{manifest.Fail, manifest.Ignore})
	case reflect.TypeFor[manifest.Isolation]():
		return list([]manifest.Isolation{manifest.Shared, manifest.PerCall})
	}
	return nil
}

func list[T ~string](of []T) (out []any) {
	for _, v := range of {
		out = append(out, string(v))
	}
	return out
}

// of is the schema of a type as YAML has it.
func (g *generator) of(t reflect.Type) node {
	switch t {
	case reflect.TypeFor[yaml.Node]():
		return node{} // anything
	case reflect.TypeFor[manifest.Duration]():
		return node{"type": "string", "pattern": `^([0-9.]+(ns|us|µs|ms|s|m|h))+$|^0$`, "examples": []string{"50ms", "2s"}}
	case reflect.TypeFor[manifest.Bytes]():
		return node{"type": []string{"string", "integer"}, "examples": []string{"64Ki", "32Mi"}}
	}
	switch t.Kind() { //nolint:exhaustive // entries have no others
	case reflect.Pointer:
		return g.of(t.Elem())
	case reflect.Bool:
		return node{"type": "boolean"}
	case reflect.String:
		if v := values(t); v != nil {
			return node{"type": "string", "enum": v}
		}
		return node{"type": "string"}
	case reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint32, reflect.Uint64:
		return node{"type": "integer"}
	case reflect.Float64:
		return node{"type": "number"}
	case reflect.Slice:
		return node{"type": "array", "items": g.of(t.Elem())}
	case reflect.Map:
		return node{"type": "object", "additionalProperties": g.of(t.Elem())}
	case reflect.Struct:
		return g.object(t)
	}
	return node{}
}

func (g *generator) object(t reflect.Type) node {
	if g.within[t] { // it holds itself: once is enough for an editor
		return node{"type": "object"}
	}
	g.within[t] = true
	defer delete(g.within, t)
	properties := node{}
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if name == "-" || name == "" || !f.IsExported() {
			continue
		}
		s := g.of(f.Type)
		if text := g.comments[t.PkgPath()[strings.LastIndex(t.PkgPath(), "/")+1:]+"."+t.Name()+"."+f.Name]; text != "" {
			s["description"] = text
		}
		if name == "points" {
			s["items"] = node{"type": "string", "enum": list(abi.Points())}
		}
		properties[name] = s
	}
	return node{"type": "object", "properties": properties, "additionalProperties": false}
}
