// SPDX-License-Identifier: Apache-2.0

// Package beyond judges requests by Kyverno's policies whose expressions use what only Kyverno's have: resource, globalContext, http,
// image.GetMetadata, images, and the functions that compute.
//
// A policy is evaluated as the API evaluates its own policies in CEL (core/admission/policy), in a language with more functions. What
// they look at, beyond the request, is a Reach of the caller's, which holds it against the rights of whoever wrote the policy. One
// evaluation asks it a bounded number of times, the same question once, and no longer than the policy's timeout.
package beyond

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/cel/environment"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/matching"
	"github.com/wasmplane/wasmplane/core/admission/policy"
	"github.com/wasmplane/wasmplane/plugins/policies/kyverno"
)

// Reach answers what expressions ask beyond the request. What it answers is JSON, which nobody changes.
type Reach interface {
	// Get is an object; nil = there is none.
	Get(ctx context.Context, apiVersion, resource, namespace, name string) (map[string]any, error)
	// List is a list of objects, with the field items. labels, if there are any, have to be theirs.
	List(ctx context.Context, apiVersion, resource, namespace string, labels map[string]string) (map[string]any, error)
	// Post has the API answer an object that it does not store, such as an access review.
	Post(ctx context.Context, apiVersion, resource, namespace string, object map[string]any) (map[string]any, error)
	// Resource is the resource of a kind.
	Resource(ctx context.Context, apiVersion, kind string) (string, error)
	// Global is what a GlobalContextEntry holds, or one of its projections.
	Global(ctx context.Context, name, projection string) (any, error)
	// Send is the answer to a request by HTTP.
	Send(ctx context.Context, r Request) (any, error)
	// Image is what a registry says of an image.
	Image(ctx context.Context, image string) (map[string]any, error)
}

// Request is one by HTTP.
type Request struct {
	Method, URL string
	Headers     map[string]string
	Body        any    // of a POST
	Authorities string // in PEM, the only ones that are trusted; "" = the system's
}

// Answer is an answer by HTTP as expressions see it: an object of JSON with its statusCode, or anything else as body.
func Answer(status int, body any) map[string]any {
	o, ok := body.(map[string]any)
	if !ok {
		o = map[string]any{"body": body}
	}
	o["statusCode"] = int64(status)
	return o
}

// Bounds.
const (
	defaultTimeout = 10 * time.Second
	longestTimeout = 30 * time.Second
	mostEvaluators = 8 // of one policy at the same time; others wait
)

// Timeout is how long one request may take.
func Timeout(o *kyverno.Objects) time.Duration {
	t := time.Duration(o.Timeout) * time.Second
	if t <= 0 {
		return defaultTimeout
	}
	return min(t, longestTimeout)
}

// Compiles says which expressions of a policy do not compile. namespace is the policy's; "" = the cluster.
func Compiles(o *kyverno.Objects, namespace string) error {
	env, err := environmentOf(&session{}, namespace)
	if err != nil {
		return err
	}
	if len(o.Validating) > 0 {
		return policy.CheckValidating(o.Validating[0], env)
	}
	return policy.CheckMutating(o.Mutating[0], env)
}

// environmentOf is the language of a policy's expressions, whose functions ask a session.
func environmentOf(s *session, namespace string) (*environment.EnvSet, error) {
	env, err := matching.NewEnvironment().Extend(environment.VersionedOptions{
		IntroducedVersion: version.MajorMinor(1, 0), EnvOptions: library(s, namespace),
	})
	if err != nil {
		return nil, fmt.Errorf("environment of expressions: %w", err)
	}
	return env, nil
}

// Policy is a policy that is ready to be asked. It is safe for concurrent use.
type Policy struct {
	objects    *kyverno.Objects
	namespace  string
	cfg        policy.Config
	namespaces corelisters.NamespaceLister
	criteria   []*matching.Criteria

	turns chan struct{} // of requests that are evaluated
	mu    sync.Mutex
	idle  []*evaluator // those that were used last are at the end, so that there are no more than requests at a time
}

// evaluator is a policy compiled for one request at a time: its functions ask the session.
type evaluator struct {
	session  *session
	policies *policy.Policies
}

// New makes a policy of objects. namespace is where it is; "" = the cluster. Of cfg, Authorizer, Client, Resources and Types are read.
func New(o *kyverno.Objects, name, namespace string, cfg policy.Config, namespaces corelisters.NamespaceLister) *Policy {
	cfg.Static, cfg.Name = fixed{o}, "kyverno/"+namespace+"/"+name
	p := &Policy{objects: o, namespace: namespace, cfg: cfg, namespaces: namespaces, turns: make(chan struct{}, mostEvaluators)}
	add := func(m *admissionregistrationv1.MatchResources) {
		c := matching.ForPolicy(m)
		p.criteria = append(p.criteria, &c)
	}
	for _, v := range o.Validating {
		add(v.Spec.MatchConstraints)
	}
	for _, m := range o.Mutating {
		add(m.Spec.MatchConstraints)
	}
	return p
}

