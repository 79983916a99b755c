// SPDX-License-Identifier: Apache-2.0

// Package latest reads the objects of some kinds as they are when a request comes, so that a policy that was
// written a moment ago counts, and makes something of them only where they have changed. Where none has, they are not even listed.
package latest

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

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
	// State is a value that can be compared: as long as it is the same, so are the objects of a kind.
	State(kind schema.GroupVersionKind) (any, error)
}

// Latest is what is made of the objects. It is safe for concurrent use.
type Latest[T any] struct {
	objects Objects
	kinds   []schema.GroupVersionKind
	// Counts says which objects count now, and when that changes by itself, if it does (else zero); nil = all count. Those that are
	// being deleted never do.
	Counts func(*unstructured.Unstructured) (counts bool, until time.Time)
	read   Read[T]
	last   atomic.Pointer[made[T]]
}

// Read makes something of objects; version changes with them. It must not change them, and what it makes must not
// be changed by who gets it.
type Read[T any] func(objects []*unstructured.Unstructured, version string) T

// made is what was made, and of which objects in which versions.
type made[T any] struct {
	of     string
	what   T
	states []any     // of the kinds, before they were read
	until  time.Time // when an object counts no more; zero = never
}

// New makes one for the objects of these kinds.
func New[T any](objects Objects, kinds []schema.GroupVersionKind, read Read[T]) *Latest[T] {
	return &Latest[T]{objects: objects, kinds: kinds, read: read}
}

// Get is what the objects are now.
func (l *Latest[T]) Get(ctx context.Context) (T, error) {
	last := l.last.Load()
	states, err := l.states()
	if err != nil {
		return *new(T), err
	}
	if last != nil && slices.Equal(last.states, states) && (last.until.IsZero() || time.Now().Before(last.until)) {
		return last.what, nil
	}
	var all []*unstructured.Unstructured
	var of strings.Builder
	var until time.Time
	for _, kind := range l.kinds {
		list, err := l.objects.List(ctx, kind, "", labels.Everything())
		if err != nil {
			return *new(T), fmt.Errorf("read the %ss: %w", kind.Kind, err)
		}
		for _, o := range list {
			u, ok := o.(*unstructured.Unstructured)
			if !ok || u.GetDeletionTimestamp() != nil {
				continue
			}
			if l.Counts != nil {
				counts, ends := l.Counts(u)
				if !ends.IsZero() && (until.IsZero() || ends.Before(until)) {
					until = ends
				}
				if !counts {
					continue
				}
			}
			all = append(all, u)
			of.WriteString(string(u.GetUID()) + "/" + strconv.FormatInt(u.GetGeneration(), 10) + "/" +
				u.GetAnnotations()[apiobject.WriterAnnotation] + " ")
		}
	}
	m := &made[T]{of: of.String(), states: states, until: until}
	if last != nil && last.of == m.of {
		m.what = last.what
	} else {
		m.what = l.read(all, m.of)
	}
	l.last.Store(m)
	return m.what, nil
}

// states are those of the kinds, in their order.
func (l *Latest[T]) states() ([]any, error) {
	out := make([]any, len(l.kinds))
	for i, kind := range l.kinds {
		var err error
		if out[i], err = l.objects.State(kind); err != nil {
			return nil, fmt.Errorf("read the %ss: %w", kind.Kind, err)
		}
	}
	return out, nil
}
