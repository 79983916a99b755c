// SPDX-License-Identifier: Apache-2.0

// Package customresource lets Wasm plugins convert and validate custom resources:
// it is core's customresource extension over the plugins of a process.
//
// A definition names the plugin that converts its objects (extension.ConverterAnnotation),
// and the plugin's rules, or its entry's, have to cover the resource: neither side
// brings the other in by itself. Each object is one call, with the fields that the
// hook declared, answered by a patch; an object that cannot be converted is a
// failure whatever the entry's failure policy says, as there is nothing to show instead.
//
// Validating hooks see writes that their rules match, after the schema was found to
// hold. They see what admission hooks see, under the same names, and their refusals
// are findings about fields, which the client gets with those of all others.
// Plugins themselves are never converted nor judged by a plugin.
package customresource

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/customresource/extension"
	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/point"
	pointadmission "github.com/wasmplane/wasmplane/plugins/point/admission"
)

// Plugin is a plugin with a hook at one of the two points, or at both.
type Plugin struct {
	plugin *point.Plugin
	match  *pointadmission.Matcher
}

// New makes the adapter of a plugin; nil where it takes no part at custom resources now.
func New(p *point.Plugin, c pointadmission.Cluster) *Plugin {
	v := p.Current()
	if v == nil || v.Hook(abi.CustomResourceConvert) == nil && v.Hook(abi.CustomResourceValidate) == nil {
		return nil
	}
	return &Plugin{plugin: p, match: pointadmission.NewMatcher(p, c)}
}

// Name is the plugin's.
func (p *Plugin) Name() string { return p.plugin.Name() }

// Matches says whether the plugin would be asked about a write at a point. Tools ask that.
func (p *Plugin) Matches(ctx context.Context, pt abi.Point, r *admission.Request) (bool, error) {
	return p.match.Matches(ctx, pt, r)
}

// Check refuses an entry that means what conversion cannot do.
func Check(v *point.Version) error {
	if v.Hook(abi.CustomResourceConvert) == nil || v.Entry.Mode == manifest.Enforce || v.Entry.Mode == "" {
		return nil
	}
	return fmt.Errorf("mode %s: %s either converts objects or does not; leave the point out of the entry's points, or run another version beside the one in force (candidate)",
		v.Entry.Mode, abi.CustomResourceConvert)
}

// Set is all plugins of a process as core's extension.
type Set struct {
	plugins func() []*Plugin

	mu    sync.Mutex
	known map[string]*point.Version // converters, as they were when Changed was asked last
}

// NewSet makes the extension of the plugins that a function lists, in order, at
// each moment.
func NewSet(plugins func() []*Plugin) *Set { return &Set{plugins: plugins} }

// Converter implements extension.Extension.
func (s *Set) Converter(name string, gr schema.GroupResource) extension.Converter {
	for _, p := range s.plugins() {
		if p.Name() != name {
			continue
		}
		if v := p.plugin.Current(); v == nil || v.Hook(abi.CustomResourceConvert) == nil || gr.Group == manifest.APIGroup {
			break
		}
		if !p.match.Covers(abi.CustomResourceConvert, gr) {
			return stranger{p.Name(), gr}
		}
		return p
	}
	return nil
}

// Validators implements extension.Extension.
func (s *Set) Validators(gr schema.GroupResource) []extension.Validator {
	if gr.Group == manifest.APIGroup {
		return nil // what could keep itself from being taken away
	}
	var out []extension.Validator
	for _, p := range s.plugins() {
		if p.match.Covers(abi.CustomResourceValidate, gr) {
			out = append(out, p)
		}
	}
	return out
}

// Changed are the names of plugins that convert in another way than when it was
// asked last: they are new, gone, or of another version or other settings.
func (s *Set) Changed() map[string]bool {
	now := map[string]*point.Version{}
	for _, p := range s.plugins() {
		if v := p.plugin.Current(); v != nil && v.Hook(abi.CustomResourceConvert) != nil {
			now[p.Name()] = v
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := map[string]bool{}
	for name := range maps.Keys(s.known) {
		changed[name] = now[name] != s.known[name]
	}
	for name := range maps.Keys(now) {
		changed[name] = now[name] != s.known[name]
	}
	s.known = now
	maps.DeleteFunc(changed, func(_ string, is bool) bool { return !is })
	return changed
}

// stranger is a plugin that a definition names without its consent.
type stranger struct {
	plugin   string
	resource schema.GroupResource
}

// Convert implements extension.Converter.
func (s stranger) Convert(context.Context, []*unstructured.Unstructured, schema.GroupVersion) ([]*unstructured.Unstructured, error) {
	return nil, fmt.Errorf("plugin %q does not convert %s: the rules of its hook, and those of its entry (match.rules) where there are any, have to name that resource", s.plugin, s.resource)
}

var errNoHook = errors.New("the plugin has no hook at " + string(abi.CustomResourceConvert))
