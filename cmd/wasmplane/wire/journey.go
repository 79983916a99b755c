// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"

	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/trace"
	"github.com/wasmplane/wasmplane/core/trace/journey"
	"github.com/wasmplane/wasmplane/core/trace/otlp"
)

// Journey asks the server for the journey of an object.
func Journey(ctx context.Context, kubeconfig string, q trace.Query) (*journey.Journey, error) {
	cfg, err := client.FromKubeconfig(kubeconfig, "trace")
	if err != nil {
		return nil, err
	}
	set, err := client.New(cfg)
	if err != nil {
		return nil, err
	}
	return otlp.Ask(ctx, set.Kube.Discovery().RESTClient(), q)
}
