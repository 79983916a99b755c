// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	kjson "sigs.k8s.io/json"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/matching"
	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/core/trace"
)

// Bounds on a patch, as on those of clients: copies within one can grow an
// object exponentially.
const (
	maxOperations = 10_000
	maxPatched    = 16 << 20
)

// mutating asks the mutating webhooks.
type mutating struct{ *Webhooks }

func (mutating) Name() string { return MutatingName }

func (m mutating) Handles(r *admission.Request) bool { return m.handles(r, true) }

type roundsKey struct{}

// Again implements admission.Again: a webhook wants to see what a later one did.
func (m mutating) Again(r *admission.Request) bool { return matching.RoundsOf(r, roundsKey{}).Again() }

// Mutate implements admission.Mutator.
func (m mutating) Mutate(ctx context.Context, r *admission.Request) error {
	hooks, err := m.hooks(ctx, r, true)
	if err != nil {
		return err
	}
	state := matching.RoundsOf(r, roundsKey{})
	round := 0
	if state.Begin(changes(r)) {
		round = 1
	}
	defer func() { state.End(changes(r)) }()
	for i, h := range hooks {
		if round == 1 && !state.Due(h.id) {
			continue
		}
		k, err := m.choose(ctx, h, r)
		if err != nil {
			return err
		}
		if k == nil {
			continue
		}
		if err := m.turn(ctx, k, r, state, round, i); err != nil {
			return err
		}
	}
	return nil
}

func changes(r *admission.Request) int {
	if r.Object == nil {
		return 0
	}
	return r.Object.Changes()
}

// turn asks one webhook and does what it says.
func (m mutating) turn(ctx context.Context, k *invocation, r *admission.Request, state *matching.Rounds, round, index int) error {
	h := k.hook
	began := time.Now()
	ctx, span := m.span(ctx, trace.AdmissionMutate, h)
	changed, patch, err := m.mutate(ctx, k, r)
	m.metrics.observe(ctx, h, "admit", r.Operation, time.Since(began), err)
	span.end(patch, changed, err, h.ignore)
	at := fmt.Sprintf("round_%d_index_%d", round, index)
	r.Annotate("mutation.webhook.admission.k8s.io/"+at, note{Configuration: h.configuration, Webhook: h.name, Mutated: &changed}.text())
	if patch != nil {
		r.AnnotateBodies("patch.webhook.admission.k8s.io/"+at,
			note{Configuration: h.configuration, Webhook: h.name, Patch: patch, PatchType: admissionv1.PatchTypeJSONPatch}.text())
	}
	if changed {
		state.Changed()
	}
	if h.reinvoke && round == 0 {
		state.Wants(h.id)
	}
	state.Done(h.id)
	return m.outcome(ctx, h, r, "admit", "failed-open.mutation.webhook.admission.k8s.io/"+at, err)
}

// note is the text of an audit annotation, with the fields of upstream's.
type note struct {
	Configuration string                `json:"configuration"`
	Webhook       string                `json:"webhook"`
	Mutated       *bool                 `json:"mutated,omitempty"`
	Patch         json.RawMessage       `json:"patch,omitempty"`
	PatchType     admissionv1.PatchType `json:"patchType,omitempty"`
}

func (n note) text() string {
	text, err := json.Marshal(n)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// outcome is what a call means for the request.
func (w *Webhooks) outcome(ctx context.Context, h *hook, r *admission.Request, step, failedOpen string, err error) error {
	if err == nil {
		return nil
	}
	var refused *rejection
	if errors.As(err, &refused) {
		return refused.status
	}
	var call *callError
	if !errors.As(err, &call) {
		return err
	}
	if !h.ignore {
		w.cfg.Log.WarnContext(ctx, "a webhook could not be asked; the request is refused", "webhook", h.name, "configuration", h.configuration,
			"error", call.reason)
		return apierrors.NewInternalError(err)
	}
	w.cfg.Log.WarnContext(ctx, "a webhook could not be asked; its failure policy lets the request through", "webhook", h.name,
		"configuration", h.configuration, "error", call.reason)
	if !errors.Is(call.reason, context.Canceled) {
		w.metrics.failOpen.WithLabelValues(h.name, step).Inc()
		r.Annotate(failedOpen, h.name)
	}
	if ctx.Err() != nil {
		return apierrors.NewTimeoutError("request did not complete within requested timeout", 0)
	}
	return nil
}

// mutate asks and patches. The chain fills in defaults after a plugin's turn;
// the next webhook of the same turn must see them as well.
func (m mutating) mutate(ctx context.Context, k *invocation, r *admission.Request) (changed bool, patch []byte, err error) {
	a, err := m.ask(ctx, k, r, true)
	if err != nil || len(a.patch) == 0 {
		return false, nil, err
	}
	h := k.hook
	ops, err := jsonpatch.DecodePatch(a.patch)
	switch {
	case err != nil:
		return false, nil, &callError{
			h.name, fmt.Errorf("received undecodable patch in webhook response: %w", err),
			apierrors.NewServiceUnavailable("error decoding patch in webhook response"),
		}
	case len(ops) == 0:
		return false, nil, nil
	case k.view.Object == nil:
		return false, nil, apierrors.NewInternalError(fmt.Errorf("admission webhook %q attempted to modify the object, which is not supported for this operation", h.name))
	case a.patchType != admissionv1.PatchTypeJSONPatch:
		return false, nil, &callError{h.name, fmt.Errorf("unsupported patch type %q", a.patchType), refused(h.name, a.result)}
	}
	next, err := apply(k.view, ops, a.patch)
	if err != nil {
		return false, nil, apierrors.NewInternalError(err)
	}
	before, err := matching.Typed(k.view.Object)
	if err != nil {
		return false, nil, apierrors.NewInternalError(err)
	}
	if apiequality.Semantic.DeepEqual(before, next) {
		return false, a.patch, nil
	}
	k.view.Object.Codec().Default(next)
	if err := k.view.Set(ctx, r, next); err != nil {
		return false, nil, apierrors.NewInternalError(err)
	}
	return true, a.patch, nil
}

// apply is the view's object with the patch applied, decoded.
func apply(v *matching.View, ops jsonpatch.Patch, raw []byte) (runtime.Object, error) {
	before, err := v.Object.Encoded(object.JSON)
	if err != nil {
		return nil, err
	}
	if err := bounded(before, raw, len(ops)); err != nil {
		return nil, err
	}
	after, err := ops.Apply(before)
	if err != nil {
		return nil, err
	}
	next, err := v.Object.Codec().Decode(after, object.JSON)
	if err != nil {
		return nil, err
	}
	if got := next.GetObjectKind().GroupVersionKind(); !got.Empty() && got != v.Object.Kind() {
		return nil, fmt.Errorf("the webhook's patch turns %v to %v, which no patch may", v.Object.Kind(), got)
	}
	return object.Named(next, v.Object.Kind()), nil
}

// bounded refuses a patch that could blow the object up: each copy at most doubles it.
func bounded(before, raw []byte, operations int) error {
	if operations > maxOperations {
		return fmt.Errorf("the allowed maximum operations in a JSON patch is %d, got %d", maxOperations, operations)
	}
	var list []struct {
		Op string `json:"op"`
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, &list); err != nil {
		return err
	}
	size := len(before) + len(raw)
	for _, op := range list {
		if op.Op != "copy" {
			continue
		}
		if size *= 2; size > maxPatched {
			return fmt.Errorf("the copy operations of the webhook's JSON patch could make the object larger than %d bytes", maxPatched)
		}
	}
	return nil
}
