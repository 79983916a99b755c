// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"errors"
	"fmt"
	"slices"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/wasmplane/wasmplane/plugins/policies"
	"github.com/wasmplane/wasmplane/plugins/policies/gatekeeper/expansion"
	"github.com/wasmplane/wasmplane/plugins/policies/gatekeeper/mutation"
	"github.com/wasmplane/wasmplane/plugins/policies/kyverno"
	"github.com/wasmplane/wasmplane/plugins/policies/policyobject"
)

// policiesInCEL makes objects of Kyverno's policies among some objects, and returns the others.
func policiesInCEL(objects []*unstructured.Unstructured, form string) (out []runtime.Object, rest []*unstructured.Unstructured, err error) {
	var errs []error
	for _, o := range objects {
		if o.GroupVersionKind().Group != kyverno.Group || !slices.Contains(kyverno.Kinds(), o.GetKind()) {
			rest = append(rest, o)
			continue
		}
		made, err := kyverno.Read(o.Object)
		if err == nil && form != asObjects {
			err = fmt.Errorf("it becomes objects of the API, not an entry: use --as %s", asObjects)
		}
		if err == nil {
			err = policyobject.Compiles(made, o.GetNamespace())
		}
		if err != nil {
			errs = append(errs, &policies.Error{Policy: o, Err: err})
			continue
		}
		if len(made.Uses) > 0 { // no policy of Kubernetes can hold it
			out = append(out, o)
			continue
		}
		out = append(out, made.All()...)
	}
	return out, rest, errors.Join(errs...)
}

// readByServers are objects that servers read themselves: those that kubectl applies as they are, where the
// configuration has policyKinds. What they say is checked.
func readByServers(objects []*unstructured.Unstructured, form string) (out []runtime.Object, rest []*unstructured.Unstructured, err error) {
	var errs []error
	for _, o := range objects {
		var err error
		switch o.GroupVersionKind().Group {
		case mutation.Group:
			_, err = mutation.Read(o.Object)
		case expansion.Group:
			_, err = expansion.Read(o.Object)
		default:
			rest = append(rest, o)
			continue
		}
		if err == nil && form != asObjects {
			err = fmt.Errorf("it stays an object of the API, not an entry: use --as %s, and policyKinds: [%s] in the configuration", asObjects, policyobject.Gatekeeper)
		}
		if err != nil {
			errs = append(errs, &policies.Error{Policy: o, Err: err})
			continue
		}
		out = append(out, o)
	}
	return out, rest, errors.Join(errs...)
}

// printObjects prints objects for kubectl.
func (a commands) printObjects(list []runtime.Object) error {
	if len(list) == 0 {
		return nil // an encoder that has written nothing cannot be closed
	}
	e := yaml.NewEncoder(a.Out)
	e.SetIndent(2)
	for _, o := range list {
		tree, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
		if err != nil {
			return err
		}
		unstructured.RemoveNestedField(tree, "status")
		unstructured.RemoveNestedField(tree, "metadata", "creationTimestamp")
		if err := e.Encode(tree); err != nil {
			return err
		}
	}
	return e.Close()
}
