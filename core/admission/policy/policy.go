// SPDX-License-Identifier: Apache-2.0

// Package policy judges requests by ValidatingAdmissionPolicies and changes them
// by MutatingAdmissionPolicies: CEL expressions with their bindings and
// parameters, those of the API, followed live, and those of files.
//
// Expressions see what upstream's see (object, oldObject, request, params,
// namespaceObject, variables, authorizer), within upstream's cost budgets: the
// evaluation is upstream's library. Which policy applies, with which parameters,
// what its outcome means, in which words it is told, recorded and measured, is
// decided here.
//
// A policy is compiled once per state of it. Parameters are read from the watch
// cache, custom resources too: no informer is kept for them. Policies of the API
// never judge policies, bindings and webhook configurations.
package policy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/matching"
)

// The plugins' names, as upstream has them.
const (
	ValidatingName = "ValidatingAdmissionPolicy"
	MutatingName   = "MutatingAdmissionPolicy"
)

// Objects reads parameters. What it answers is shared and has its kind set.
type Objects interface {
	// Namespaced says whether a kind's objects are in namespaces; known is false
	// for a kind that is not served.
	Namespaced(kind schema.GroupVersionKind) (namespaced, known bool)
	// Get answers an error that apierrors.IsNotFound knows where there is none.
	Get(ctx context.Context, kind schema.GroupVersionKind, namespace, name string) (runtime.Object, error)
	List(ctx context.Context, kind schema.GroupVersionKind, namespace string, selector labels.Selector) ([]runtime.Object, error)
}

// Static are the policies of files. What it returns is replaced, never changed,
// when the files change.
type Static interface {
	ValidatingPolicies() ([]*admissionregistrationv1.ValidatingAdmissionPolicy, []*admissionregistrationv1.ValidatingAdmissionPolicyBinding)
	MutatingPolicies() ([]*admissionregistrationv1.MutatingAdmissionPolicy, []*admissionregistrationv1.MutatingAdmissionPolicyBinding)
}

// Config of the policies.
type Config struct {
	Client     kubernetes.Interface               // finds namespaces that informers have not seen yet
	Informers  informers.SharedInformerFactory    // the caller starts them
	Authorizer authorizer.UnconditionalAuthorizer // answers the authorizer variable
	Resources  admission.Resources                // tells which resources are one; nil: none are
	Objects    Objects                            // reads parameters
	// Types knows the schema of a kind, for apply configurations.
	Types func(kind schema.GroupVersionKind) (managedfields.TypeConverter, error)
	// Static are the policies of files; nil: there are none.
	Static Static
	// Environment has the language of the expressions; nil: that of Kubernetes.
	Environment *environment.EnvSet
	// Name tells the rounds of several Policies that take part in one request from each other.
	Name string
	// Conditions are the metrics of match conditions, shared with the webhooks; nil = discard.
	Conditions *matching.Metrics
	// Warm bounds how long a request waits for policies that are still being read; 0 = 10 s.
	Warm time.Duration
	Log  *slog.Logger // nil = discard
}

// Policies are both plugins with what they share.
type Policies struct {
	cfg        Config
	env        *environment.EnvSet
	namespaces matching.Namespaces
	metrics    *metrics
	validating *source[*validatingPolicy]
	mutating   *source[*mutatingPolicy]

	staticValidating files[*validatingPolicy]
	staticMutating   files[*mutatingPolicy]
}

// New makes the policies. It registers the informers that it needs.
func New(cfg Config) (*Policies, error) {
	if cfg.Client == nil || cfg.Informers == nil || cfg.Authorizer == nil || cfg.Objects == nil || cfg.Types == nil {
		return nil, errors.New("admission policies: Client, Informers, Authorizer, Objects and Types are all needed")
	}
	if cfg.Warm <= 0 {
		cfg.Warm = 10 * time.Second
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Conditions == nil {
		cfg.Conditions = matching.NewMetrics()
	}
	p := &Policies{
		cfg: cfg, env: cfg.environment(), metrics: newMetrics(),
		namespaces: matching.Namespaces{Lister: cfg.Informers.Core().V1().Namespaces().Lister(), Client: cfg.Client},
	}
	cfg.Informers.Core().V1().Namespaces().Informer()
	r := cfg.Informers.Admissionregistration().V1()
	var err error
	if p.validating, err = newSource(r.ValidatingAdmissionPolicies().Informer(), r.ValidatingAdmissionPolicyBindings().Informer(),
		p.newValidating); err != nil {
		return nil, fmt.Errorf("admission policies: %w", err)
	}
	if p.mutating, err = newSource(r.MutatingAdmissionPolicies().Informer(), r.MutatingAdmissionPolicyBindings().Informer(),
		p.newMutating); err != nil {
		return nil, fmt.Errorf("admission policies: %w", err)
	}
	return p, nil
}

// environment is that of the expressions.
func (c *Config) environment() *environment.EnvSet {
	if c.Environment != nil {
		return c.Environment
	}
	return matching.NewEnvironment()
}

// Validating is the plugin of ValidatingAdmissionPolicies.
func (p *Policies) Validating() admission.Validator { return validating{p} }

// Mutating is the plugin of MutatingAdmissionPolicies.
func (p *Policies) Mutating() admission.Mutator { return mutating{p} }

// Register adds the policies' metrics to r.
func (p *Policies) Register(r prometheus.Registerer) error {
	for _, c := range p.metrics.collectors() {
		if err := r.Register(c); err != nil {
			return fmt.Errorf("register the policies' metrics: %w", err)
		}
	}
	return nil
}
