// SPDX-License-Identifier: Apache-2.0

// Package celgate has those of Kyverno's ValidatingPolicies and MutatingPolicies take part in admission, and in the scan of what is
// stored, whose expressions use what only Kyverno's have (package beyond). All others become policies of Kubernetes.
//
// Policies are read from the API as they are when a request comes. What one looks at beyond the request, it may see only if its writer
// may: that is asked each time. What it sends, only a policy of the cluster sends, whose writer may have the control plane send
// something. A server or registry at a private address is asked only where the policy's own text names it: whoever makes an object
// chooses none.
package celgate

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/matching"
	"github.com/wasmplane/wasmplane/core/admission/policy"
	"github.com/wasmplane/wasmplane/core/dial"
	"github.com/wasmplane/wasmplane/plugins/apiobject"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	pointadmission "github.com/wasmplane/wasmplane/plugins/point/admission"
	"github.com/wasmplane/wasmplane/plugins/policies/kyverno"
	"github.com/wasmplane/wasmplane/plugins/policies/kyverno/beyond"
	"github.com/wasmplane/wasmplane/plugins/policies/kyverno/imagegate"
	"github.com/wasmplane/wasmplane/plugins/policies/latest"
	"github.com/wasmplane/wasmplane/plugins/rights"
)

// Name of the admission plugin.
const Name = "KyvernoPolicies"

// World is the cluster as the server has it.
type World interface {
	// Get reads an object as the watch cache has it; NotFound where there is none.
	Get(ctx context.Context, kind schema.GroupVersionKind, namespace, name string) (runtime.Object, error)
	// List lists the objects of a kind; one that is not served has none.
	List(ctx context.Context, kind schema.GroupVersionKind, namespace string, selector labels.Selector) ([]runtime.Object, error)
	// GetNewest and ListNewest are Get and List of what is stored when they are called.
	GetNewest(ctx context.Context, kind schema.GroupVersionKind, namespace, name string) (runtime.Object, error)
	ListNewest(ctx context.Context, kind schema.GroupVersionKind, namespace string, selector labels.Selector) ([]runtime.Object, error)
	// State is a value that can be compared: as long as it is the same, so are the objects of a kind.
	State(kind schema.GroupVersionKind) (any, error)
	// Served is the kind and the resource of a group version, of which one is given; NotFound where it is not served.
	Served(gv schema.GroupVersion, kind, resource string) (foundKind, foundResource string, err error)
}

// Config is what a gate needs.
type Config struct {
	World      World
	Namespaces matching.Namespaces
	// Policies is how policies are evaluated: Authorizer, Resources and Types are read.
	Policies policy.Config
	// Complete fills in what the API would, and narrows a policy of a namespace.
	Complete func(o *kyverno.Objects, namespace string)
	// Rights holds policies against the rights of their writers.
	Rights *rights.Checker
	// Review answers what somebody may do.
	Review func(ctx context.Context, spec authorizationv1.SubjectAccessReviewSpec) (authorizationv1.SubjectAccessReviewStatus, error)
	// Operators connects where a policy of the cluster names a server, Tenants everywhere else.
	Operators, Tenants dial.Policy
	// Images looks up images.
	Images *imagegate.Gate
	Logger *slog.Logger
}

// Gate is what these policies do in admission.
type Gate struct {
	cfg     Config
	current *latest.Latest[*state]
	answers answers
	clients [2]*http.Client // of operators and tenants

	mu    sync.Mutex
	known map[string]*standing // by what they are made of
}

// state is what there is at one time, by the resources that it is about.
type state struct{ mutating, validating *matching.Index[*standing] }

// standing is a policy with whoever wrote it.
type standing struct {
	*beyond.Policy
	kind, namespace, name string
	version               string
	writer                *manifest.Entry
	texts                 []string
}

