// SPDX-License-Identifier: Apache-2.0

// Package policyobject has other projects' policies as objects of the API: the definitions of
// their kinds, what is refused when one is written, and the controller that makes a Plugin of
// each, or the API's own policies in CEL of those that are in CEL.
package policyobject

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/plugins/apiobject"
	"github.com/wasmplane/wasmplane/plugins/apiobject/plugindefinition"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/policies"
	"github.com/wasmplane/wasmplane/plugins/policies/admissionpolicy"
	"github.com/wasmplane/wasmplane/plugins/policies/gatekeeper"
	"github.com/wasmplane/wasmplane/plugins/policies/gatekeeper/expansion"
	"github.com/wasmplane/wasmplane/plugins/policies/gatekeeper/externaldata"
	"github.com/wasmplane/wasmplane/plugins/policies/gatekeeper/mutation"
	"github.com/wasmplane/wasmplane/plugins/policies/kyverno"
	"github.com/wasmplane/wasmplane/plugins/rego"
	"github.com/wasmplane/wasmplane/plugins/rights"
)

// The projects, as the configuration names them.
const (
	Gatekeeper = "gatekeeper"
	Kubewarden = "kubewarden"
	Kyverno    = "kyverno"
)

// projects are whose kinds the API groups hold.
var projects = map[string]string{
	gatekeeper.TemplateGroup: Gatekeeper, gatekeeper.ConstraintGroup: Gatekeeper, admissionpolicy.Group: Kubewarden,
	gatekeeper.ConfigGroup: Gatekeeper, gatekeeper.SyncSetGroup: Gatekeeper, mutation.Group: Gatekeeper, expansion.Group: Gatekeeper,
	kyverno.Group: Kyverno, kyverno.GlobalGroup: Kyverno, externaldata.Group: Gatekeeper,
}

// Check implements apiobject.Policies.
type Check struct {
	// Enabled are the projects whose policies run here. Who wrote one is recorded for the
	// others too, so that nobody can say it of himself before they are enabled.
	Enabled []string
	Rules   apiobject.Rules
	// Compile compiles a policy's text within bounds.
	Compile func(context.Context, rego.Policy) error
}

// Handles implements apiobject.Policies.
func (c Check) Handles(r schema.GroupResource) bool { return projects[r.Group] != "" }

// Check implements apiobject.Policies.
func (c Check) Check(ctx context.Context, o *unstructured.Unstructured) (*manifest.Entry, []rights.Need, error) {
	group := o.GroupVersionKind().Group
	if !slices.Contains(c.Enabled, projects[group]) {
		return nil, nil, nil
	}
	switch group {
	case gatekeeper.ConstraintGroup:
		_, err := gatekeeper.ReadConstraint(o.Object)
		return nil, nil, err
	case gatekeeper.ConfigGroup, gatekeeper.SyncSetGroup:
		_, err := gatekeeper.ReadSettings(o.Object)
		return nil, nil, err
	case mutation.Group:
		m, err := mutation.Read(o.Object)
		if err != nil {
			return nil, nil, err
		}
		return nil, changing(m), nil
	case expansion.Group:
		t, err := expansion.Read(o.Object)
		if err != nil {
			return nil, nil, err
		}
		return nil, allowed("spec.applyTo", t.Kinds(), "get"), nil
	case externaldata.Group:
		if _, err := externaldata.Read(o.Object); err != nil {
			return nil, nil, err
		}
		return nil, []rights.Need{{Field: "spec.url", What: "send from the control plane's machines"}}, nil
	case gatekeeper.TemplateGroup:
		t, err := gatekeeper.ReadTemplate(o.Object)
		if err != nil {
			return nil, nil, err
		}
		if t.CEL != nil { // it was compiled already
			return nil, nil, nil
		}
		return nil, nil, c.Compile(ctx, t.Rego)
	case kyverno.GlobalGroup:
		if o.GetKind() != kyverno.GlobalKind { // a kind of Kyverno's that means nothing here
			return nil, nil, nil
		}
		needs, err := checkGlobal(o)
		return nil, needs, err
	case kyverno.Group:
		needs, err := checkKyverno(o)
		return nil, needs, err
	}
	p, err := policies.Kubewarden(o, policies.Offline{})
	if err != nil {
		return nil, nil, err
	}
	e, err := c.Rules.Entry(object(p))
	if err != nil {
		return nil, nil, fmt.Errorf("as a plugin: %w", err)
	}
	return &e, nil, nil
}

// object is the Plugin of a policy, written by whoever wrote the policy.
func object(p *policies.Plugin) *unstructured.Unstructured {
	kind := plugindefinition.Kind
	if p.Namespace != "" {
		kind = plugindefinition.TenantKind
	}
	o := &unstructured.Unstructured{Object: map[string]any{"spec": maps.Clone(p.Entry)}}
	o.SetAPIVersion(plugindefinition.Group + "/" + plugindefinition.Version)
	o.SetKind(kind)
	o.SetName(p.Name)
	o.SetNamespace(p.Namespace)
	o.SetLabels(map[string]string{apiobject.PolicyLabel: projects[p.Policy.GroupVersionKind().Group]})
	notes := maps.Clone(p.Annotations)
	if writer := p.Policy.GetAnnotations()[apiobject.WriterAnnotation]; writer != "" {
		if notes == nil {
			notes = map[string]string{}
		}
		notes[apiobject.WriterAnnotation] = writer
	}
	if len(notes) > 0 {
		o.SetAnnotations(notes)
	}
	return o
}
