// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"context"
	"encoding/json"
	"fmt"

	"k8s.io/client-go/rest"

	"github.com/wasmplane/wasmplane/core/trace"
	"github.com/wasmplane/wasmplane/core/trace/journey"
)

// Ask has an API server tell the journey of an object.
func Ask(ctx context.Context, server rest.Interface, q trace.Query) (*journey.Journey, error) {
	r := server.Get().AbsPath(JourneyPath).Param("kind", q.Kind).Param("namespace", q.Namespace).Param("name", q.Name)
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
