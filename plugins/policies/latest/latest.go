// SPDX-License-Identifier: Apache-2.0

// Package latest reads the objects of some kinds as they are when a request comes, so that a policy that was
// written a moment ago counts, and makes something of them only where they have changed.
package latest

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/plugins/apiobject"
)

// Objects reads the objects of the API.
type Objects interface {
	// List lists the objects of a kind; one that is not served has none.
	List(ctx context.Context, kind schema.GroupVersionKind, namespace string, selector labels.Selector) ([]runtime.Object, error)
}

// Latest is what is made of the objects. It is safe for concurrent use.
type Latest[T any] struct {
	objects Objects
	kinds   []schema.GroupVersionKind
	// Counts says which objects count now; nil = all. Those that are being deleted never do.
	Counts func(*unstructured.Unstructured) bool
	read   Read[T]
	last   atomic.Pointer[made[T]]
}

// Read makes something of objects; version changes with them. It must not change them, and what it makes must not
// be changed by who gets it.
type Read[T any] func(objects []*unstructured.Unstructured, version string) T

// made is what was made, and of which objects in which versions.
type made[T any] struct {
	of   string
	what T
}

// New makes one for the objects of these kinds.
func New[T any](objects Objects, kinds []schema.GroupVersionKind, read Read[T]) *Latest[T] {
	return &Latest[T]{objects: objects, kinds: kinds, read: read}
}

// Get is what the objects are now.
func (l *Latest[T]) Get(ctx context.Context) (T, error) {
	var all []*unstructured.Unstructured
	var of strings.Builder
	for _, kind := range l.kinds {
		list, err := l.objects.List(ctx, kind, "", labels.Everything())
		if err != nil {
			return *new(T), fmt.Errorf("read the %ss: %w", kind.Kind, err)
		}
		for _, o := range list {
			u, ok := o.(*unstructured.Unstructured)
			if !ok || u.GetDeletionTimestamp() != nil || l.Counts != nil && !l.Counts(u) {
				continue
			}
			all = append(all, u)
			of.WriteString(string(u.GetUID()) + "/" + strconv.FormatInt(u.GetGeneration(), 10) + "/" +
				u.GetAnnotations()[apiobject.WriterAnnotation] + " ")
		}
	}
	if m := l.last.Load(); m != nil && m.of == of.String() {
		return m.what, nil
	}
	m := &made[T]{of: of.String(), what: l.read(all, of.String())}
	l.last.Store(m)
	return m.what, nil
}
