// SPDX-License-Identifier: Apache-2.0

// Package matching decides which requests a webhook or a policy is for: rules,
// scope, equivalent resources, namespace and object selectors, match conditions.
// It also hands out the object in the version that was matched, converted once
// for all who want that version, and remembers which of them are to be asked again
// since the object changed behind them.
//
// What matches, and with which words an expression that fails is reported, is as
// upstream has it, so that a configuration written for Kubernetes selects the
// same requests here.
package matching

import (
	"context"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/object"
)

// Namespaces finds namespaces, also those that were made a moment ago.
type Namespaces struct {
	Lister corelisters.NamespaceLister
	Client kubernetes.Interface
}

// Get asks the lister, and the server where the lister has not seen the namespace.
func (n Namespaces) Get(ctx context.Context, name string) (*corev1.Namespace, error) {
	ns, err := n.Lister.Get(name)
	if apierrors.IsNotFound(err) && name != "" {
		ns, err = n.Client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	}
	return ns, err
}

// labels of the namespace that the request is in. A namespace that is being
// written is judged by what is written.
func (n Namespaces) labels(ctx context.Context, r *admission.Request) (labels.Set, error) {
	if isNamespace(r) && r.Subresource == "" && (r.Operation == admission.Create || r.Operation == admission.Update) {
		m, err := r.Object.Meta()
		if err != nil {
			return nil, err
		}
		return m.GetLabels(), nil
	}
	ns, err := n.Get(ctx, Namespace(r))
	if err != nil {
		return nil, err
	}
	return ns.Labels, nil
}

func isNamespace(r *admission.Request) bool {
	return r.Resource.Group == "" && r.Resource.Resource == "namespaces"
}

// Namespace of the request as webhooks and policies are told: a namespace is in itself.
func Namespace(r *admission.Request) string {
	if r.Namespace == "" && isNamespace(r) {
		return r.Name
	}
	return r.Namespace
}

// Criteria say which requests are meant. The zero value means all.
type Criteria struct {
	// Rules of which one has to match; AnyResource: none has to.
	Rules       []admissionregistrationv1.NamedRuleWithOperations
	AnyResource bool
	// Excluded wins over Rules.
	Excluded []admissionregistrationv1.NamedRuleWithOperations
	// Exact: a rule names the resource as the request does, not another version of it.
	Exact     bool
	Namespace labels.Selector
	Object    labels.Selector
	// Broken is what is wrong with a selector. It is told only to whom the rest matches.
	Broken error
}

// NewCriteria parses selectors; nil selects everything.
func NewCriteria(policy *admissionregistrationv1.MatchPolicyType, namespace, object *metav1.LabelSelector) Criteria {
	c := Criteria{
		Exact: policy == nil || *policy == admissionregistrationv1.Exact, Namespace: labels.Everything(),
		Object: labels.Everything(),
	}
	var err error
	if namespace != nil {
		if c.Namespace, err = metav1.LabelSelectorAsSelector(namespace); err != nil {
			c.Broken = err
		}
	}
	if object != nil {
		if c.Object, err = metav1.LabelSelectorAsSelector(object); err != nil {
			c.Broken = err
		}
	}
	return c
}

// ForPolicy are the criteria of a policy or a binding. Without rules a binding
// takes what its policy takes.
func ForPolicy(m *admissionregistrationv1.MatchResources) Criteria {
	if m == nil {
		return Criteria{AnyResource: true, Namespace: labels.Everything(), Object: labels.Everything()}
	}
	c := NewCriteria(m.MatchPolicy, m.NamespaceSelector, m.ObjectSelector)
	c.Rules, c.Excluded, c.AnyResource = m.ResourceRules, m.ExcludeResourceRules, len(m.ResourceRules) == 0
	return c
}

// Target is the resource that a rule matched, which may be another version of
// the one that was asked for.
type Target struct {
	Resource schema.GroupVersionResource
	Kind     schema.GroupVersionKind
	// convert makes the request's object this kind, back makes one of this kind the
	// request's; nil: they are the same.
	convert, back func(ctx context.Context, o *object.Object) (*object.Object, error)
}

// Match says whether the request is meant, and as what.
func (c *Criteria) Match(ctx context.Context, r *admission.Request, ns Namespaces, resources admission.Resources) (Target, bool, error) {
	if _, excluded := find(c.Excluded, c.Exact, r, resources); excluded {
		return Target{}, false, nil
	}
	target := Target{Resource: r.Resource, Kind: r.Kind}
	if !c.AnyResource {
		var ok bool
		if target, ok = find(c.Rules, c.Exact, r, resources); !ok {
			return Target{}, false, nil
		}
	}
	if c.Broken != nil {
		return Target{}, false, apierrors.NewInternalError(c.Broken)
	}
	if !c.matchesObject(r) {
		return Target{}, false, nil
	}
	ok, err := c.matchesNamespace(ctx, r, ns)
	return target, ok, err
}

