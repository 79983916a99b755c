// SPDX-License-Identifier: Apache-2.0

package helmchart

import (
	"context"
	"fmt"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/chart/release"
)

// hook makes a hook's objects, or looks whether they have done their work.
func (w *work) hook(ctx context.Context, r *release.Record, p *parsed, h *release.Hook) (waits string, err error) {
	objects := p.hooks[hookKey(h)]
	if h.LastRun.Phase != release.HookRunning {
		if h.Deletes(release.BeforeCreation) {
			if waits, err := w.dropHook(ctx, h, objects); waits != "" || err != nil {
				return waits, err
			}
		}
		// Written down first: whoever goes on after us finds the objects, or makes them.
		h.LastRun = release.Run{StartedAt: release.Time{Time: w.c.now()}, Phase: release.HookRunning}
		if err := w.save(ctx, r); err != nil {
			return "", err
		}
		for _, o := range objects {
			if err := w.createHook(ctx, o, false); err != nil {
				return w.hookFailed(ctx, r, h, w.explain(err, "make the hook "+label(o)))
			}
		}
		return "the hook " + h.Kind + " " + h.Name + " runs", nil
	}
	for _, o := range objects {
		done, waits, why, err := w.hookDone(ctx, o)
		switch {
		case err != nil:
			return "", err
		case why != "":
			return w.hookFailed(ctx, r, h, why)
		case !done:
			return waits, nil
		}
	}
	h.LastRun.CompletedAt, h.LastRun.Phase = release.Time{Time: w.c.now()}, release.HookSucceeded
	return "", w.save(ctx, r)
}

// hookFailed remembers it, and ends the operation.
func (w *work) hookFailed(ctx context.Context, r *release.Record, h *release.Hook, why string) (string, error) {
	h.LastRun.CompletedAt, h.LastRun.Phase = release.Time{Time: w.c.now()}, release.HookFailed
	if err := w.save(ctx, r); err != nil {
		return "", err
	}
	return "", &failureError{fmt.Sprintf("the hook %s %s failed: %s", h.Kind, h.Name, why)}
}

func (w *work) createHook(ctx context.Context, o *unstructured.Unstructured, again bool) error {
	at, err := w.at(o)
	if err != nil {
		return err
	}
	_, err = at.Create(ctx, o.DeepCopy(), metav1.CreateOptions{FieldManager: fieldManager})
	if again && apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// hookDone says whether a hook's object has done its work, what is waited for, or why it has failed. A Job and a Pod have to
// end; other objects are done when they are there.
func (w *work) hookDone(ctx context.Context, o *unstructured.Unstructured) (done bool, waits, why string, err error) {
	at, err := w.at(o)
	if err != nil {
		return false, "", w.explain(err, "look at the hook "+label(o)), nil
	}
	have, err := at.Get(ctx, o.GetName(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		// It was written down and not made, or somebody deleted it.
		err = w.createHook(ctx, o, true)
		if err != nil {
			return false, "", w.explain(err, "make the hook "+label(o)), nil
		}
		return false, "the hook " + label(o) + " runs", "", nil
	}
	if err != nil {
		return false, "", "", w.hc.asAccount(err, "look at the hook "+label(o))
	}
	waits = "the hook " + label(have) + " runs"
	switch have.GroupVersionKind().GroupKind().String() {
	case "Job.batch":
		for _, c := range conditionsOf(have) {
			if c.Status != corev1.ConditionTrue {
				continue
			}
			switch c.Type {
			case "Complete":
				return true, "", "", nil
			case "Failed":
				return false, "", c.Reason + ": " + clip(c.Message, 500), nil
			}
		}
		return false, waits, "", nil
	case "Pod":
		phase, _, err := unstructured.NestedString(have.Object, "status", "phase")
		if err != nil {
			return false, "", "", err
		}
		switch phase {
		case "Succeeded":
			return true, "", "", nil
		case "Failed":
			message, _, _ := unstructured.NestedString(have.Object, "status", "message") //nolint:errcheck // one of another form says nothing
			return false, "", "the pod failed " + clip(message, 500), nil
		}
		return false, waits, "", nil
	}
	return true, "", "", nil
}

func conditionsOf(o *unstructured.Unstructured) []status.BasicCondition {
	s, err := status.GetObjectWithConditions(o.Object)
	if err != nil {
		return nil
	}
	out := make([]status.BasicCondition, 0, len(s.Status.Conditions))
	return append(out, s.Status.Conditions...)
}

// dropHooks deletes the objects of an event's hooks whose policy says so, of those that have run.
func (w *work) dropHooks(ctx context.Context, r *release.Record, p *parsed, event, policy string) error {
	phase := release.HookSucceeded
	if policy == release.AfterFailure {
		phase = release.HookFailed
	}
	for _, h := range r.On(event) {
		if h.LastRun.Phase != phase || !h.Deletes(policy) {
			continue
		}
		if _, err := w.dropHook(ctx, h, p.hooks[hookKey(h)]); err != nil {
			return err
		}
	}
	return nil
}

// dropHook deletes a hook's objects. Definitions stay, as so much would go with them.
func (w *work) dropHook(ctx context.Context, h *release.Hook, objects []*unstructured.Unstructured) (waits string, err error) {
	for _, o := range objects {
		if o.GetKind() == "CustomResourceDefinition" {
			continue
		}
		at, err := w.at(o)
		if meta.IsNoMatchError(err) {
			continue
		}
		if err != nil {
			return "", err
		}
		err = at.Delete(ctx, o.GetName(), metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return "", &failureError{w.explain(err, "delete the hook "+h.Kind+" "+h.Name)}
		}
		waits = "the hook " + label(o) + " of before is being deleted"
	}
	return waits, nil
}
