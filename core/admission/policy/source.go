// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/matching"
	"github.com/wasmplane/wasmplane/core/admission/reading"
)

// binding is a binding of either kind.
type binding struct {
	name     string
	policy   string
	version  string             // of its object
	criteria *matching.Criteria // nil: what the policy takes
	params   *admissionregistrationv1.ParamRef
	actions  []admissionregistrationv1.ValidationAction
}

// rule is what policies of both kinds have in common.
type rule struct {
	name     string
	object   metav1.Object // the policy's; nil where there is none
	criteria matching.Criteria
	params   *admissionregistrationv1.ParamKind
	ignore   bool  // failurePolicy: Ignore
	broken   error // it cannot be evaluated
	bindings []*binding
}

func newRule(name string, match *admissionregistrationv1.MatchResources, params *admissionregistrationv1.ParamKind,
	failure *admissionregistrationv1.FailurePolicyType,
) rule {
	r := rule{name: name, params: params, ignore: failure != nil && *failure == admissionregistrationv1.Ignore}
	if match == nil {
		r.criteria, r.broken = matching.ForPolicy(nil), errors.New("policy contained no match constraints, a required field")
		return r
	}
	r.criteria = matching.ForPolicy(match)
	return r
}

func newBinding(name, policy string, match *admissionregistrationv1.MatchResources, params *admissionregistrationv1.ParamRef,
	actions []admissionregistrationv1.ValidationAction,
) *binding {
	b := &binding{name: name, policy: policy, params: params, actions: actions}
	if match != nil {
		c := matching.ForPolicy(match)
		b.criteria = &c
	}
	return b
}

func bindingOf(o any) *binding {
	switch b := o.(type) {
	case *admissionregistrationv1.ValidatingAdmissionPolicyBinding:
		out := newBinding(b.Name, b.Spec.PolicyName, b.Spec.MatchResources, b.Spec.ParamRef, b.Spec.ValidationActions)
		out.version = string(b.UID) + "/" + b.ResourceVersion
		return out
	case *admissionregistrationv1.MutatingAdmissionPolicyBinding:
		return newBinding(b.Name, b.Spec.PolicyName, b.Spec.MatchResources, b.Spec.ParamRef, nil)
	}
	return nil
}

// about is what a policy matches.
func (r *rule) about() []*matching.Criteria { return []*matching.Criteria{&r.criteria} }

// compiled is a policy that can be asked, and is compiled when it is for the first time: most of a thousand policies are about what is
// never written. with gives it its bindings.
type compiled[P any] interface {
	with(bindings []*binding) P
	about() []*matching.Criteria
}

// source holds the policies of the API that are bound, by name. A policy without
// a binding judges nothing.
type source[P compiled[P]] struct {
	policies, bindings cache.SharedIndexInformer
	synced             []cache.DoneChecker
	compile            func(policy any) P

	mu       sync.Mutex
	outdated bool
	bound    *matching.Index[P]
	known    map[string]version[P]
}

type version[P any] struct {
	of     string // uid and resource version
	policy P
}

func newSource[P compiled[P]](policies, bindings cache.SharedIndexInformer, compile func(any) P) (*source[P], error) {
	s := &source[P]{policies: policies, bindings: bindings, compile: compile, outdated: true}
	outdate := func() {
		s.mu.Lock()
		s.outdated = true
		s.mu.Unlock()
	}
	for _, informer := range []cache.SharedIndexInformer{policies, bindings} {
		r, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { outdate() }, UpdateFunc: func(any, any) { outdate() }, DeleteFunc: func(any) { outdate() },
		})
		if err != nil {
			return nil, fmt.Errorf("follow the policies: %w", err)
		}
		s.synced = append(s.synced, r.HasSyncedChecker())
	}
	return s, nil
}

// none says cheaply that nobody is to be asked about a request; as long as a source is being filled, nobody knows.
func (s *source[P]) none(r *admission.Request, resources admission.Resources) bool {
	return s.filled() && len(s.current().For(r, resources)) == 0
}

// empty says cheaply that there is nothing to ask; a source that is still being
// filled is not empty.
func (s *source[P]) empty() bool { return s.filled() && len(s.current().All()) == 0 }

func (s *source[P]) filled() bool {
	return !slices.ContainsFunc(s.synced, func(c cache.DoneChecker) bool { return !cache.IsDone(c) })
}

func (s *source[P]) ready(ctx context.Context, r *admission.Request, within time.Duration) error {
	return reading.Await(ctx, r, within, s.synced...)
}

func (s *source[P]) current() *matching.Index[P] {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bound == nil || s.outdated {
		var list []P
		if s.outdated {
			list, s.known = bind(s.policies.GetStore().List(), s.bindings.GetStore().List(), s.known, s.compile)
		}
		s.bound, s.outdated = matching.NewIndex(list, P.about), false
	}
	return s.bound
}

// bind reads the policies that have bindings; those that have not changed are
// taken from known.
func bind[P compiled[P]](policies, bindings []any, known map[string]version[P], compile func(any) P) ([]P, map[string]version[P]) {
	byPolicy := map[string][]*binding{}
	slices.SortFunc(bindings, byName)
	for _, o := range bindings {
		if b := bindingOf(o); b != nil {
			byPolicy[b.policy] = append(byPolicy[b.policy], b)
		}
	}
	slices.SortFunc(policies, byName)
	var list []P
	kept := map[string]version[P]{}
	for _, o := range policies {
		m, ok := o.(metav1.Object)
		if !ok || len(byPolicy[m.GetName()]) == 0 {
			continue
		}
		of := string(m.GetUID()) + "/" + m.GetResourceVersion()
		v, ok := known[m.GetName()]
		if !ok || v.of != of {
			v = version[P]{of, compile(o)}
		}
		kept[m.GetName()] = v
		list = append(list, v.policy.with(byPolicy[m.GetName()]))
	}
	return list, kept
}

func byName(a, b any) int {
	x, ok1 := a.(metav1.Object)
	y, ok2 := b.(metav1.Object)
	if !ok1 || !ok2 {
		return 0
	}
	return cmp.Compare(x.GetName(), y.GetName())
}

// files reads the policies of files, once per state of them.
type files[P compiled[P]] struct {
	mu    sync.Mutex
	from  []any
	bound *matching.Index[P]
}

func (f *files[P]) current(policies, bindings []any, compile func(any) P) *matching.Index[P] {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := slices.Concat(policies, bindings)
	if f.bound == nil || !slices.Equal(f.from, all) {
		f.from = all
		list, _ := bind(slices.Clone(policies), slices.Clone(bindings), nil, compile)
		f.bound = matching.NewIndex(list, P.about)
	}
	return f.bound
}

func anys[T any](list []T) []any {
	out := make([]any, len(list))
	for i, o := range list {
		out[i] = o
	}
	return out
}
