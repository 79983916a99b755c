// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"log/slog"

	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/wasmplane/wasmplane/core/admission/matching"
)

// Alone are the policies of cfg.Static without an API beside them, to try policies before anybody is
// judged by them. Of cfg, Static, Authorizer, Resources and Types are read; parameters are not known.
// namespaces has to know every namespace that it is asked for.
func Alone(cfg Config, namespaces corelisters.NamespaceLister) *Policies {
	cfg.Conditions, cfg.Log = matching.NewMetrics(), slog.New(slog.DiscardHandler)
	return &Policies{
		cfg: cfg, env: matching.NewEnvironment(), metrics: newMetrics(),
		namespaces: matching.Namespaces{Lister: namespaces},
		validating: &source[*validatingPolicy]{}, mutating: &source[*mutatingPolicy]{},
	}
}
