// SPDX-License-Identifier: Apache-2.0

package wanted_test

import (
	"context"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/api"
	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/core/registry/wanted"
)

// lasting is a context that ends after it has been asked so many times whether it has.
type lasting struct {
	context.Context
	asks int
}

func (l *lasting) Err() error {
	if l.asks--; l.asks < 0 {
		return context.DeadlineExceeded
	}
	return nil
}

// TestEachStepOfAPatchMayBeTheLast: the request may end at any of them, and the next one is not begun.
func TestEachStepOfAPatchMayBeTheLast(t *testing.T) {
	contract, err := api.New()
	if err != nil {
		t.Fatal(err)
	}
	resource, codec, ok := contract.Lookup(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"})
	if !ok {
		t.Fatal("there are no config maps")
	}
	const whole = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"ns"},"data":{"k":"v"}}`
	versioned, err := codec.Decode([]byte(whole), object.JSON)
	if err != nil {
		t.Fatal(err)
	}
	body := func(kind types.PatchType, data string) wanted.Body {
		return wanted.Body{
			Contract: contract, Resource: resource, Codec: codec, Version: "v1", Name: "a", Manager: "tester",
			Data: []byte(data), MediaType: object.JSON, PatchType: kind,
		}
	}
	patch := func(b wanted.Body) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := b.Patch(ctx, object.FromVersioned(codec, versioned.DeepCopyObject()))
			return err
		}
	}
	created := body("", whole)
	for name, c := range map[string]struct {
		steps int // between which it looks
		do    func(context.Context) error
	}{
		"body":            {1, func(ctx context.Context) error { _, err := created.Decode(ctx); return err }},
		"merge patch":     {4, patch(body(types.MergePatchType, `{"data":{"k":"w"}}`))},
		"JSON patch":      {4, patch(body(types.JSONPatchType, `[{"op":"remove","path":"/data/k"}]`))},
		"strategic merge": {3, patch(body(types.StrategicMergePatchType, `{"data":{"k":"w"}}`))},
		"apply":           {2, patch(body(types.ApplyYAMLPatchType, whole))},
	} {
		t.Run(name, func(t *testing.T) {
			for step := range c.steps {
				if err := c.do(&lasting{t.Context(), step}); !apierrors.IsTimeout(err) {
					t.Errorf("over at look %d: %v", step, err)
				}
			}
			if err := c.do(&lasting{t.Context(), c.steps}); err != nil {
				t.Errorf("over behind the last look: %v", err)
			}
		})
	}
}
