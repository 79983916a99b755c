// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"log/slog"

	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/wasmplane/wasmplane/core/admission/matching"
)

// Alone are the policies of cfg.Static without an API beside them, to try policies before anybody is
// judged by them, or to judge by policies that are no objects of the API themselves. Of cfg, Static, Authorizer, Resources, Types,
// Environment and Name are read; parameters are not known. Client, if there is one, finds namespaces that namespaces does not know.
func Alone(cfg Config, namespaces corelisters.NamespaceLister) *Policies {
	cfg.Conditions, cfg.Log = matching.NewMetrics(), slog.New(slog.DiscardHandler)
	return &Policies{
		cfg: cfg, env: cfg.environment(), metrics: newMetrics(),
		namespaces: matching.Namespaces{Lister: namespaces, Client: cfg.Client},
		validating: &source[*validatingPolicy]{}, mutating: &source[*mutatingPolicy]{},
	}
}
