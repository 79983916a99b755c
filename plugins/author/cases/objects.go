// SPDX-License-Identifier: Apache-2.0

package cases

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/plugins/hostfn"
)

// objects are what a plugin's host functions read in a test: the ones that the
// case lists, and no others. Kinds that the case has no object of are served too, and empty.
type objects []*unstructured.Unstructured

func newObjects(trees []map[string]any) (objects, error) {
	var out objects
	for i, t := range trees {
		u := &unstructured.Unstructured{Object: t}
		if u.GetAPIVersion() == "" || u.GetKind() == "" || u.GetName() == "" {
			return nil, fmt.Errorf("objects[%d] needs apiVersion, kind and metadata.name", i)
		}
		out = append(out, u)
	}
	return out, nil
}

// clusterScoped are the built-in kinds that have no namespace.
var clusterScoped = map[string]bool{
	"Namespace": true, "Node": true, "PersistentVolume": true, "StorageClass": true, "ClusterRole": true, "ClusterRoleBinding": true,
	"IngressClass": true, "PriorityClass": true, "RuntimeClass": true, "CustomResourceDefinition": true,
}

// Find implements hostfn.Objects: names are guessed, as there is no server to ask.
func (o objects) Find(_ context.Context, gv schema.GroupVersion, kind, resource string) (hostfn.Resource, error) {
	found := func(gvk schema.GroupVersionKind) hostfn.Resource {
		plural, _ := meta.UnsafeGuessKindToResource(gvk)
		namespaced := !clusterScoped[gvk.Kind]
		for _, u := range o {
			if u.GroupVersionKind() == gvk && u.GetNamespace() != "" {
				namespaced = true
			}
		}
		return hostfn.Resource{GroupVersionResource: plural, Kind: gvk.Kind, Namespaced: namespaced}
	}
	if kind != "" {
		return found(gv.WithKind(kind)), nil
	}
	for _, u := range o {
		if r := found(u.GroupVersionKind()); r.GroupVersion() == gv && r.Resource == resource {
			return r, nil
		}
	}
	for name := range clusterScoped {
		if r := found(gv.WithKind(name)); r.Resource == resource {
			return r, nil
		}
	}
	// None is there: whatever it is called, there are none.
	return hostfn.Resource{GroupVersionResource: gv.WithResource(resource), Kind: resource, Namespaced: true}, nil
}

const caseRevision = "1"

// Get implements hostfn.Objects.
func (o objects) Get(_ context.Context, r hostfn.Resource, namespace, name string, _ bool) (runtime.Object, string, error) {
	for _, u := range o {
		if u.GroupVersionKind() == r.GVK() && u.GetName() == name && (!r.Namespaced || u.GetNamespace() == namespace) {
			return u, caseRevision, nil
		}
	}
	return nil, caseRevision, nil
}

// List implements hostfn.Objects.
func (o objects) List(_ context.Context, r hostfn.Resource, s hostfn.Selection) (hostfn.Page, error) {
	page := hostfn.Page{ResourceVersion: caseRevision}
	for _, u := range o {
		if u.GroupVersionKind() != r.GVK() || s.Namespace != "" && u.GetNamespace() != s.Namespace {
			continue
		}
		if s.Labels != nil && !s.Labels.Matches(labels.Set(u.GetLabels())) {
			continue
		}
		if s.Fields != nil && !s.Fields.Matches(fields.Set{"metadata.name": u.GetName(), "metadata.namespace": u.GetNamespace()}) {
			continue
		}
		if s.Limit > 0 && len(page.Items) == s.Limit {
			page.More = true
			break
		}
		page.Items = append(page.Items, u)
	}
	return page, nil
}

// namespaces answers the labels of a namespace among the objects; where the case
// has none of them, every namespace is there.
func (o objects) namespaces(_ context.Context, name string) (map[string]string, bool) {
	listed := false
	for _, u := range o {
		if u.GetKind() == "Namespace" && u.GetAPIVersion() == "v1" {
			if listed = true; u.GetName() == name {
				return u.GetLabels(), true
			}
		}
	}
	return nil, !listed
}

var _ hostfn.Objects = objects(nil)
