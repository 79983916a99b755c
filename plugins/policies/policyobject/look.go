// SPDX-License-Identifier: Apache-2.0

package policyobject

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/wasmplane/wasmplane/plugins/apiobject"
	"github.com/wasmplane/wasmplane/plugins/apiobject/plugindefinition"
	"github.com/wasmplane/wasmplane/plugins/policies"
	"github.com/wasmplane/wasmplane/plugins/policies/admissionpolicy"
	"github.com/wasmplane/wasmplane/plugins/policies/gatekeeper"
)

// found is what there is to do.
type found struct {
	plugins []policies.Plugin
	// kept are policies whose Plugins stay as they are, because nothing better can be made
	// of them now, by UID.
	kept map[string]bool
	// whole: all policies are known, so that a Plugin without one has lost it.
	whole bool
}

// look compares what there is with what there should be, and brings it closer.
func (c *Controller) look(ctx context.Context) {
	f := &found{kept: map[string]bool{}, whole: true}
	c.templates(ctx, f)
	c.mutation(ctx)
	c.expansion(ctx)
	c.kubewarden(ctx, f)
	for _, r := range []schema.GroupVersionResource{plugindefinition.Resource(), plugindefinition.TenantResource()} {
		if c.follows[r] != nil {
			c.plugins(ctx, r, f)
		}
	}
	if slices.Contains(c.cfg.Enabled, Kyverno) {
		c.kyverno(ctx)
	}
}

// constraintsOf is the resource of a template's constraints.
func constraintsOf(kind string) schema.GroupVersionResource {
	return schema.GroupVersionResource{
		Group: gatekeeper.ConstraintGroup, Version: gatekeeper.ConstraintVersion,
		Resource: strings.ToLower(kind),
	}
}

// templates installs the kinds of all templates, and finds their constraints.
func (c *Controller) templates(ctx context.Context, f *found) {
	list, ok := c.objects(Templates())
	settings, known := c.settings(ctx)
	if !ok || !known {
		f.whole = f.whole && c.follows[Templates()] == nil
		return
	}
	there := map[string]bool{}
	for _, o := range list {
		if o.GetDeletionTimestamp() != nil {
			continue
		}
		there[o.GetName()] = true
		k := c.template(ctx, o)
		c.report(ctx, o, "read the template", k.err)
		c.report(ctx, o, "write the status", c.writeStatus(ctx, Templates(), o, templateStatus(o, k)))
		if k.template != nil && k.installed {
			c.constraints(ctx, k, settings, f)
		} else {
			f.whole = false // it may have constraints, which nobody knows
		}
	}
	for name, k := range c.kinds {
		if !there[name] {
			if k.template != nil {
				c.leave(constraintsOf(k.template.Kind))
			}
			delete(c.kinds, name)
		}
	}
}

// template reads a template and installs its kind, once for each of its generations.
func (c *Controller) template(ctx context.Context, o *unstructured.Unstructured) *known {
	k := c.kinds[o.GetName()]
	if k == nil || k.uid != string(o.GetUID()) || k.generation != o.GetGeneration() {
		fresh := &known{generation: o.GetGeneration(), uid: string(o.GetUID())}
		if fresh.template, fresh.err = gatekeeper.ReadTemplate(o.Object); fresh.err != nil {
			if fresh.refused = true; k != nil {
				fresh.template, fresh.installed = k.template, k.installed // the one before stays in force
			}
		}
		k = fresh
		c.kinds[o.GetName()] = k
	}
	if k.refused || k.installed {
		return k
	}
	d := k.template.Definition()
	yes := true
	d.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: Templates().GroupVersion().String(), Kind: gatekeeper.TemplateKind, Name: o.GetName(), UID: o.GetUID(), Controller: &yes,
	}}
	k.err = c.cfg.Install(ctx, d)
	if k.installed = k.err == nil; k.installed {
		c.follow(ctx, constraintsOf(k.template.Kind))
	}
	return k
}

// settings are what is said about all constraints; ok says that all of it is known.
func (c *Controller) settings(ctx context.Context) (out gatekeeper.Settings, ok bool) {
	ok = true
	for _, r := range Settings() {
		list, all := c.objects(r)
		ok = ok && all
		for _, o := range list {
			if o.GetDeletionTimestamp() != nil {
				continue
			}
			more, err := gatekeeper.ReadSettings(o.Object)
			if err == nil {
				out.Add(more)
			}
			c.report(ctx, o, "read what it says of all constraints", err)
		}
	}
	return out, ok
}

// constraints finds those of a template.
func (c *Controller) constraints(ctx context.Context, k *known, settings gatekeeper.Settings, f *found) {
	r := constraintsOf(k.template.Kind)
	c.follow(ctx, r)
	list, ok := c.objects(r)
	f.whole = f.whole && ok
	for _, o := range list {
		p, err := policies.Constraint(k.template, o, c, settings)
		c.add(ctx, f, o, p, err)
		c.report(ctx, o, "write the status", c.writeStatus(ctx, r, o, constraintStatus(o, c.pluginOf(p), err)))
	}
}

// kubewarden finds the policies of Kubewarden.
func (c *Controller) kubewarden(ctx context.Context, f *found) {
	if !slices.Contains(c.cfg.Enabled, Kubewarden) {
		return
	}
	for _, kind := range admissionpolicy.Kinds() {
		r := KubewardenResource(kind)
		list, ok := c.objects(r)
		f.whole = f.whole && ok
		for _, o := range list {
			p, err := policies.Kubewarden(o, c)
			c.add(ctx, f, o, p, err)
			c.report(ctx, o, "write the status", c.writeStatus(ctx, r, o, policyStatus(o, c.pluginOf(p), err)))
		}
	}
}

