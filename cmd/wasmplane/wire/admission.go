package wire

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/builtin"
	"github.com/wasmplane/wasmplane/core/admission/matching"
	"github.com/wasmplane/wasmplane/core/admission/quotaadmission"
	"github.com/wasmplane/wasmplane/core/admission/webhook"
	"github.com/wasmplane/wasmplane/core/auth/authz"
)

// admission is the chain. Its order is documented in docs/ADMISSION.md: the
// built-in plugins in upstream's order, webhooks, the Wasm plugins in the order of
// the configuration, and the quotas last, so that nothing is charged for what
// somebody refuses.
func (s *server) admission(chain *authz.Chain) (*admission.Chain, error) {
	list, err := builtin.Default(builtin.Deps{Client: s.internal.Kube, Informers: s.informers, Authorizer: chain})
	if err != nil {
		return nil, err
	}
	conditions := matching.NewMetrics()
	for _, c := range conditions.Collectors() {
		if err := s.metrics.Register(c); err != nil {
			return nil, err
		}
	}
	hooks, err := webhook.New(webhook.Config{
		Client: s.internal.Kube, Informers: s.informers, Authorizer: chain, Resources: lateResources{s},
		Conditions: conditions, Log: s.o.Logger,
	})
	if err != nil {
		return nil, err
	}
	if err := hooks.Register(s.metrics); err != nil {
		return nil, err
	}
	list = append(list, s.plugins.guard(), hooks.Mutating(), hooks.Validating())
	quotas, err := quotaadmission.New(quotaadmission.Config{Client: s.internal.Kube, Informers: s.informers, Log: s.o.Logger})
	if err != nil {
		return nil, err
	}
	order := func() []admission.Plugin {
		return slices.Concat(list, s.plugins.admission(), []admission.Plugin{quotas})
	}
	admit, err := admission.NewChain(order()...)
	if err != nil {
		return nil, err
	}
	s.plugins.onChange(func() {
		if err := admit.Replace(order()...); err != nil {
			s.o.Logger.Error("the admission plugins stay as they were", "error", err)
		}
	})
	return admit, admit.Register(s.metrics)
}

// lateResources is the set of registries, which is made after admission.
type lateResources struct{ s *server }

// Equivalents implements admission.Resources.
func (l lateResources) Equivalents(gvr schema.GroupVersionResource, subresource string) []admission.Equivalent {
	if l.s.registries == nil {
		return nil
	}
	return l.s.registries.Equivalents(gvr, subresource)
}