// Criteria are those of the policy's objects, of which one has to match.
func (p *Policy) Criteria() []*matching.Criteria { return p.criteria }

// about says whether a request is to be evaluated: by one of the policy's objects, or because it cannot be told whether it is.
// Evaluators take time to be made, and memory.
func (p *Policy) about(ctx context.Context, r *admission.Request) bool {
	return slices.ContainsFunc(p.criteria, func(c *matching.Criteria) bool {
		_, ok, err := c.Match(ctx, r, matching.Namespaces{Lister: p.namespaces, Client: p.cfg.Client}, p.cfg.Resources)
		return ok || err != nil
	})
}

// fixed are the objects of one policy.
type fixed struct{ o *kyverno.Objects }

func (f fixed) ValidatingPolicies() (
	[]*admissionregistrationv1.ValidatingAdmissionPolicy, []*admissionregistrationv1.ValidatingAdmissionPolicyBinding,
) {
	return f.o.Validating, f.o.ValidatingBindings
}

func (f fixed) MutatingPolicies() (
	[]*admissionregistrationv1.MutatingAdmissionPolicy, []*admissionregistrationv1.MutatingAdmissionPolicyBinding,
) {
	return f.o.Mutating, f.o.MutatingBindings
}

// with evaluates within the policy's timeout.
func (p *Policy) with(ctx context.Context, r *admission.Request, reach Reach, do func(context.Context, *policy.Policies) error) error {
	if !p.about(ctx, r) {
		return nil
	}
	within := Timeout(p.objects)
	ctx, cancel := context.WithTimeoutCause(ctx, within,
		fmt.Errorf("it took longer than %s (spec.webhookConfiguration.timeoutSeconds): %w", within, context.DeadlineExceeded))
	defer cancel()
	select {
	case p.turns <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-p.turns }()
	e, err := p.take()
	if err != nil {
		return err
	}
	defer p.giveBack(e)
	e.session.begin(ctx, r, reach)
	defer e.session.end()
	return do(ctx, e.policies)
}

// take takes an evaluator that nobody uses.
func (p *Policy) take() (*evaluator, error) {
	p.mu.Lock()
	if last := len(p.idle) - 1; last >= 0 {
		e := p.idle[last]
		p.idle = p.idle[:last]
		p.mu.Unlock()
		return e, nil
	}
	p.mu.Unlock()
	s := &session{}
	env, err := environmentOf(s, p.namespace)
	if err != nil {
		return nil, err
	}
	cfg := p.cfg
	cfg.Environment = env
	return &evaluator{s, policy.Alone(cfg, p.namespaces)}, nil
}

func (p *Policy) giveBack(e *evaluator) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle = append(p.idle, e)
}

// Validates and Mutates say what the policy does.
func (p *Policy) Validates() bool { return len(p.objects.Validating) > 0 }

// Mutates is the opposite of Validates.
func (p *Policy) Mutates() bool { return len(p.objects.Mutating) > 0 }

// Objects are those of which the policy is made.
func (p *Policy) Objects() *kyverno.Objects { return p.objects }

// Mutate changes the object of a request.
func (p *Policy) Mutate(ctx context.Context, r *admission.Request, reach Reach) error {
	return p.with(ctx, r, reach, func(ctx context.Context, all *policy.Policies) error { return all.Mutating().Mutate(ctx, r) })
}

// Again says whether the policy is to be asked again about a request that was changed after it.
func (p *Policy) Again(r *admission.Request) bool {
	return policy.Again(r, p.cfg.Name)
}

// Validate judges a request, and does what the policy's actions say.
func (p *Policy) Validate(ctx context.Context, r *admission.Request, reach Reach) error {
	return p.with(ctx, r, reach, func(ctx context.Context, all *policy.Policies) error { return all.Validating().Validate(ctx, r) })
}

// Judge says what the policy has against the object of a request, whatever its actions are. asked says whether it is about the
// request at all.
func (p *Policy) Judge(ctx context.Context, r *admission.Request, reach Reach) (asked bool, found []policy.Finding, err error) {
	err = p.with(ctx, r, reach, func(ctx context.Context, all *policy.Policies) error {
		for _, s := range all.Fixed() {
			a, f, err := s.Judge(ctx, r)
			if err != nil {
				return err
			}
			asked, found = asked || a, append(found, f...)
		}
		return nil
	})
	return asked, found, err
}

// errMany is of an evaluation that asks without an end.
var errMany = errors.New("one evaluation asks for at most 100 things beyond the request")
