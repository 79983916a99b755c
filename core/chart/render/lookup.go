// SPDX-License-Identifier: Apache-2.0

package render

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// asking is where the templates' lookups go: to the parent, over the pipes.
type asking struct{}

// GetClientFor implements engine.ClientProvider. Of the interface that it gives, the engine gets and lists.
func (asking) GetClientFor(apiVersion, kind string) (dynamic.NamespaceableResourceInterface, bool, error) {
	return &asked{what: Lookup{APIVersion: apiVersion, Kind: kind}}, true, nil
}

// asked is one kind.
type asked struct {
	dynamic.NamespaceableResourceInterface // nil: nothing else is called
	what                                   Lookup
}

// Namespace implements dynamic.NamespaceableResourceInterface.
func (a *asked) Namespace(namespace string) dynamic.ResourceInterface {
	a.what.Namespace = namespace
	return a
}

// Get implements dynamic.ResourceInterface.
func (a *asked) Get(_ context.Context, name string, _ metav1.GetOptions, _ ...string) (*unstructured.Unstructured, error) {
	a.what.Name = name
	tree, err := a.ask()
	if err != nil {
		return nil, err
	}
	return &unstructured.Unstructured{Object: tree}, nil
}

// List implements dynamic.ResourceInterface.
func (a *asked) List(context.Context, metav1.ListOptions) (*unstructured.UnstructuredList, error) {
	tree, err := a.ask()
	if err != nil {
		return nil, err
	}
	list := &unstructured.UnstructuredList{}
	list.SetUnstructuredContent(tree)
	return list, nil
}

func (a *asked) ask() (map[string]any, error) {
	if err := writeJSON(os.Stdout, reply{Lookup: &a.what}); err != nil {
		return nil, fmt.Errorf("look up %s: %w", a.what.Kind, err)
	}
	var answer Answer
	if err := readJSON(os.Stdin, inputLimit, &answer); err != nil {
		return nil, fmt.Errorf("look up %s: %w", a.what.Kind, err)
	}
	if answer.Error != "" {
		return nil, errors.New(answer.Error)
	}
	if answer.Object == nil {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: a.what.Kind}, a.what.Name)
	}
	var tree map[string]any
	err := json.Unmarshal(answer.Object, &tree)
	return tree, err
}
