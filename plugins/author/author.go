// SPDX-License-Identifier: Apache-2.0

// Package author runs a plugin outside of a cluster: it reads its entry, loads it, and calls
// it as the points do. The packages below use it for cases, measurements, recordings,
// audits, look-ups and distribution.
//
// A plugin is loaded here as a cluster loads it: by its entry, with its settings,
// limits and grants, in modules of every ABI. What host functions would read comes from
// objects that the caller gives.
package author

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/hostfn"
	"github.com/wasmplane/wasmplane/plugins/loader"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/point"
	"github.com/wasmplane/wasmplane/plugins/point/customresource"
)

// EntryFile and CasesFile are the files of a plugin's folder that the tool reads.
const (
	EntryFile = "plugin.yaml"
	CasesFile = "cases.yaml"
)

// ReadEntry finds the entry of a plugin: in a folder it is plugin.yaml; a .wasm file
// has the entry beside it whose source it is, else one of its own name without settings. dir
// is where the entry's relative paths start.
func ReadEntry(path string) (e manifest.Entry, dir string, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return e, "", fmt.Errorf("read the plugin: %w", err)
	}
	if info.IsDir() {
		return entryFile(filepath.Join(path, EntryFile))
	}
	if strings.HasSuffix(path, ".yaml") || strings.HasSuffix(path, ".yml") || strings.HasSuffix(path, ".json") {
		return entryFile(path)
	}
	dir = filepath.Dir(path)
	beside, _, err := entryFile(filepath.Join(dir, EntryFile))
	if err == nil && beside.Source == "file:"+filepath.Base(path) {
		return beside, dir, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return e, "", err
	}
	name := nameOf(strings.TrimSuffix(filepath.Base(path), ".wasm"))
	e, err = manifest.ParseBytes([]byte(fmt.Sprintf("name: %q\nsource: %q\n", name, "file:"+filepath.Base(path))))
	return e, dir, err
}

// nameOf makes a plugin's name of that of a file, which other people's tools write with
// underscores and capitals.
func nameOf(file string) string {
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '.':
			return r
		}
		return '-'
	}, file)
	name = strings.Trim(name[:min(len(name), 63)], "-.")
	if name == "" {
		return "plugin"
	}
	return name
}

func entryFile(path string) (manifest.Entry, string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return manifest.Entry{}, "", fmt.Errorf("read the plugin's entry: %w", err)
	}
	e, err := manifest.ParseBytes(b)
	if err != nil {
		return manifest.Entry{}, "", fmt.Errorf("%s: %w", path, err)
	}
	return e, filepath.Dir(path), nil
}

// Config says how a plugin is loaded.
type Config struct {
	Entry manifest.Entry
	Dir   string // where relative paths of the entry start
	// Interpreter runs the module without compiling it, InProcess compiles it without a
	// child process; see host.Config.
	Interpreter, InProcess bool
	// CacheDir keeps compiled modules; empty = nothing is kept.
	CacheDir string
	// Objects are what host functions read; nil = there are none.
	Objects hostfn.Objects
	// Images and Access are what they ask besides; nil = there is nobody to ask.
	Images hostfn.Images
	Access hostfn.Access
	// Namespaces answers the labels of namespaces; nil = every namespace is there, without labels.
	Namespaces func(ctx context.Context, name string) (map[string]string, bool)
	Logger     *slog.Logger
}

// Plugin is a loaded plugin. It is not safe for concurrent use.
type Plugin struct {
	loader *loader.Loader
	plugin *point.Plugin
	admits admission.Plugin
	custom *customresource.Plugin // nil = it takes no part at custom resources
}

// Open loads a plugin.
func Open(ctx context.Context, cfg Config) (*Plugin, error) {
	e := cfg.Entry
	e.Mode, e.Disabled, e.Candidate = manifest.Enforce, false, nil // what it decides is asked, not what that means
	if cfg.Namespaces == nil {
		cfg.Namespaces = func(context.Context, string) (map[string]string, bool) { return nil, true }
	}
	l, err := loader.New(ctx, loader.Config{
		Entries: []manifest.Entry{e}, Dir: cfg.Dir, CacheDir: cfg.CacheDir, Interpreter: cfg.Interpreter, InProcess: cfg.InProcess,
		Logger:     cfg.Logger,
		Namespaces: cfg.Namespaces,
		Functions:  hostfn.New(hostfn.Backend{Objects: cfg.Objects, Images: cfg.Images, Access: cfg.Access, Logger: cfg.Logger}),
	})
	if err != nil {
		return nil, err
	}
	p := &Plugin{loader: l}
	if err := l.Load(ctx); err != nil {
		return nil, errors.Join(err, l.Close(ctx))
	}
	if p.plugin = l.Plugin(e.Name); p.plugin == nil || p.plugin.Current() == nil {
		return nil, errors.Join(fmt.Errorf("plugin %q was not loaded", e.Name), l.Close(ctx))
	}
	if list := l.AdmissionPlugins(); len(list) > 0 {
		p.admits = list[0]
	}
	if list := l.CustomResources(); len(list) > 0 {
		p.custom = list[0]
	}
	return p, nil
}

// Name is the entry's.
func (p *Plugin) Name() string { return p.plugin.Name() }

// Manifest is what the plugin says of itself.
func (p *Plugin) Manifest() *abi.Manifest { return p.plugin.Current().Manifest }

// Digest names the module.
func (p *Plugin) Digest() string { return p.plugin.Current().Digest }

// Points are those at which the plugin takes part, by its entry.
func (p *Plugin) Points() []abi.Point {
	var out []abi.Point
	for _, pt := range abi.Points() {
		if p.TakesPartAt(pt) {
			out = append(out, pt)
		}
	}
	return out
}

// TakesPartAt says whether the plugin has a hook at a point, by its entry.
func (p *Plugin) TakesPartAt(pt abi.Point) bool { return p.plugin.Current().Hook(pt) != nil }

// PointNames are those of Points, for messages.
func (p *Plugin) PointNames() string {
	var out []string
	for _, pt := range p.Points() {
		out = append(out, string(pt))
	}
	return strings.Join(out, ", ")
}

// Handles says whether the plugin's rules are about a request of admission.
func (p *Plugin) Handles(r *admission.Request) bool { return p.admits != nil && p.admits.Handles(r) }

// Close unloads the plugin.
func (p *Plugin) Close(ctx context.Context) error { return p.loader.Close(ctx) }

// WithSettings is the entry with other settings.
func WithSettings(e manifest.Entry, settings yaml.Node) manifest.Entry {
	if settings.Kind != 0 {
		e.Settings = settings
	}
	return e
}
