// SPDX-License-Identifier: Apache-2.0

// Package admission is the contract of everything that may change or refuse a write after
// authorization: built-in plugins, CEL policies, webhooks, Wasm plugins.
//
// A plugin implements Mutator, Validator or both. Order is one visible list, the Chain;
// nothing registers itself. Mutators run first, in order, and are called again once if a
// later one changed the object; then, after strategy and field management, validators run
// and none of them may change the object.
package admission

import (
	"context"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/wasmplane/wasmplane/core/object"
)

// Operation is what a request does to the object.
type Operation string

// The operations, with the names that admission/v1 uses.
const (
	Create  Operation = "CREATE"
	Update  Operation = "UPDATE"
	Delete  Operation = "DELETE"
	Connect Operation = "CONNECT"
)

// Request is one write, as plugins see it. Object is nil for Delete, OldObject
// for Create. Mutators change Object through its Set methods, with a changed copy.
type Request struct {
	UID         types.UID
	Operation   Operation
	Kind        schema.GroupVersionKind
	Resource    schema.GroupVersionResource
	Subresource string
	Namespace   string
	Name        string // empty for a create with generateName until the name is made
	User        user.Info
	DryRun      bool
	Options     runtime.Object // *metav1.CreateOptions, UpdateOptions, DeleteOptions, ...
	Object      *object.Object
	OldObject   *object.Object

	mu          sync.Mutex
	authors     []user.Info
	warnings    []string
	annotations map[string]string
	bodies      map[string]string
	memos       map[any]any
}

// Memo is what make made for key when it was first asked for on this request: the
// place for what a plugin remembers from one of its turns to the next, or shares
// with another plugin. Keys are of unexported types, as those of contexts are.
func (r *Request) Memo(key any, compute func() any) any {
	r.mu.Lock()
	defer r.mu.Unlock()
	m, ok := r.memos[key]
	if !ok {
		m = compute()
		if r.memos == nil {
			r.memos = map[any]any{}
		}
		r.memos[key] = m
	}
	return m
}

// ChangedFor tells that the object was changed on behalf of somebody other than the
// request's user. What is validated by who asks (exemptions, ownership, policies that
// look at the user) is then validated as that author too: nobody's request carries
// through what the author of a change could not do.
func (r *Request) ChangedFor(author user.Info) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if sameUser(author, r.User) || slices.ContainsFunc(r.authors, func(u user.Info) bool { return sameUser(author, u) }) {
		return
	}
	r.authors = append(r.authors, author)
}

// asAuthors are the request as each of the authors of its object would have made it. It has
// warnings, annotations and memos of its own.
func (r *Request) asAuthors() []*Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []*Request
	for _, u := range r.authors {
		out = append(out, &Request{
			UID: r.UID, Operation: r.Operation, Kind: r.Kind, Resource: r.Resource, Subresource: r.Subresource,
			Namespace: r.Namespace, Name: r.Name, User: u, DryRun: r.DryRun, Options: r.Options, Object: r.Object, OldObject: r.OldObject,
		})
	}
	return out
}

func sameUser(a, b user.Info) bool {
	if a == nil || b == nil {
		return a == b
	}
	groups := func(u user.Info) []string { return slices.Compact(slices.Sorted(slices.Values(u.GetGroups()))) }
	return a.GetName() == b.GetName() && a.GetUID() == b.GetUID() && slices.Equal(groups(a), groups(b))
}

// Warn adds a warning that the client shows to its user.
func (r *Request) Warn(text string) {
	r.mu.Lock()
	r.warnings = append(r.warnings, text)
	r.mu.Unlock()
}

// Warnings returns what Warn collected.
func (r *Request) Warnings() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.warnings
}

// Annotate adds an audit annotation. The key is "plugin.name/key".
func (r *Request) Annotate(key, value string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.annotations == nil {
		r.annotations = map[string]string{}
	}
	r.annotations[key] = value
}

// AnnotateBodies adds an annotation that quotes the request's body: it belongs
// only into an audit log whose level lets bodies in.
func (r *Request) AnnotateBodies(key, value string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.bodies == nil {
		r.bodies = map[string]string{}
	}
	r.bodies[key] = value
}

// BodyAnnotations returns what AnnotateBodies collected.
func (r *Request) BodyAnnotations() map[string]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.bodies
}

// Annotations returns what Annotate collected.
func (r *Request) Annotations() map[string]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.annotations
}

// Plugin is what mutators and validators share.
type Plugin interface {
	// Name is the plugin's unique name, shown in errors, traces and metrics.
	Name() string
	// Handles says cheaply whether the plugin wants to see the request.
	Handles(*Request) bool
}

// Mutator may change r.Object. An error refuses the request: an API status
// error is passed on as it is, any other becomes Forbidden with the plugin's name.
type Mutator interface {
	Plugin
	Mutate(ctx context.Context, r *Request) error
}

// Again is an optional power of a Mutator that stands for several (webhooks,
// policies): it says after the first round whether it wants to be asked again
// though nobody else has changed the object since, because one of its own did.
type Again interface {
	Again(r *Request) bool
}

// Validator judges the object that is going to be stored.
type Validator interface {
	Plugin
	Validate(ctx context.Context, r *Request) error
}

// Charger is an optional power of a Validator that takes from somebody's account,
// which is not the user's: it is asked once, whoever else has changed the object.
type Charger interface {
	Validator
	// Charges marks the power.
	Charges()
}
