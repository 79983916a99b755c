// SPDX-License-Identifier: Apache-2.0

package reconcilehost

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/wasmplane/wasmplane/core/controllers"
)

// view is what one reconciler sees of an informer: the objects of its selector.
type view struct {
	*shared
	selector labels.Selector
}

func (v *view) shows(obj metav1.Object) bool {
	return v.selector.Empty() || v.selector.Matches(labels.Set(obj.GetLabels()))
}

// listen has changed called with each change of what the view shows. An object whose labels
// change appears or goes.
func (v *view) listen(changed func(old, current metav1.Object)) (stop func()) {
	return v.shared.listen(&listener{func(old, current metav1.Object) {
		if old != nil && !v.shows(old) {
			old = nil
		}
		if current != nil && !v.shows(current) {
			current = nil
		}
		if old != nil || current != nil {
			changed(old, current)
		}
	}})
}

// get is the object of a key, or nil.
func (v *view) get(key controllers.Key) *unstructured.Unstructured {
	obj, ok, err := v.GetIndexer().GetByKey(key.String())
	if err != nil || !ok {
		return nil
	}
	if u, ok := obj.(*unstructured.Unstructured); ok && v.shows(u) {
		return u
	}
	return nil
}

// all are the objects that the view shows.
func (v *view) all() []*unstructured.Unstructured {
	var list []*unstructured.Unstructured
	for _, obj := range v.GetIndexer().List() {
		if u, ok := obj.(*unstructured.Unstructured); ok && v.shows(u) {
			list = append(list, u)
		}
	}
	return list
}

// controlled are those that the owner controls.
func (v *view) controlled(owner metav1.Object) ([]*unstructured.Unstructured, error) {
	list, err := controllers.Controlled[*unstructured.Unstructured](v.GetIndexer(), owner, false)
	if err != nil || v.selector.Empty() {
		return list, err
	}
	return controllers.Filter(list, func(u *unstructured.Unstructured) bool { return v.shows(u) }), nil
}
