// SPDX-License-Identifier: Apache-2.0

// Package inspection shows what a module is, without a cluster: its ABI, hooks, imports and
// needs, and why it does not load where it does not.
package inspection

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/author"
	"github.com/wasmplane/wasmplane/plugins/component/binary"
	"github.com/wasmplane/wasmplane/plugins/component/link"
	"github.com/wasmplane/wasmplane/plugins/foreign"
	"github.com/wasmplane/wasmplane/plugins/fuel"
	"github.com/wasmplane/wasmplane/plugins/host"
	"github.com/wasmplane/wasmplane/plugins/hostfn"
	"github.com/wasmplane/wasmplane/plugins/manifest"
)

// About is what there is to know of a module without running a cluster.
type About struct {
	Name    string       `json:"name"`
	Version string       `json:"version,omitempty"`
	ABI     manifest.ABI `json:"abi"`
	Digest  string       `json:"digest"`
	Bytes   int          `json:"bytes"`
	// Names and Lines: whether errors can name functions, and lines of the source.
	Names bool `json:"functionNames"`
	Lines bool `json:"lineTable"`

	Settings bool `json:"settings"` // whether it takes any
	// SettingsSchema is what the module declares of them.
	SettingsSchema json.RawMessage `json:"settingsSchema,omitempty"`

	Needs   []Need      `json:"needs,omitempty"`
	Hooks   []HookAbout `json:"hooks,omitempty"`
	Imports []string    `json:"imports,omitempty"`
	Exports []string    `json:"exports,omitempty"`
	// StartUp is what compiling and the first instance took.
	StartUp time.Duration `json:"startUpNanoseconds,omitempty"`
	// Problem is why the module does not load by its entry; what can be read of it is there all the same.
	Problem string `json:"problem,omitempty"`
}

// Need is a host function that a plugin cannot do without, and the grant that opens it.
type Need struct {
	Function string `json:"function"`
	Grant    string `json:"grant"`
	Granted  bool   `json:"granted"`
}

// HookAbout is a hook.
type HookAbout struct {
	Point    abi.Point `json:"point"`
	Op       int32     `json:"op"`
	Encoding string    `json:"encoding"`
	Match    []string  `json:"match,omitempty"`
	Fields   []string  `json:"fields,omitempty"` // none: the whole document
	Columns  []string  `json:"columns,omitempty"`
	Pod      []string  `json:"pod,omitempty"`
	Primary  string    `json:"primary,omitempty"`
	Owned    []string  `json:"owned,omitempty"`
}

// Inspect reads a module by its entry.
func Inspect(ctx context.Context, cfg author.Config) (*About, error) {
	path, ok := strings.CutPrefix(cfg.Entry.Source, "file:")
	if !ok {
		return nil, fmt.Errorf("source %s is no local file: pull it first (wasmplane plugin pull)", cfg.Entry.Source)
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(cfg.Dir, path)
	}
	wasm, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the module: %w; build it with: wasmplane plugin build", err)
	}
	a := &About{Name: cfg.Entry.Name, Digest: host.Digest(wasm), Bytes: len(wasm), ABI: cfg.Entry.ABI}
	if cfg.Entry.Bundle == nil { // what a bundle holds is compiled when it is loaded
		if err := a.shape(wasm); err != nil {
			return nil, fmt.Errorf("%s is no WebAssembly module or component: %w", path, err)
		}
		if a.ABI, err = foreign.Recognise(wasm, &cfg.Entry); err != nil {
			a.Problem = err.Error()
			return a, nil //nolint:nilerr // what is wrong with a module is part of what there is to tell
		}
		for _, n := range foreign.Needs(wasm, &cfg.Entry) {
			a.Needs = append(a.Needs, Need{Function: n.What, Grant: n.Grant, Granted: n.Granted})
		}
	}
	start := time.Now()
	p, err := author.Open(ctx, cfg)
	if err != nil {
		a.Problem = err.Error()
		return a, nil //nolint:nilerr // as above
	}
	a.StartUp = time.Since(start)
	a.describe(p.Manifest(), &cfg.Entry)
	return a, p.Close(ctx)
}