// add notes a policy with the plugin that was made of it.
func (c *Controller) add(ctx context.Context, f *found, o *unstructured.Unstructured, p *policies.Plugin, err error) {
	c.report(ctx, o, "make a plugin of it", err)
	switch {
	case o.GetDeletionTimestamp() != nil:
	case err != nil:
		f.kept[string(o.GetUID())] = true
	default:
		f.plugins = append(f.plugins, *p)
	}
}

// pluginOf is the Plugin that there is for a policy; nil = none.
func (c *Controller) pluginOf(p *policies.Plugin) *unstructured.Unstructured {
	if p == nil {
		return nil
	}
	r := plugindefinition.Resource()
	if p.Namespace != "" {
		r = plugindefinition.TenantResource()
	}
	f := c.follows[r]
	if f == nil {
		return nil
	}
	key := p.Name
	if p.Namespace != "" {
		key = p.Namespace + "/" + p.Name
	}
	found, _, err := f.informer.GetStore().GetByKey(key)
	o, is := found.(*unstructured.Unstructured)
	if err != nil || !is {
		return nil
	}
	return o
}

// plugins makes, changes and takes away the Plugins of policies.
func (c *Controller) plugins(ctx context.Context, r schema.GroupVersionResource, f *found) {
	there, ok := c.objects(r)
	if !ok {
		return
	}
	wanted := map[string]bool{}
	for i := range f.plugins {
		p := &f.plugins[i]
		if (p.Namespace != "") != (r == plugindefinition.TenantResource()) {
			continue
		}
		wanted[p.Namespace+"/"+p.Name] = true
		c.report(ctx, p.Policy, "write its plugin", c.put(ctx, r, p, c.pluginOf(p)))
	}
	if !f.whole {
		return
	}
	for _, o := range there {
		if !slices.Contains(c.cfg.Enabled, o.GetLabels()[apiobject.PolicyLabel]) || wanted[o.GetNamespace()+"/"+o.GetName()] || f.kept[owner(o)] {
			continue
		}
		uid := o.GetUID()
		err := c.cfg.Client.Resource(r).Namespace(o.GetNamespace()).Delete(ctx, o.GetName(),
			metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
		if apierrors.IsNotFound(err) {
			err = nil
		}
		c.report(ctx, o, "delete the plugin of a policy that is gone", err)
	}
}

// owner is the policy of which a Plugin was made, by its UID.
func owner(o *unstructured.Unstructured) string {
	for _, ref := range o.GetOwnerReferences() {
		return string(ref.UID)
	}
	return ""
}

// put makes a Plugin, or brings it up to its policy.
func (c *Controller) put(ctx context.Context, r schema.GroupVersionResource, p *policies.Plugin, now *unstructured.Unstructured) error {
	want, err := completed(p)
	if err != nil {
		return err
	}
	client := c.cfg.Client.Resource(r).Namespace(p.Namespace)
	if now == nil {
		_, err := client.Create(ctx, want, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil // of a moment ago
		}
		return err
	}
	if now.GetLabels()[apiobject.PolicyLabel] == "" {
		return fmt.Errorf("a %s named %s is there, and was not made of a policy: delete one of the two", now.GetKind(), now.GetName())
	}
	if of := owner(now); of != string(p.Policy.GetUID()) {
		return fmt.Errorf("the %s %s was made of another policy, which is going away", now.GetKind(), now.GetName())
	}
	if equality.Semantic.DeepEqual(now.Object["spec"], want.Object["spec"]) && sameNotes(now, want) {
		return nil
	}
	fresh := now.DeepCopy()
	fresh.Object["spec"] = want.Object["spec"]
	annotations := maps.Clone(fresh.GetAnnotations())
	if annotations == nil {
		annotations = map[string]string{}
	}
	for _, key := range notes {
		delete(annotations, key)
	}
	maps.Copy(annotations, want.GetAnnotations())
	fresh.SetAnnotations(annotations)
	_, err = client.Update(ctx, fresh, metav1.UpdateOptions{})
	if apierrors.IsConflict(err) {
		return nil // its change is going to be seen
	}
	return err
}

// notes are the annotations that a Plugin has of its policy.
var notes = []string{apiobject.WriterAnnotation, policies.BackgroundAnnotation, policies.ActionAnnotation}

func sameNotes(a, b *unstructured.Unstructured) bool {
	return !slices.ContainsFunc(notes, func(key string) bool { return a.GetAnnotations()[key] != b.GetAnnotations()[key] })
}

// completed is the Plugin of a policy as the API would give it back.
func completed(p *policies.Plugin) (*unstructured.Unstructured, error) {
	o := object(p)
	if o.GetAnnotations()[apiobject.WriterAnnotation] == "" {
		return nil, errors.New("nobody knows who wrote the policy: write it again")
	}
	text, err := o.MarshalJSON()
	if err != nil {
		return nil, err
	}
	tree := map[string]any{}
	if err := utiljson.Unmarshal(text, &tree); err != nil { // whole numbers stay whole
		return nil, err
	}
	out := &unstructured.Unstructured{Object: tree}
	yes := true
	out.SetOwnerReferences([]metav1.OwnerReference{{
		APIVersion: p.Policy.GetAPIVersion(), Kind: p.Policy.GetKind(), Name: p.Policy.GetName(), UID: p.Policy.GetUID(), Controller: &yes,
	}})
	return out, nil
}
