// SPDX-License-Identifier: Apache-2.0

// Package policies makes plugins of policies that were written for other projects, from the
// files and objects in which they were written. The folders below read one project's each.
package policies

import (
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/policies/admissionpolicy"
	"github.com/wasmplane/wasmplane/plugins/policies/gatekeeper"
	"github.com/wasmplane/wasmplane/plugins/policies/tree"
)

// Plugin is the plugin that a policy asks for.
type Plugin struct {
	// Name of the plugin, and the namespace to which it belongs; "" = the cluster's.
	Name, Namespace string
	// Entry is its entry's tree, without the name.
	Entry map[string]any
	// Annotations of its object, for the check of stored objects.
	Annotations map[string]string
	// Policy is where it comes from.
	Policy *unstructured.Unstructured
}

// Error is what is wrong with one policy.
type Error struct {
	Policy *unstructured.Unstructured
	Err    error
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s %s: %v", e.Policy.GetKind(), e.Policy.GetName(), e.Err)
}

// Unwrap is what is wrong.
func (e *Error) Unwrap() error { return e.Err }

// Translate makes plugins of the policies among some objects. What is no policy is
// returned as the rest. All that is wrong is reported, each with its policy, as an *Error.
func Translate(objects []*unstructured.Unstructured, m tree.Mapper) (plugins []Plugin, rest []*unstructured.Unstructured, err error) {
	var errs []error
	templates := map[string]*gatekeeper.Template{} // by the kind of their constraints
	known := map[string]bool{}                     // kinds of templates, read or not
	var settings gatekeeper.Settings
	for _, o := range objects {
		if isSettings(o) {
			more, err := gatekeeper.ReadSettings(o.Object)
			if err != nil {
				errs = append(errs, &Error{o, err})
				continue
			}
			settings.Add(more)
		}
		if groupOf(o) != gatekeeper.TemplateGroup || o.GetKind() != gatekeeper.TemplateKind {
			continue
		}
		kind, _, _ := unstructured.NestedString(o.Object, "spec", "crd", "spec", "names", "kind")
		known[kind] = true
		t, err := gatekeeper.ReadTemplate(o.Object)
		if err != nil {
			errs = append(errs, &Error{o, err})
			continue
		}
		templates[t.Kind] = t
	}
	for _, o := range objects {
		switch group, kind := groupOf(o), o.GetKind(); {
		case group == gatekeeper.TemplateGroup && kind == gatekeeper.TemplateKind, isSettings(o):
		case group == gatekeeper.ConstraintGroup && templates[kind] != nil:
			p, err := Constraint(templates[kind], o, m, settings)
			if err != nil {
				errs = append(errs, &Error{o, err})
				continue
			}
			plugins = append(plugins, *p)
		case group == gatekeeper.ConstraintGroup:
			if !known[kind] {
				errs = append(errs, &Error{o, fmt.Errorf("its %s is missing", gatekeeper.TemplateKind)})
			}
		case group == admissionpolicy.Group && slices.Contains(admissionpolicy.Kinds(), kind):
			p, err := Kubewarden(o, m)
			if err != nil {
				errs = append(errs, &Error{o, err})
				continue
			}
			plugins = append(plugins, *p)
		default:
			rest = append(rest, o)
		}
	}
	return plugins, rest, errors.Join(errs...)
}

func groupOf(o *unstructured.Unstructured) string { return o.GroupVersionKind().Group }

// isSettings says that an object is about all constraints.
func isSettings(o *unstructured.Unstructured) bool {
	group, kind := groupOf(o), o.GetKind()
	return group == gatekeeper.ConfigGroup && kind == gatekeeper.ConfigKind ||
		group == gatekeeper.SyncSetGroup && kind == gatekeeper.SyncSetKind
}

// Constraint is the plugin of a constraint of a template. A template that says at which kinds it looks looks
// at no others.
func Constraint(t *gatekeeper.Template, o *unstructured.Unstructured, m tree.Mapper, settings gatekeeper.Settings) (*Plugin, error) {
	if len(t.Sync) > 0 {
		settings.Sync = nil
	}
	if err := t.Validate(o.Object); err != nil {
		return nil, err
	}
	c, err := gatekeeper.ReadConstraint(o.Object)
	if err != nil {
		return nil, err
	}
	entry, err := t.Entry(c, m, settings)
	if err != nil {
		return nil, err
	}
	return &Plugin{Name: tree.PluginName(o.GetKind(), o.GetName()), Entry: entry, Policy: o, Annotations: auditNotes(t, c)}, nil
}

// Annotations of what is made of a policy.
const (
	// BackgroundAnnotation is "false" where a policy does not want to judge what is stored.
	BackgroundAnnotation = manifest.APIGroup + "/background"
	// ActionAnnotation is what violations by stored objects are called in reports (deny, warn, dryrun), where that is not
	// what the plugin's mode says.
	ActionAnnotation = manifest.APIGroup + "/audit-action"
)

// auditNotes say what becomes of a constraint at stored objects, where it is something else than at requests.
func auditNotes(t *gatekeeper.Template, c *gatekeeper.Constraint) map[string]string {
	switch action := t.Action(c, gatekeeper.AtAudit); action {
	case t.Action(c, gatekeeper.AtRequests):
		if action != "" {
			return nil
		}
		fallthrough // nobody asks it but tests
	case "":
		return map[string]string{BackgroundAnnotation: "false"}
	default:
		return map[string]string{ActionAnnotation: action}
	}
}

// Kubewarden is the plugin of a policy of Kubewarden.
func Kubewarden(o *unstructured.Unstructured, m tree.Mapper) (*Plugin, error) {
	entry, err := admissionpolicy.Entry(o.Object, m)
	if err != nil {
		return nil, err
	}
	p := &Plugin{Name: tree.PluginName(o.GetKind(), o.GetName()), Entry: entry, Policy: o}
	if o.GetKind() == admissionpolicy.Policy || o.GetKind() == admissionpolicy.PolicyGroup {
		if p.Namespace = o.GetNamespace(); p.Namespace == "" {
			return nil, fmt.Errorf("metadata.namespace: a %s belongs to a namespace", o.GetKind())
		}
	}
	return p, nil
}

// Offline knows no cluster: it takes every kind to be served, by the name that kinds
// usually have.
type Offline struct{}

// Resource implements tree.Mapper.
func (Offline) Resource(k schema.GroupKind) (string, bool) {
	plural, _ := meta.UnsafeGuessKindToResource(k.WithVersion(""))
	return plural.Resource, true
}