// New makes a gate.
func New(cfg Config) *Gate {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.Policies.Client = cfg.Namespaces.Client
	g := &Gate{cfg: cfg, known: map[string]*standing{}, answers: newAnswers()}
	g.clients = [2]*http.Client{client(cfg.Operators, nil), client(cfg.Tenants, nil)}
	var kinds []schema.GroupVersionKind
	for _, kind := range append(kyverno.Kinds(), kyverno.ExceptionKind) {
		kinds = append(kinds, schema.GroupVersionKind{Group: kyverno.Group, Version: kyverno.Versions()[0], Kind: kind})
	}
	g.current = latest.New(cfg.World, kinds, g.all)
	g.current.Counts = counts
	return g
}

// counts says which objects there are for the gate: an exception ends with its time.
func counts(u *unstructured.Unstructured) (counts bool, until time.Time) {
	if u.GetKind() != kyverno.ExceptionKind {
		return true, time.Time{}
	}
	e, err := kyverno.ReadException(u.Object)
	if err != nil || u.GetAnnotations()[apiobject.WriterAnnotation] == "" {
		return false, time.Time{}
	}
	return e.Counts(time.Now())
}

// all reads the policies with their exceptions. One that has not changed stays compiled.
func (g *Gate) all(objects []*unstructured.Unstructured, _ string) *state {
	var mutating, validating []*standing
	var exceptions []*unstructured.Unstructured
	for _, u := range objects {
		if u.GetKind() == kyverno.ExceptionKind {
			exceptions = append(exceptions, u)
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	known := map[string]*standing{}
	for _, u := range objects {
		if u.GetKind() == kyverno.ExceptionKind {
			continue
		}
		key := versionOf(u)
		var about []*kyverno.Exception
		for _, o := range exceptions {
			if e, err := kyverno.ReadException(o.Object); err == nil && e.About(u.GetKind(), u.GetNamespace(), u.GetName(), time.Now()) {
				about = append(about, e)
				key += " " + versionOf(o)
			}
		}
		s, ok := g.known[key]
		if !ok {
			s = g.read(u, about, key)
		}
		known[key] = s // nil = it is not for this gate
		switch {
		case s == nil:
		case s.Mutates():
			mutating = append(mutating, s)
		default:
			validating = append(validating, s)
		}
	}
	g.known = known
	return &state{index(mutating), index(validating)}
}

func index(list []*standing) *matching.Index[*standing] {
	return matching.NewIndex(list, (*standing).Criteria)
}

func versionOf(u *unstructured.Unstructured) string {
	return string(u.GetUID()) + "/" + strconv.FormatInt(u.GetGeneration(), 10)
}

// read reads a policy; nil = it is not for this gate, or it cannot be used, as its status says.
func (g *Gate) read(u *unstructured.Unstructured, about []*kyverno.Exception, version string) *standing {
	o, err := kyverno.Read(u.Object)
	if err != nil || len(o.Uses) == 0 || u.GetAnnotations()[apiobject.WriterAnnotation] == "" {
		return nil
	}
	g.cfg.Complete(o, u.GetNamespace())
	for _, e := range about {
		o.Except(e.Condition())
	}
	return &standing{
		Policy: beyond.New(o, u.GetName(), u.GetNamespace(), g.cfg.Policies, g.cfg.Namespaces.Lister),
		kind:   u.GetKind(), namespace: u.GetNamespace(), name: u.GetName(), version: version, writer: apiobject.Bare(u), texts: o.Texts,
	}
}

// Name implements admission.Plugin.
func (*Gate) Name() string { return Name }

// Handles implements admission.Plugin.
func (*Gate) Handles(r *admission.Request) bool {
	return imagegate.Judged(r) && r.Resource.Group != kyverno.GlobalGroup
}

// reaches says whether a policy may be asked about such a request at all.
func (s *standing) reaches(r *admission.Request) bool {
	return s.Objects().Admission && (s.namespace == "" || imagegate.Within(s.namespace, r))
}

// Mutate implements admission.Mutator.
func (g *Gate) Mutate(ctx context.Context, r *admission.Request) error {
	if r.Object == nil {
		return nil
	}
	now, err := g.current.Get(ctx)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	for _, p := range now.mutating.For(r, g.cfg.Policies.Resources) {
		if !p.reaches(r) {
			continue
		}
		if asked := changed(r); !slices.Contains(*asked, p) {
			*asked = append(*asked, p)
		}
		before := r.Object.Changes()
		if err := p.Mutate(ctx, r, g.reach(p, r)); err != nil {
			return err
		}
		if r.Object.Changes() == before {
			continue
		}
		if err := pointadmission.MayChange(ctx, g.cfg.Rights, p.writer, r); err != nil {
			return admission.Forbidden(r, errors.New(p.kind+" '"+p.name+"': "+err.Error()))
		}
		r.ChangedFor(p.writer.Writer)
	}
	return nil
}

type changedKey struct{}

// changed are the policies that were asked to change a request's object.
func changed(r *admission.Request) *[]*standing {
	return r.Memo(changedKey{}, func() any { return &[]*standing{} }).(*[]*standing)
}

// Again implements admission.Again.
func (g *Gate) Again(r *admission.Request) bool {
	return slices.ContainsFunc(*changed(r), func(p *standing) bool { return p.Again(r) })
}

// Validate implements admission.Validator.
func (g *Gate) Validate(ctx context.Context, r *admission.Request) error {
	now, err := g.current.Get(ctx)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	for _, p := range now.validating.For(r, g.cfg.Policies.Resources) {
		if p.reaches(r) {
			if err := p.Validate(ctx, r, g.reach(p, r)); err != nil {
				return err
			}
		}
	}
	return nil
}

// Standing is a policy that is asked about what is stored already. It is asked beside requests, and has no effect on any.
type Standing struct {
	gate   *Gate
	policy *standing
}

// Standing are the policies that want to judge what is stored.
func (g *Gate) Standing(ctx context.Context) (out []Standing, err error) {
	now, err := g.current.Get(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range now.validating.All() {
		if o := p.Objects(); o.Background && o.Admission {
			out = append(out, Standing{g, p})
		}
	}
	return out, nil
}

// Kind of the policy.
func (s Standing) Kind() string { return s.policy.kind }

// Name of the policy.
func (s Standing) Name() string { return s.policy.name }

// Namespace to which the policy belongs; "" = the cluster.
func (s Standing) Namespace() string { return s.policy.namespace }

// Version changes with the policy and its exceptions.
func (s Standing) Version() string { return s.policy.version }

// Warns says that what the policy has against an object is a warning.
func (s Standing) Warns() bool {
	b := s.policy.Objects().ValidatingBindings[0]
	return slices.Equal(b.Spec.ValidationActions, []admissionregistrationv1.ValidationAction{admissionregistrationv1.Warn})
}

// About says whether the policy may be about objects of a resource, by what its rules say of an operation.
func (s Standing) About(r schema.GroupResource, op admission.Operation) bool {
	has := func(list []string, one string) bool { return slices.Contains(list, "*") || slices.Contains(list, one) }
	for _, p := range s.policy.Objects().Validating {
		for _, rule := range p.Spec.MatchConstraints.ResourceRules {
			if has(rule.APIGroups, r.Group) && has(rule.Resources, r.Resource) &&
				(slices.Contains(rule.Operations, admissionregistrationv1.OperationAll) ||
					slices.Contains(rule.Operations, admissionregistrationv1.OperationType(op))) {
				return true
			}
		}
	}
	return false
}

// Judge says what the policy has against the object of a request.
func (s Standing) Judge(ctx context.Context, r *admission.Request) (asked bool, found []policy.Finding, err error) {
	if !s.gate.Handles(r) || !s.policy.reaches(r) {
		return false, nil, nil
	}
	return s.policy.Judge(ctx, r, s.gate.reach(s.policy, r))
}
