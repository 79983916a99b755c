// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/matching"
	"github.com/wasmplane/wasmplane/core/trace"
)

// validating asks the validating webhooks.
type validating struct{ *Webhooks }

func (validating) Name() string { return ValidatingName }

func (v validating) Handles(r *admission.Request) bool { return v.handles(r, false) }

// handles says cheaply whether there is any webhook to ask.
func (w *Webhooks) handles(r *admission.Request, mutates bool) bool {
	switch {
	case matching.IsReview(r):
		return false
	case len(w.static(mutates)) > 0:
		return true
	case matching.IsConfiguration(r):
		return false
	}
	s := w.source(mutates)
	select {
	case <-s.synced.Done():
		return len(s.current()) > 0
	default:
		return true // unknown yet
	}
}

func (w *Webhooks) source(mutates bool) *source {
	if mutates {
		return w.mutating
	}
	return w.validating
}

// static are the webhooks of files.
func (w *Webhooks) static(mutates bool) []*hook {
	switch {
	case w.cfg.Static == nil:
		return nil
	case mutates:
		return w.staticMutating.current(w.cfg.Static.Mutating(), w.compileMutating)
	default:
		return w.staticValidating.current(w.cfg.Static.Validating(), w.compileValidating)
	}
}

// hooks to be asked: those of files first, then those of the API.
func (w *Webhooks) hooks(ctx context.Context, r *admission.Request, mutates bool) ([]*hook, error) {
	files := w.static(mutates)
	if matching.IsConfiguration(r) {
		return files, nil
	}
	s := w.source(mutates)
	if err := s.ready(ctx, r, w.cfg.Warm); err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return s.current(), nil
	}
	return append(files[:len(files):len(files)], s.current()...), nil
}

// Validate implements admission.Validator: all at once, and the first refusal in
// the list's order is the one that is told.
func (v validating) Validate(ctx context.Context, r *admission.Request) error {
	hooks, err := v.hooks(ctx, r, false)
	if err != nil {
		return err
	}
	var chosen []*invocation
	for _, h := range hooks {
		k, err := v.choose(ctx, h, r)
		if err != nil {
			return err
		}
		if k != nil {
			chosen = append(chosen, k)
		}
	}
	if len(chosen) == 0 {
		return nil
	}
	if ctx.Err() != nil {
		return apierrors.NewTimeoutError("request did not complete within requested timeout", 0)
	}
	errs := make([]error, len(chosen))
	if len(chosen) == 1 {
		errs[0] = v.turn(ctx, chosen[0], r, 0)
	} else {
		var all sync.WaitGroup
		for i, k := range chosen {
			all.Go(func() { errs[i] = v.turn(ctx, k, r, i) })
		}
		all.Wait()
	}
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func (v validating) turn(ctx context.Context, k *invocation, r *admission.Request, index int) (err error) {
	h := k.hook
	defer func() {
		// The answer comes from outside; what it breaks here must not end the process.
		if p := recover(); p != nil {
			err = apierrors.NewInternalError(fmt.Errorf("%s/%v has panicked: %v", ValidatingName, h.name, p))
		}
	}()
	began := time.Now()
	ctx, span := v.span(ctx, trace.AdmissionValidate, h)
	_, err = v.ask(ctx, k, r, false)
	v.metrics.observe(ctx, h, "validating", r.Operation, time.Since(began), err)
	span.end(nil, false, err, h.ignore)
	return v.outcome(ctx, h, r, "validating", fmt.Sprintf("failed-open.validating.webhook.admission.k8s.io/round_0_index_%d", index), err)
}
