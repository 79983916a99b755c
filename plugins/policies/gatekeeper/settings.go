// SPDX-License-Identifier: Apache-2.0

package gatekeeper

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/wasmplane/wasmplane/plugins/policies/tree"
)

// What says something about all constraints.
const (
	ConfigGroup  = "config.gatekeeper.sh"
	ConfigKind   = "Config"
	SyncSetGroup = "syncset.gatekeeper.sh"
	SyncSetKind  = "SyncSet"

	// SettingsVersion is that of both kinds.
	SettingsVersion = "v1alpha1"
	// The one Config that counts.
	configName, configNamespace = "config", "gatekeeper-system"
)

// Settings are what Config and SyncSets say about all constraints.
type Settings struct {
	// Sync are the kinds of which data.inventory holds objects, for templates that do not say it themselves.
	Sync []SyncKind
	// Excluded are namespaces in which no constraint holds, with a star at the beginning or the end, and
	// Unchanged those in which no mutator changes anything.
	Excluded, Unchanged []string
}

// Add adds those of another object.
func (s *Settings) Add(more *Settings) {
	s.Sync, s.Excluded = append(s.Sync, more.Sync...), append(s.Excluded, more.Excluded...)
	s.Unchanged = append(s.Unchanged, more.Unchanged...)
}

type gvk struct {
	Group   string `json:"group"`
	Version string `json:"version"`
	Kind    string `json:"kind"`
}

type settingsObject struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Metadata   tree.Metadata   `json:"metadata"`
	Status     json.RawMessage `json:"status"`
	Spec       struct {
		// Of a Config.
		Sync struct {
			SyncOnly []gvk `json:"syncOnly"`
		} `json:"sync"`
		Match []struct {
			Processes          []string `json:"processes"`
			ExcludedNamespaces []string `json:"excludedNamespaces"`
		} `json:"match"`
		Validation struct {
			Traces []json.RawMessage `json:"traces"`
		} `json:"validation"`
		Readiness json.RawMessage `json:"readiness"` // of Gatekeeper's own processes

		// Of a SyncSet.
		GVKs []gvk `json:"gvks"`
	} `json:"spec"`
}

// ReadSettings reads a Config or a SyncSet.
func ReadSettings(object map[string]any) (*Settings, error) {
	var o settingsObject
	if err := tree.Decode(object, &o, strings.ToLower(fmt.Sprint(object["kind"]))); err != nil {
		return nil, err
	}
	kinds, at := o.Spec.GVKs, "spec.gvks"
	if o.Kind == ConfigKind {
		if err := o.check(); err != nil {
			return nil, err
		}
		kinds, at = o.Spec.Sync.SyncOnly, "spec.sync.syncOnly"
	}
	out := &Settings{}
	for i, k := range kinds {
		if k.Kind == "" || k.Version == "" {
			return nil, fmt.Errorf("%s[%d]: expected a group, a version and a kind, found %q, %q and %q", at, i, k.Group, k.Version, k.Kind)
		}
		out.Sync = append(out.Sync, SyncKind{Groups: []string{k.Group}, Versions: []string{k.Version}, Kinds: []string{k.Kind}})
	}
	for _, m := range o.Spec.Match {
		judged, changed := processes(m.Processes)
		if judged {
			out.Excluded = append(out.Excluded, m.ExcludedNamespaces...)
		}
		if changed {
			out.Unchanged = append(out.Unchanged, m.ExcludedNamespaces...)
		}
	}
	return out, nil
}

// check refuses what a Config says that cannot be kept.
func (o *settingsObject) check() error {
	if o.Metadata.Name != configName || o.Metadata.Namespace != configNamespace {
		return fmt.Errorf("metadata: there is one Config, %q in namespace %s", configName, configNamespace)
	}
	if len(o.Spec.GVKs) > 0 {
		return errors.New("spec.gvks: a Config has none; say spec.sync.syncOnly")
	}
	if len(o.Spec.Validation.Traces) > 0 {
		return errors.New("spec.validation.traces: requests are not traced by it here; see `wasmplane trace`")
	}
	for i, m := range o.Spec.Match {
		if judged, changed := processes(m.Processes); !judged && !changed || !judged &&
			(slices.Contains(m.Processes, "webhook") || slices.Contains(m.Processes, "audit")) {
			return fmt.Errorf("spec.match[%d].processes: expected *, webhook and audit, or mutation-webhook, found %q: a namespace is left out of webhook and audit, or of none of the two", i, m.Processes)
		}
		if err := globs(m.ExcludedNamespaces); err != nil {
			return fmt.Errorf("spec.match[%d].excludedNamespaces: %w", i, err)
		}
	}
	return nil
}

// processes says whether constraints and mutators are among the processes of which a namespace is left out.
func processes(list []string) (judged, changed bool) {
	has := func(name string) bool { return slices.Contains(list, name) }
	return has("*") || has("webhook") && has("audit"), has("*") || has("mutation-webhook")
}

// Changes says whether mutators change objects of a namespace.
func (s *Settings) Changes(namespace string) bool {
	return namespace == "" || !anyMatches(s.Unchanged, namespace)
}

// globs refuses patterns with a star in the middle.
func globs(list []string) error {
	for _, p := range list {
		if strings.Contains(strings.Trim(p, "*"), "*") {
			return fmt.Errorf("%q: a star stands at the beginning or at the end", p)
		}
	}
	return nil
}

// excluding is a constraint's match without some namespaces.
func excluding(match map[string]any, namespaces []string) map[string]any {
	if len(namespaces) == 0 {
		return match
	}
	out := map[string]any{}
	for k, v := range match {
		out[k] = v
	}
	conditions, _ := match["conditions"].([]any)
	out["conditions"] = append(slices.Clone(conditions), map[string]any{
		"name": "config-excluded-namespaces", "expression": namespace + ` == "" || !(` + anyGlob(namespace, namespaces) + `)`,
	})
	return out
}
