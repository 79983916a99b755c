// SPDX-License-Identifier: Apache-2.0

// Package controllers runs control loops: list-watch, a queue of keys, one
// reconcile at a time per key, write back through the API.
//
// Built-in controllers are sub-packages named by their noun. A Reconciler is the
// form for logic that lives outside (a Wasm plugin): snapshot in, plan out; the
// host does the watching, queueing, retrying and writing, under an identity of
// the reconciler's own.
package controllers

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Watched is one kind of object that a reconciler reads.
type Watched struct {
	Resource schema.GroupVersionResource
	Kind     string
	// Selector narrows what is watched; empty = everything.
	Selector string
}

// Inputs declares what a reconciler reads and writes, fixed while it is loaded.
type Inputs struct {
	// Primary is the kind whose keys are reconciled.
	Primary Watched
	// Owned kinds: an object with a controller owner reference to a primary
	// queues that primary, and is part of its snapshot.
	Owned []Watched
	// ServiceAccount (namespace/name) under which the plan is carried out.
	ServiceAccount string
}

// Snapshot is everything about one key at one moment. Nobody changes it.
type Snapshot struct {
	Namespace, Name string
	// Primary is nil when the object is gone.
	Primary *unstructured.Unstructured
	Owned   []*unstructured.Unstructured
	Now     time.Time
}

// Plan is what a reconciler wants done, in order. It is idempotent: carried out
// again after a crash it leads to the same state.
type Plan struct {
	// Apply are objects for server-side apply, with the reconciler's name as field
	// manager. The host adds the controller owner reference to objects in the
	// primary's namespace.
	Apply []*unstructured.Unstructured
	// Patch are JSON patches (RFC 6902) that the server applies, for what is not the
	// reconciler's to apply as a whole. They have to be harmless when they are repeated.
	Patch []Patch
	// Delete names objects to delete, guarded by what is given of them.
	Delete []Deletion
	// Status, where non-nil, is applied to the primary's status subresource.
	Status map[string]any
	// Conditions are set in the primary's status.conditions.
	Conditions []metav1.Condition
	Events     []Event
	// Requeue asks to be called again after this long; 0 = only on changes.
	Requeue time.Duration
}

// Patch is a JSON patch for one object, or for a subresource of it. A UID guards
// against patching another object of the same name.
type Patch struct {
	Target
	Subresource string
	JSON        []byte
}

// Target names one object.
type Target struct {
	Kind            schema.GroupVersionKind
	Namespace, Name string
	UID             string
}

// Deletion is an object to delete.
type Deletion struct {
	Target
	// ResourceVersion that the object has to have; empty = any. Where it has another
	// one, somebody wrote in between: the reconcile ends with a conflict and comes again.
	ResourceVersion string
	// Propagation to what the object owns; empty = in the background.
	Propagation metav1.DeletionPropagation
}

// Event is an event to record on the primary.
type Event struct {
	Type    string // Normal or Warning
	Reason  string
	Message string
}

// Reconciler is logic of a control loop.
type Reconciler interface {
	Name() string
	Inputs() Inputs
	// Reconcile turns a snapshot into a plan. An error is retried with backoff.
	Reconcile(ctx context.Context, s Snapshot) (Plan, error)
}
