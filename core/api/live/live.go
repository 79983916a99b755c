// SPDX-License-Identifier: Apache-2.0

// Package live has the questions of strategies to the server, which starts after the
// strategies were made.
package live

import (
	"context"
	"fmt"
	"sync/atomic"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	typed "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/admissionregistration"
)

// Server is what a few strategies ask of the running server: policy bindings and
// device claims are judged by what their writer may do.
type Server struct {
	// Authorizer is the server's whole chain.
	Authorizer authorizer.UnconditionalAuthorizer
	// Namespace reads a namespace; device claims with admin access need its labels.
	Namespace func(ctx context.Context, name string) (*corev1.Namespace, error)
	// ValidatingPolicy and MutatingPolicy read the policy that a binding names.
	ValidatingPolicy func(ctx context.Context, name string) (*admissionv1.ValidatingAdmissionPolicy, error)
	MutatingPolicy   func(ctx context.Context, name string) (*admissionv1.MutatingAdmissionPolicy, error)
	// Resource maps a kind that is not built in to its resource; nil = there are none.
	Resource func(schema.GroupVersionKind) (schema.GroupVersionResource, error)
}

// Link stands for the server in strategies that are made before it runs. Its zero value
// answers questions with "no" and with errors.
type Link struct {
	now atomic.Pointer[Server]
	// Builtin maps a kind that is built in to its resource.
	Builtin func(schema.GroupVersionKind) (schema.GroupVersionResource, bool)
}

// Connect hands over what the server answers. It may be called again, at any time.
func (l *Link) Connect(s Server) { l.now.Store(&s) }

func (l *Link) get() Server {
	if now := l.now.Load(); now != nil {
		return *now
	}
	return Server{}
}

// Authorize implements authorizer.UnconditionalAuthorizer.
func (l *Link) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a9r := l.get().Authorizer; a9r != nil {
		return a9r.Authorize(ctx, a)
	}
	return authorizer.DecisionNoOpinion, "the server is still starting", nil
}

// Resolve maps a kind to its resource, as upstream's discovery resolver does.
func (l *Link) Resolve(gvk schema.GroupVersionKind) (schema.GroupVersionResource, error) {
	if r, ok := l.Builtin(gvk); ok {
		return r, nil
	}
	if find := l.get().Resource; find != nil {
		return find(gvk)
	}
	return schema.GroupVersionResource{}, fmt.Errorf("no resource serves kind %s", gvk)
}

// GetValidatingAdmissionPolicy implements the getter of policy bindings.
func (l *Link) GetValidatingAdmissionPolicy(ctx context.Context, name string) (*admissionregistration.ValidatingAdmissionPolicy, error) {
	find := l.get().ValidatingPolicy
	if find == nil {
		return nil, fmt.Errorf("read ValidatingAdmissionPolicy %q: the server is still starting", name)
	}
	p, err := find(ctx, name)
	if err != nil {
		return nil, err
	}
	out := &admissionregistration.ValidatingAdmissionPolicy{}
	return out, legacyscheme.Scheme.Convert(p, out, nil)
}

// GetMutatingAdmissionPolicy implements the getter of policy bindings.
func (l *Link) GetMutatingAdmissionPolicy(ctx context.Context, name string) (*admissionregistration.MutatingAdmissionPolicy, error) {
	find := l.get().MutatingPolicy
	if find == nil {
		return nil, fmt.Errorf("read MutatingAdmissionPolicy %q: the server is still starting", name)
	}
	p, err := find(ctx, name)
	if err != nil {
		return nil, err
	}
	out := &admissionregistration.MutatingAdmissionPolicy{}
	return out, legacyscheme.Scheme.Convert(p, out, nil)
}

// Namespaces is a client that reads namespaces, and nothing else.
func (l *Link) Namespaces() typed.NamespaceInterface { return liveNamespaces{live: l} }

// liveNamespaces answers the one call that the strategies of device claims make
// of a namespace client. The embedded interface is nil: any other call would be
// a change of upstream's that has to be seen, and the strategy test calls them all.
type liveNamespaces struct {
	typed.NamespaceInterface
	live *Link
}

// Get reads one namespace.
func (n liveNamespaces) Get(ctx context.Context, name string, _ metav1.GetOptions) (*corev1.Namespace, error) {
	if find := n.live.get().Namespace; find != nil {
		return find(ctx, name)
	}
	return nil, fmt.Errorf("read namespace %q: the server is still starting", name)
}
