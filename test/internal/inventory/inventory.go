// SPDX-License-Identifier: Apache-2.0

// Package inventory writes down all objects of a cluster, of every kind that its API serves, and
// says later which of them are lost, are others under the same name, or have changed.
package inventory

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// Inventory is every object's content by "RESOURCE.GROUP NAMESPACE/NAME", without its status and without
// what each write changes.
type Inventory map[string]map[string]any

// passing are resources whose objects come, go and change by themselves.
var passing = map[string]bool{
	"events": true, "events.events.k8s.io": true, "leases.coordination.k8s.io": true, "componentstatuses": true,
	"leasecandidates.coordination.k8s.io": true, "storageversionmigrations.storagemigration.k8s.io": true,
}

// Take lists all objects, each kind in the version that the API prefers.
func Take(ctx context.Context, cfg *rest.Config) (Inventory, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.QPS = -1
	found, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return nil, err
	}
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	groups, err := found.ServerPreferredResources()
	if err != nil {
		return nil, fmt.Errorf("ask which resources there are: %w", err)
	}
	all := Inventory{}
	for _, group := range groups {
		version, err := schema.ParseGroupVersion(group.GroupVersion)
		if err != nil {
			return nil, err
		}
		for i := range group.APIResources {
			r := &group.APIResources[i]
			name := schema.GroupResource{Group: version.Group, Resource: r.Name}.String()
			if strings.Contains(r.Name, "/") || passing[name] || !slices.Contains(r.Verbs, "list") || !slices.Contains(r.Verbs, "create") {
				continue // what cannot be created is not stored
			}
			if err := all.list(ctx, client.Resource(version.WithResource(r.Name)), name); err != nil {
				return nil, fmt.Errorf("list %s: %w", name, err)
			}
		}
	}
	return all, nil
}

func (all Inventory) list(ctx context.Context, of dynamic.ResourceInterface, name string) error {
	page, err := of.List(ctx, metav1.ListOptions{})
	for ; apierrors.IsServiceUnavailable(err) && ctx.Err() == nil; page, err = of.List(ctx, metav1.ListOptions{}) {
		select { // an aggregated API whose server has just been started
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
	if err != nil {
		return err
	}
	for i := range page.Items {
		o := &page.Items[i]
		if o.GetUID() == "" || o.GetNamespace() == metav1.NamespaceDefault && o.GetName() == "kubernetes" {
			continue // it is made for the answer; or it says where servers are just now
		}
		if ofRelease(o) {
			all[name+" "+o.GetNamespace()+"/"+o.GetName()] = map[string]any{"metadata": map[string]any{"uid": string(o.GetUID())}}
			continue
		}
		unstructured.RemoveNestedField(o.Object, "status")
		for _, field := range []string{"managedFields", "resourceVersion", "generation"} {
			unstructured.RemoveNestedField(o.Object, "metadata", field)
		}
		// As it is read from a file: numbers are of one type.
		text, err := json.Marshal(o.Object)
		if err != nil {
			return err
		}
		var plain map[string]any
		if err := json.Unmarshal(text, &plain); err != nil {
			return err
		}
		delete(plain, "apiVersion") // another one may be preferred later
		all[name+" "+o.GetNamespace()+"/"+o.GetName()] = plain
	}
	return nil
}

// ofRelease tells whether servers bring an object up to date by themselves: what is in it is each release's own.
func ofRelease(o *unstructured.Unstructured) bool {
	labels := o.GetLabels()
	if _, ok := labels["kubernetes.io/bootstrapping"]; ok || strings.HasPrefix(labels[discoveryv1.LabelManagedBy], "wasmplane") {
		return true
	}
	return slices.ContainsFunc(o.GetManagedFields(), func(m metav1.ManagedFieldsEntry) bool { return m.Manager == "wasmplane-bootstrap" })
}

// ErrDiffers means that something is lost or changed.
var ErrDiffers = errors.New("not all is as it was")

// Compare fails with a line for each object that is not there any more, or of which a field is. What was added, and
// fields that were, are no difference.
func (all Inventory) Compare(later Inventory) error {
	var found []error
	for _, name := range slices.Sorted(maps.Keys(all)) {
		is, there := later[name]
		if !there {
			found = append(found, fmt.Errorf("%s is lost", name))
			continue
		}
		for _, what := range lacks(all[name], is, "") {
			found = append(found, fmt.Errorf("%s: %s", name, what))
		}
	}
	if len(found) == 0 {
		return nil
	}
	return fmt.Errorf("%w:\n%w", ErrDiffers, errors.Join(found...))
}

// lacks are the fields of a value that another one does not have, or has differently.
func lacks(was, is any, path string) (found []string) {
	switch was := was.(type) {
	case map[string]any:
		now, ok := is.(map[string]any)
		if !ok {
			return []string{differs(path, was, is)}
		}
		for _, key := range slices.Sorted(maps.Keys(was)) {
			if value, there := now[key]; there {
				found = append(found, lacks(was[key], value, path+"."+key)...)
			} else {
				found = append(found, differs(path+"."+key, was[key], nil))
			}
		}
		return found
	case []any:
		now, ok := is.([]any)
		if !ok || len(now) != len(was) {
			return []string{differs(path, was, is)}
		}
		for i := range was {
			found = append(found, lacks(was[i], now[i], fmt.Sprintf("%s[%d]", path, i))...)
		}
		return found
	default:
		if was != is {
			return []string{differs(path, was, is)}
		}
		return nil
	}
}

func differs(path string, was, is any) string {
	short := func(v any) string {
		text, err := json.Marshal(v)
		if err != nil {
			return err.Error()
		}
		const enough = 300
		if len(text) > enough {
			return string(text[:enough]) + "..."
		}
		return string(text)
	}
	return fmt.Sprintf("%s was %s and is %s", path, short(was), short(is))
}
