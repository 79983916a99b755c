// SPDX-License-Identifier: Apache-2.0

package wasmplane

import "errors"

// Watch names a kind of object that a reconciler reads.
type Watch struct {
	Group, Version, Resource, Kind string
	Selector                       string // label selector; "" = everything
}

// Reconciler is a hook at reconcile. It is given an object and what belongs to
// it, and answers what there should be; the host does the watching, writing and retrying.
type Reconciler struct {
	Primary Watch
	// Owned kinds: objects that this reconciler made for the primary.
	Owned []Watch
	// Fields of the snapshot that Plan reads (namespace, name, primary.spec.replicas,
	// owned[*].metadata.name); none = all of it.
	Fields []string
	Plan   func(in Input, out *Plan) error
}

// Plan is what a reconciler wants. It says what there should be, not what to
// change: it is carried out again and again.
type Plan struct {
	apply, patches, remove, conditions, events []Object
	status                                     Object
	requeue                                    float64
}

// Target names an object. Without a Namespace it is in the primary's; with a UID, an
// object of the same name that is another one is left alone.
type Target struct {
	APIVersion, Kind, Namespace, Name, UID string
	Subresource                            string // of a patch: "status", "scale"; "" = the object
	// ResourceVersion, of a deletion: in another state the object is not deleted, and the host calls again.
	ResourceVersion string
	// Propagation, of a deletion: "Background" (the default), "Foreground" or "Orphan".
	Propagation string
}

func (t Target) object() Object {
	o := Object{"apiVersion": t.APIVersion, "kind": t.Kind, "name": t.Name}
	for key, value := range map[string]string{
		"namespace": t.Namespace, "uid": t.UID, "subresource": t.Subresource,
		"resourceVersion": t.ResourceVersion, "propagationPolicy": t.Propagation,
	} {
		if value != "" {
			o[key] = value
		}
	}
	return o
}

// Apply makes an object be as given (server-side apply): what it names is set,
// what others have set is left alone. It belongs to the primary, and goes with it.
func (p *Plan) Apply(o Object) { p.apply = append(p.apply, o) }

// Patch changes an object that is not the plugin's to apply as a whole. What is
// added to the patch is a JSON patch of RFC 6902, which the API server applies.
func (p *Plan) Patch(t Target) *Patch {
	ops := &Patch{}
	o := t.object()
	o["patch"] = ops
	p.patches = append(p.patches, o)
	return ops
}

// DeleteTarget removes an object, with the UID and ResourceVersion where they are given.
func (p *Plan) DeleteTarget(t Target) { p.remove = append(p.remove, t.object()) }

// Delete removes an object.
func (p *Plan) Delete(apiVersion, kind, namespace, name string) {
	p.remove = append(p.remove, Object{"apiVersion": apiVersion, "kind": kind, "namespace": namespace, "name": name})
}

// Status sets fields of the primary's status.
func (p *Plan) Status(status Object) { p.status = status }

// Condition sets a condition of the primary's status: "True", "False" or "Unknown".
func (p *Plan) Condition(kind, status, reason, message string) {
	p.conditions = append(p.conditions, Object{"type": kind, "status": status, "reason": reason, "message": message})
}

// Event records an event on the primary: "Normal" or "Warning".
func (p *Plan) Event(kind, reason, message string) {
	p.events = append(p.events, Object{"type": kind, "reason": reason, "message": message})
}

// Requeue asks to be called again after some seconds, though nothing changed.
func (p *Plan) Requeue(seconds float64) { p.requeue = seconds }

func (r *Reconciler) describe(h Object) {
	watch := func(w Watch) Object {
		return Object{"group": w.Group, "version": w.Version, "resource": w.Resource, "kind": w.Kind, "selector": w.Selector}
	}
	var owned []Object
	for _, w := range r.Owned {
		owned = append(owned, watch(w))
	}
	h["primary"], h["owned"] = watch(r.Primary), owned
}

func (r *Reconciler) run(input []byte) ([]byte, error) {
	if r.Plan == nil {
		return nil, errors.New("the reconciler has no plan")
	}
	var p Plan
	if err := r.Plan(newInput(&r.Fields, input), &p); err != nil {
		return nil, err
	}
	out := Object{"apply": p.apply, "delete": p.remove, "conditions": p.conditions, "events": p.events, "requeueSeconds": p.requeue}
	if len(p.patches) > 0 {
		out["patch"] = p.patches
	}
	if p.status != nil {
		out["status"] = p.status
	}
	return out.append(nil), nil
}
