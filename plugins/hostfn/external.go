// SPDX-License-Identifier: Apache-2.0

package hostfn

import (
	"context"

	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/wasmplane/wasmplane/plugins/host"
)

// External asks providers of external data (Gatekeeper's).
type External interface {
	// Ask asks a provider about keys. What goes wrong is in the answer.
	Ask(ctx context.Context, provider string, keys []string) map[string]any
}

// HasExternal says whether there are providers to ask.
func (f *Functions) HasExternal() bool { return f.backend.External != nil }

// ExternalData asks a provider about keys, for a constraint of Gatekeeper whose writer may get that Provider: what the constraint
// asks about leaves the cluster.
func (c *Caller) ExternalData(ctx context.Context, provider string, keys []string) (map[string]any, error) {
	if c.f.backend.External == nil {
		return nil, notHere("providers of external data")
	}
	if c.e.Namespace != "" {
		return nil, c.refused("ask providers of external data", "nothing: it belongs to a namespace")
	}
	if err := c.may(ctx, authorizationv1.ResourceAttributes{
		Verb: "get", Group: "externaldata.gatekeeper.sh", Resource: "providers", Name: provider,
	}); err != nil {
		return nil, err
	}
	if err := host.Charge(ctx, costOfConnection); err != nil {
		return nil, err
	}
	return c.f.backend.External.Ask(ctx, provider, keys), nil
}