// shape reads what a module or component shows to the outside.
func (a *About) shape(wasm []byte) error {
	if binary.Is(wasm) {
		return a.componentShape(wasm)
	}
	shape, err := fuel.Inspect(wasm)
	if err != nil {
		return err
	}
	a.Exports, a.Names, a.Lines = shape.Exports, shape.Custom("name") != nil, shape.Custom(".debug_line") != nil
	for _, i := range shape.Imports {
		a.Imports = append(a.Imports, i.Module+"."+i.Name)
	}
	return nil
}

func (a *About) componentShape(wasm []byte) error {
	c, _, err := binary.Decode(wasm)
	if err != nil {
		return err
	}
	p, err := link.Plan(c)
	if err != nil {
		return err
	}
	for _, e := range c.Type.Exports {
		a.Exports = append(a.Exports, e.Name)
	}
	for _, i := range p.Imports() {
		a.Imports = append(a.Imports, i.String())
	}
	return nil
}

func (a *About) describe(m *abi.Manifest, e *manifest.Entry) {
	if m.Name != "" {
		a.Name = m.Name
	}
	a.Version, a.Settings, a.SettingsSchema = m.Version, m.Settings, m.SettingsSchema
	granted := hostfn.Set(e, nil)
	for _, n := range m.Needs {
		_, has := granted[n]
		a.Needs = append(a.Needs, Need{Function: n, Grant: hostfn.Grant(n), Granted: has})
	}
	for i := range m.Hooks {
		h := &m.Hooks[i]
		about := HookAbout{
			Point: h.Point, Op: h.Op, Encoding: string(h.Encoding), Fields: h.Fields, Columns: columns(h.Columns),
			Pod: columns(h.Pod),
		}
		for _, r := range h.Match {
			about.Match = append(about.Match, ruleText(r))
		}
		if h.Primary != nil {
			about.Primary = watchText(*h.Primary)
		}
		for _, w := range h.Owned {
			about.Owned = append(about.Owned, watchText(w))
		}
		a.Hooks = append(a.Hooks, about)
	}
}

// SchemaLines are the settings that a schema names, one a line, by name: its type, whether it is required, and what it says of it.
func SchemaLines(schema json.RawMessage) []string {
	var o struct {
		Required   []string `json:"required"`
		Properties map[string]struct {
			Type        any    `json:"type"`
			Default     any    `json:"default"`
			Enum        []any  `json:"enum"`
			Description string `json:"description"`
		} `json:"properties"`
	}
	if schema == nil || json.Unmarshal(schema, &o) != nil {
		return nil
	}
	var out []string
	for _, name := range slices.Sorted(maps.Keys(o.Properties)) {
		p := o.Properties[name]
		text := name
		if p.Type != nil {
			text += fmt.Sprintf(" (%v)", p.Type)
		}
		if slices.Contains(o.Required, name) {
			text += ", required"
		}
		if p.Default != nil {
			text += fmt.Sprintf(", default %v", p.Default)
		}
		if len(p.Enum) > 0 {
			text += fmt.Sprintf(", one of %v", p.Enum)
		}
		if p.Description != "" {
			text += ": " + p.Description
		}
		out = append(out, text)
	}
	return out
}

func columns(list []abi.Column) []string {
	var out []string
	for _, c := range list {
		text := c.Path + " (" + string(c.Type)
		if c.Equals != nil {
			text += fmt.Sprintf(" = %q", *c.Equals)
		}
		out = append(out, text+")")
	}
	return out
}

func ruleText(r abi.Rule) string {
	all := func(list []string, every string) string {
		if len(list) == 0 || slices.Contains(list, "*") {
			return every
		}
		return strings.Join(list, ",")
	}
	text := all(r.Operations, "every operation") + " of " + all(r.Resources, "every resource")
	if len(r.Groups) > 0 && !slices.Equal(r.Groups, []string{""}) {
		text += " in " + strings.Join(quoteEmpty(r.Groups), ",")
	}
	return text
}

func quoteEmpty(list []string) []string {
	out := slices.Clone(list)
	for i := range out {
		if out[i] == "" {
			out[i] = "core"
		}
	}
	return out
}

func watchText(w abi.Watch) string {
	text := w.Resource
	if w.Group != "" {
		text += "." + w.Group
	}
	if text += "/" + w.Version; w.Selector != "" {
		text += " with " + w.Selector
	}
	return text
}
