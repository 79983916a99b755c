// SPDX-License-Identifier: Apache-2.0

package wanted_test

import (
	"context"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/api"
	"github.com/wasmplane/wasmplane/core/api/decodedsize"
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

// lookup is a resource of the core group.
func lookup(t *testing.T, name string) (*api.Contract, *api.Resource, object.Codec) {
	t.Helper()
	contract, err := api.New()
	if err != nil {
		t.Fatal(err)
	}
	resource, codec, ok := contract.Lookup(schema.GroupVersionResource{Version: "v1", Resource: name})
	if !ok {
		t.Fatalf("there are no %s", name)
	}
	return contract, resource, codec
}

// TestEachStepOfAPatchMayBeTheLast: the request may end at any of them, and the next one is not begun.
func TestEachStepOfAPatchMayBeTheLast(t *testing.T) {
	contract, resource, codec := lookup(t, "configmaps")
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

// needs is an account that has as much as is needed.
type needs [decodedsize.Parts]int64

func (n *needs) Need(p decodedsize.Part, bytes int64) error {
	n[p] = max(n[p], bytes)
	return nil
}

// TestWhatIsTakenWhileABodyIsDecodedCounts, once for a request: for JSON twice what stays; what is counted of YAML has it.
func TestWhatIsTakenWhileABodyIsDecodedCounts(t *testing.T) {
	contract, resource, codec := lookup(t, "configmaps")
	const data = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":{"a":"b"}}`
	for media, times := range map[string]int64{object.JSON: 2, object.YAML: 0} {
		b := wanted.Body{Contract: contract, Resource: resource, Codec: codec, Version: "v1", Name: "a", Data: []byte(data), MediaType: media}
		var n needs
		if _, err := b.Decode(decodedsize.With(t.Context(), &n)); err != nil {
			t.Fatal(err)
		}
		if n[decodedsize.Decoded] < int64(len(data)) || n[decodedsize.While] != times*n[decodedsize.Decoded] {
			t.Errorf("%s: %d counted, and %d for a moment", media, n[decodedsize.Decoded], n[decodedsize.While])
		}
	}
	versioned, err := codec.Decode([]byte(data), object.JSON)
	if err != nil {
		t.Fatal(err)
	}
	var n needs
	b := wanted.Body{
		Contract: contract, Resource: resource, Codec: codec, Version: "v1", Name: "a", Manager: "tester",
		Data: []byte(`{"data":{"c":"d"}}`), PatchType: types.MergePatchType,
	}
	if _, err := b.Patch(decodedsize.With(t.Context(), &n), object.FromVersioned(codec, versioned)); err != nil {
		t.Fatal(err)
	}
	if n[decodedsize.While] != 2*max(n[decodedsize.Decoded], n[decodedsize.Current], n[decodedsize.Result]) {
		t.Errorf("of a patch: %v", n)
	}
}

// TestAnApplyInYAMLCountsAsInJSON: what comes of it takes as much, in whichever form it was sent.
func TestAnApplyInYAMLCountsAsInJSON(t *testing.T) {
	contract, resource, codec := lookup(t, "pods")
	const entries = 1000
	asked := map[string]int64{}
	for form, data := range map[string]string{
		"JSON": `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"spec":{"containers":[` + strings.Repeat("{},", entries) + `{}]}}`,
		"YAML": "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\nspec:\n  containers:\n" + strings.Repeat("  - {}\n", entries+1),
	} {
		b := wanted.Body{
			Contract: contract, Resource: resource, Codec: codec, Version: "v1", Name: "a", Manager: "tester",
			Data: []byte(data), PatchType: types.ApplyYAMLPatchType,
		}
		versioned, err := codec.Decode([]byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"}}`), object.JSON)
		if err != nil {
			t.Fatal(err)
		}
		var n needs
		_, _ = b.Patch(decodedsize.With(t.Context(), &n), object.FromVersioned(codec, versioned)) // whatever comes of it
		asked[form] = n[decodedsize.Result]
	}
	if asked["JSON"] < entries*300 || asked["YAML"] < asked["JSON"] {
		t.Errorf("counted %v", asked)
	}
}

// TestWhatWouldBeLargeIsNotDecoded: entries of three bytes would become half a gigabyte of containers, in whatever form they come.
func TestWhatWouldBeLargeIsNotDecoded(t *testing.T) {
	contract, resource, codec := lookup(t, "pods")
	const pod = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","namespace":"ns"},"spec":{"containers":[{"name":"c","image":"x"}]}}`
	versioned, err := codec.Decode([]byte(pod), object.JSON)
	if err != nil {
		t.Fatal(err)
	}
	many := func(n int) string { return "[" + strings.Repeat("{},", n) + `{"name":"c"}]` }
	for name, c := range map[string]struct {
		kind         types.PatchType
		media        string
		before, tail string
	}{
		"JSON":            {"", object.JSON, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"spec":{"containers":`, `}}`},
		"YAML":            {"", object.YAML, "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: ", "}"},
		"merge patch":     {types.MergePatchType, "", `{"spec":{"containers":`, `}}`},
		"JSON patch":      {types.JSONPatchType, "", `[{"op":"add","path":"/spec/containers","value":`, `}]`},
		"strategic merge": {types.StrategicMergePatchType, "", `{"spec":{"ephemeralContainers":[{"name":"e","env":`, `}]}}`},
		"apply":           {types.ApplyYAMLPatchType, "", `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"spec":{"initContainers":`, `}}`},
	} {
		do := func(n int) error {
			b := wanted.Body{
				Contract: contract, Resource: resource, Codec: codec, Version: "v1", Name: "a", Manager: "tester",
				Data: []byte(c.before + many(n) + c.tail), MediaType: c.media, PatchType: c.kind,
			}
			if c.kind == "" {
				_, err := b.Decode(t.Context())
				return err
			}
			_, err := b.Patch(t.Context(), object.FromVersioned(codec, versioned.DeepCopyObject()))
			return err
		}
		if err := do(1 << 20); !apierrors.IsRequestEntityTooLargeError(err) || len(err.Error()) > 1000 {
			t.Errorf("%s: %.200v", name, err)
		}
		if err := do(10); err != nil && strings.Contains(err.Error(), "once it is decoded") {
			t.Errorf("%s of ten: %v", name, err)
		}
	}
}
