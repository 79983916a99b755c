// SPDX-License-Identifier: Apache-2.0

// Package rollout promotes the candidate of a plugin, or takes it back: for Plugins of
// the API by one update of the object, for entries of a configuration file by an edit
// of the file that leaves everything else in it as it is. The running cluster
// follows both by itself.
//
// Promote puts the candidate in force and keeps what was in force as the entry's
// previous version. Rollback drops a candidate; where there is none, it puts the
// previous version back.
package rollout

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"go.yaml.in/yaml/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/wasmplane/wasmplane/core/run/atomicfile"
	"github.com/wasmplane/wasmplane/plugins/manifest"
)

// Step is what is to be done.
type Step string

// The steps.
const (
	Promote  Step = "promote"
	Rollback Step = "rollback"
)

// Done says what a step has changed.
type Done string

// What can have been done.
const (
	Promoted Done = "the candidate is in force"
	Dropped  Done = "the candidate is dropped; what was in force stays"
	Restored Done = "the version before is in force again"
)

// errNothing is why a step cannot be taken.
var (
	errNoCandidate = errors.New("it has no candidate; give it one with a field candidate: {source, digest, settings}")
	errNoPrevious  = errors.New("it has neither a candidate nor a version that was promoted over another")
)

// Object takes a step for a Plugin of the API.
func Object(ctx context.Context, client dynamic.Interface, name string, step Step) (Done, error) {
	plugins := client.Resource(schema.GroupVersionResource{Group: manifest.APIGroup, Version: "v1", Resource: "plugins"})
	for {
		o, err := plugins.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return "", fmt.Errorf("%s plugin %q: %w", step, name, err)
		}
		spec, _ := o.Object["spec"].(map[string]any)
		var n yaml.Node
		if err := n.Encode(spec); err != nil {
			return "", fmt.Errorf("%s plugin %q: %w", step, name, err)
		}
		done, err := take(&n, step)
		if err != nil {
			return "", fmt.Errorf("%s plugin %q: %w", step, name, err)
		}
		var changed map[string]any
		if err := n.Decode(&changed); err != nil {
			return "", fmt.Errorf("%s plugin %q: %w", step, name, err)
		}
		o.Object["spec"] = integers(changed)
		_, err = plugins.Update(ctx, o, metav1.UpdateOptions{FieldManager: "wasmplane-plugin"})
		if apierrors.IsConflict(err) && ctx.Err() == nil {
			continue // somebody else wrote it; look again
		}
		if err != nil {
			return "", fmt.Errorf("%s plugin %q: %w", step, name, err)
		}
		return done, nil
	}
}

// integers makes whole numbers what the API's JSON has.
func integers(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			v[k] = integers(e)
		}
	case []any:
		for i, e := range v {
			v[i] = integers(e)
		}
	case int:
		return int64(v)
	case uint64:
		return float64(v)
	}
	return v
}

// File takes a step for an entry of a configuration file.
func File(path, name string, step Step) (Done, error) {
	fail := func(err error) (Done, error) { return "", fmt.Errorf("%s plugin %q in %s: %w", step, name, path, err) }
	text, err := os.ReadFile(path)
	if err != nil {
		return fail(err)
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return fail(err)
	}
	entry := find(&doc, name)
	if entry == nil {
		return fail(errors.New("it holds no plugin of that name"))
	}
	done, err := take(entry, step)
	if err != nil {
		return fail(err)
	}
	if _, err := manifest.Parse(entry, ""); err != nil {
		return fail(err)
	}
	if err := write(path, &doc); err != nil {
		return fail(err)
	}
	return done, nil
}

func find(doc *yaml.Node, name string) *yaml.Node {
	if len(doc.Content) == 0 {
		return nil
	}
	list := get(doc.Content[0], "plugins")
	if list == nil {
		return nil
	}
	for _, e := range list.Content {
		if n := get(e, "name"); n != nil && n.Value == name {
			return e
		}
	}
	return nil
}

// write replaces the file by rename: who follows it never reads half of it.
func write(path string, doc *yaml.Node) error {
	resolved, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	info, err := os.Stat(resolved)
	if err != nil {
		return err
	}
	return atomicfile.WriteFrom(resolved, info.Mode().Perm(), func(w io.Writer) error {
		enc := yaml.NewEncoder(w)
		enc.SetIndent(2)
		return errors.Join(enc.Encode(doc), enc.Close())
	})
}

// take changes an entry, or the spec of an object, in place.
func take(entry *yaml.Node, step Step) (Done, error) {
	if entry.Kind == yaml.DocumentNode && len(entry.Content) == 1 {
		entry = entry.Content[0]
	}
	candidate, previous := get(entry, "candidate"), get(entry, "previous")
	switch {
	case step == Promote && candidate == nil:
		return "", errNoCandidate
	case step == Promote:
		before := put(entry, candidate)
		remove(entry, "candidate")
		set(entry, "previous", before)
		return Promoted, nil
	case candidate != nil:
		remove(entry, "candidate")
		return Dropped, nil
	case previous == nil:
		return "", errNoPrevious
	}
	put(entry, previous)
	remove(entry, "previous")
	return Restored, nil
}

// put puts a version in force, and returns what that replaced.
func put(entry, version *yaml.Node) *yaml.Node {
	before := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
	swap := func(key string, absent *yaml.Node) {
		if now := get(entry, key); now != nil {
			set(before, key, now)
		} else if absent != nil {
			set(before, key, absent)
		}
		if next := get(version, key); next != nil {
			set(entry, key, next)
		} else {
			remove(entry, key)
		}
	}
	if get(version, "source") != nil { // its digest goes with it, or goes away
		swap("source", nil)
		swap("digest", nil)
	}
	for key, absent := range map[string]*yaml.Node{
		"settings": {Kind: yaml.MappingNode, Tag: "!!map"}, "fetch": {Kind: yaml.MappingNode, Tag: "!!map"},
		"signatures": {Kind: yaml.SequenceNode, Tag: "!!seq"},
	} {
		if get(version, key) != nil {
			swap(key, absent)
		}
	}
	return before
}

func get(m *yaml.Node, key string) *yaml.Node {
	for i := 0; m.Kind == yaml.MappingNode && i+1 < len(m.Content); i += 2 {
		if m.Content[i].Value == key {
			return m.Content[i+1]
		}
	}
	return nil
}

func set(m *yaml.Node, key string, v *yaml.Node) {
	for i := 0; i+1 < len(m.Content); i += 2 {
		if m.Content[i].Value == key {
			m.Content[i+1] = v
			return
		}
	}
	m.Content = append(m.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: key}, v)
}

func remove(m *yaml.Node, key string) {
	for i := 0; i+1 < len(m.Content); i += 2 {
		if m.Content[i].Value == key {
			m.Content = append(m.Content[:i], m.Content[i+2:]...)
			return
		}
	}
}
