// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"encoding/json"
	"fmt"

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
	r := set.Kube.Discovery().RESTClient().Get().AbsPath(otlp.JourneyPath).
		Param("kind", q.Kind).Param("namespace", q.Namespace).Param("name", q.Name)
	if q.All {
		r = r.Param("all", "true")
	}
	data, err := r.SetHeader("Accept", "application/json").DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("ask for the journey of %s/%s: %w", q.Kind, q.Name, err)
	}
	var j journey.Journey
	if err := json.Unmarshal(data, &j); err != nil {
		return nil, fmt.Errorf("read the journey: %w", err)
	}
	return &j, nil
}
