// SPDX-License-Identifier: Apache-2.0

// Package webhook asks admission webhooks: the two plugins that stand for every
// MutatingWebhookConfiguration and ValidatingWebhookConfiguration, those of the
// API, followed live, and those of files.
//
// It guarantees what upstream does: rules, selectors and match conditions decide
// who is asked; mutating webhooks are asked one after the other, by name of their
// configuration, and again where their reinvocationPolicy says so; validating
// ones all at once; a webhook that cannot be asked refuses or not as its
// failurePolicy says. An object is encoded once per version, not once per webhook.
//
// It refuses to trust a webhook: its answer is bounded in size and time, must
// carry the question's uid, is never followed to another place, and its patch
// cannot grow an object without bounds. Configurations of the API never judge
// configurations.
package webhook

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/matching"
	"github.com/wasmplane/wasmplane/core/dial"
)

// The plugins' names, as upstream has them.
const (
	MutatingName   = "MutatingAdmissionWebhook"
	ValidatingName = "ValidatingAdmissionWebhook"
)

// Config of the webhooks.
type Config struct {
	// Client finds namespaces that informers have not seen yet, and the Services
	// and endpoints of webhooks.
	Client kubernetes.Interface
	// Informers are shared with the rest of the server; the caller starts them.
	Informers informers.SharedInformerFactory
	// Authorizer answers match conditions' authorizer variable.
	Authorizer authorizer.UnconditionalAuthorizer
	// Resources tells which resources are one; nil: none are.
	Resources admission.Resources
	// MutatingCredentials and ValidatingCredentials say as whom webhooks are asked;
	// nil: as nobody.
	MutatingCredentials, ValidatingCredentials webhookutil.AuthenticationInfoResolver
	// Dial says where webhooks may be; nil: an operator's policy.
	Dial *dial.Policy
	// Static are the configurations of files; nil: there are none.
	Static Static
	// Conditions are the metrics of match conditions, shared with the policies; nil = discard.
	Conditions *matching.Metrics
	// Warm bounds how long a request waits for configurations that are still
	// being read; 0 = 10 s.
	Warm time.Duration
	Log  *slog.Logger // nil = discard
}

// Webhooks are both plugins with what they share.
type Webhooks struct {
	cfg        Config
	compiler   matching.Compiler
	namespaces matching.Namespaces
	clients    map[string]*clients // by the plugin that asks
	metrics    *metrics
	mutating   *source
	validating *source

	staticMutating   static[*admissionregistrationv1.MutatingWebhookConfiguration]
	staticValidating static[*admissionregistrationv1.ValidatingWebhookConfiguration]
}

// New makes the webhooks. It registers the informers that it needs.
func New(cfg Config) (*Webhooks, error) {
	if cfg.Client == nil || cfg.Informers == nil || cfg.Authorizer == nil {
		return nil, errors.New("admission webhooks: Client, Informers and Authorizer are all needed")
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
	w := &Webhooks{
		cfg:        cfg,
		compiler:   cel.NewConditionCompiler(matching.NewEnvironment()),
		namespaces: matching.Namespaces{Lister: cfg.Informers.Core().V1().Namespaces().Lister(), Client: cfg.Client},
		clients: map[string]*clients{
			MutatingName:   newClients(cfg.Client, cfg.MutatingCredentials, cfg.Dial.Or()),
			ValidatingName: newClients(cfg.Client, cfg.ValidatingCredentials, cfg.Dial.Or()),
		},
		metrics: newMetrics(),
	}
	// Asking for the informer registers it; whoever asks only for the lister later
	// than the start would find it empty.
	cfg.Informers.Core().V1().Namespaces().Informer()
	registration := cfg.Informers.Admissionregistration().V1()
	var err error
	if w.mutating, err = newSource(registration.MutatingWebhookConfigurations().Informer(), w.compileMutating); err != nil {
		return nil, fmt.Errorf("admission webhooks: %w", err)
	}
	if w.validating, err = newSource(registration.ValidatingWebhookConfigurations().Informer(), w.compileValidating); err != nil {
		return nil, fmt.Errorf("admission webhooks: %w", err)
	}
	return w, nil
}

// Mutating is the plugin that asks mutating webhooks.
func (w *Webhooks) Mutating() admission.Mutator { return mutating{w} }

// Validating is the plugin that asks validating webhooks.
func (w *Webhooks) Validating() admission.Validator { return validating{w} }

// Register adds the webhooks' metrics to r.
func (w *Webhooks) Register(r prometheus.Registerer) error {
	for _, c := range w.metrics.collectors() {
		if err := r.Register(c); err != nil {
			return fmt.Errorf("register the webhooks' metrics: %w", err)
		}
	}
	return nil
}
