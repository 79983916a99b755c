// SPDX-License-Identifier: Apache-2.0

package apiobject

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// resting is a Plugin as the informer keeps it: what is looked at every second, and the
// rest as JSON. Most plugins are the same for days, and a tree takes ten times as much.
// It has no managed fields, which nobody here reads; an update without them leaves them as they are.
type resting struct {
	metav1.ObjectMeta // without what is not needed to tell whether there is something new

	text string
}

// toRest is the informer's transform.
func toRest(obj any) (any, error) {
	o, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return obj, nil // it rests already, or has gone unseen
	}
	o.SetManagedFields(nil)
	text, err := o.MarshalJSON()
	if err != nil {
		return nil, fmt.Errorf("keep the plugin %s: %w", nameOf(o), err)
	}
	r := &resting{text: string(text)}
	// The strings are copies: those of the tree would keep more of it than themselves.
	r.Namespace, r.Name = strings.Clone(o.GetNamespace()), strings.Clone(o.GetName())
	r.UID, r.Generation, r.ResourceVersion = o.GetUID(), o.GetGeneration(), strings.Clone(o.GetResourceVersion())
	if mirrored(o) {
		r.Labels = map[string]string{OriginLabel: FromFile}
	}
	if writer, ok := o.GetAnnotations()[WriterAnnotation]; ok {
		r.Annotations = map[string]string{WriterAnnotation: writer}
	}
	return r, nil
}

// wake is the whole object, which is the caller's.
func (r *resting) wake() (*unstructured.Unstructured, error) {
	o := &unstructured.Unstructured{}
	if err := o.UnmarshalJSON([]byte(r.text)); err != nil {
		return nil, fmt.Errorf("read the plugin %s: %w", nameOf(r), err)
	}
	return o, nil
}

func restingOf(obj any) *resting {
	r, _ := obj.(*resting)
	return r
}

// objects are the Plugins, by name.
func (c *Controller) objects() []*resting {
	byName := map[string]*resting{}
	for _, obj := range c.informer.GetStore().List() {
		if r := restingOf(obj); r != nil {
			byName[nameOf(r)] = r
		}
	}
	out := make([]*resting, 0, len(byName))
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		out = append(out, byName[name])
	}
	return out
}

// awake are the whole objects.
func (c *Controller) awake() ([]*unstructured.Unstructured, error) {
	var out []*unstructured.Unstructured
	for _, r := range c.objects() {
		o, err := r.wake()
		if err != nil {
			return nil, err
		}
		out = append(out, o)
	}
	return out, nil
}