func (c *Criteria) matchesObject(r *admission.Request) bool {
	return c.Object == nil || c.Object.Empty() || selects(c.Object, r.Object) || selects(c.Object, r.OldObject)
}

func selects(s labels.Selector, o *object.Object) bool {
	if o == nil {
		return false
	}
	m, err := o.Meta()
	return err == nil && s.Matches(labels.Set(m.GetLabels()))
}

func (c *Criteria) matchesNamespace(ctx context.Context, r *admission.Request, ns Namespaces) (bool, error) {
	if c.Namespace == nil || c.Namespace.Empty() || Namespace(r) == "" {
		return true, nil // what is in no namespace is never exempted by one
	}
	set, err := ns.labels(ctx, r)
	if err != nil {
		if status := apierrors.APIStatus(nil); apierrors.IsNotFound(err) && asStatus(err, &status) {
			return false, err
		}
		return false, apierrors.NewInternalError(err)
	}
	return c.Namespace.Matches(set), nil
}

func asStatus(err error, status *apierrors.APIStatus) bool {
	s, ok := err.(apierrors.APIStatus) // clients return it unwrapped
	*status = s
	return ok
}

// find the first rule that matches the resource as it was asked for, then the
// first that matches one of its other versions.
func find(rules []admissionregistrationv1.NamedRuleWithOperations, exact bool, r *admission.Request,
	resources admission.Resources,
) (Target, bool) {
	for i := range rules {
		if matches(&rules[i], r, r.Resource) {
			return Target{Resource: r.Resource, Kind: r.Kind}, true
		}
	}
	if exact || len(rules) == 0 || resources == nil {
		return Target{}, false
	}
	others := equivalents(r, resources)
	for i := range rules {
		for _, e := range others {
			if e.Resource != r.Resource && matches(&rules[i], r, e.Resource) {
				return target(e, others, r), true
			}
		}
	}
	return Target{}, false
}

func target(e admission.Equivalent, all []admission.Equivalent, r *admission.Request) Target {
	t := Target{Resource: e.Resource, Kind: e.Kind, convert: e.Convert}
	if e.Convert == nil {
		t.Kind = r.Kind
		return t
	}
	for _, own := range all {
		if own.Resource == r.Resource {
			t.back = own.Convert
		}
	}
	return t
}

func matches(rule *admissionregistrationv1.NamedRuleWithOperations, r *admission.Request, gvr schema.GroupVersionResource) bool {
	return inScope(rule.Scope, r, gvr) && hasOperation(rule.Operations, r.Operation) &&
		has(rule.APIGroups, gvr.Group) && has(rule.APIVersions, gvr.Version) && hasResource(rule.Resources, gvr.Resource, r.Subresource) &&
		(len(rule.ResourceNames) == 0 || slices.Contains(rule.ResourceNames, r.Name))
}

func inScope(scope *admissionregistrationv1.ScopeType, r *admission.Request, gvr schema.GroupVersionResource) bool {
	if scope == nil {
		return true
	}
	// A namespace object is asked about in its own namespace, and is cluster-scoped.
	clusterWide := Namespace(r) == "" || gvr == schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	switch *scope {
	case admissionregistrationv1.AllScopes:
		return true
	case admissionregistrationv1.NamespacedScope:
		return !clusterWide
	case admissionregistrationv1.ClusterScope:
		return clusterWide
	}
	return false
}

func has(list []string, s string) bool { return slices.Contains(list, "*") || slices.Contains(list, s) }

func hasOperation(list []admissionregistrationv1.OperationType, op admission.Operation) bool {
	return slices.Contains(list, admissionregistrationv1.OperationAll) || slices.Contains(list, admissionregistrationv1.OperationType(op))
}

func hasResource(list []string, resource, subresource string) bool {
	return slices.ContainsFunc(list, func(s string) bool {
		res, sub, _ := strings.Cut(s, "/")
		return (res == "*" || res == resource) && (sub == "*" || sub == subresource)
	})
}

// IsConfiguration reports whether a request is about an object that configures webhooks
// or policies. No webhook or policy of the API judges it, or a bad one could never be
// repaired.
func IsConfiguration(r *admission.Request) bool {
	if r.Kind.Group != admissionregistrationv1.GroupName {
		return false
	}
	switch r.Kind.Kind {
	case "ValidatingWebhookConfiguration", "MutatingWebhookConfiguration", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
		"MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding":
		return true
	}
	return false
}

// IsReview reports whether a request asks who somebody is or what they may do. No
// webhook and no policy judges it, or a bad one would lock out everybody, those who
// could mend it included.
func IsReview(r *admission.Request) bool {
	return r.Resource.Group == "authentication.k8s.io" || r.Resource.Group == "authorization.k8s.io"
}
