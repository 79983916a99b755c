// SPDX-License-Identifier: Apache-2.0

package helmchart

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/chart/chartobject"
	"github.com/wasmplane/wasmplane/core/chart/release"
	"github.com/wasmplane/wasmplane/core/controllers/helmchart/releaseplan"
)

// budget is how long one reconcile works on one release before others have their turn; the rest is done by
// the next.
const budget = 10 * time.Second

// poll is how often something that is waited for is looked at.
const poll = time.Second

// keepRevisions of a release that is deployed.
const keepRevisions = 10

// errLater is no failure: the rest is done in the next reconcile.
var errLater = errors.New("not done yet")

// operationOf is what a pending revision is of.
func operationOf(r *release.Record) releaseplan.Operation {
	switch r.Info.Status {
	case release.PendingInstall:
		return releaseplan.Installing
	case release.PendingRollback:
		return releaseplan.GoingBack
	case release.Uninstalling:
		return releaseplan.Uninstalling
	default:
		return releaseplan.Upgrading
	}
}

// carryOn works on a pending revision until it is deployed, has failed, or waits.
func (w *work) carryOn(ctx context.Context, d releaseplan.Decision) (outcome, error) {
	r, err := w.record(ctx, d.Version)
	if err != nil {
		return outcome{}, err
	}
	until := w.c.now().Add(budget)
	deadline := r.Info.LastDeployed.Add(w.hc.Timeout)
	op := operationOf(r)
	for {
		at := releaseplan.Stage(r.Marks[markStage])
		m := releaseplan.Next(r, op, at)
		if m.Fail != "" {
			return w.fail(ctx, r, m.Fail)
		}
		waits, err := w.step(ctx, r, op, at, m, until)
		var bad *failureError
		switch {
		case errors.As(err, &bad):
			return w.fail(ctx, r, bad.why)
		case errors.Is(err, errLater) || waits != "":
		case err != nil:
			return outcome{}, err
		case m.Stage == releaseplan.StageDone:
			return w.finish(ctx, r)
		default:
			continue
		}
		if w.c.now().After(deadline) {
			return w.fail(ctx, r, fmt.Sprintf("it was not done within %s (timeout): %s", w.hc.Timeout, waits))
		}
		return progressing(poll, "%s, revision %d: %s", op, r.Version, waits), nil
	}
}

// failureError ends an operation.
type failureError struct{ why string }

func (e *failureError) Error() string { return e.why }

// step takes one step. waits says what is waited for, if anything is.
func (w *work) step(ctx context.Context, r *release.Record, op releaseplan.Operation, at releaseplan.Stage, m releaseplan.Move,
	until time.Time,
) (waits string, err error) {
	p, err := w.parse(ctx, r)
	if err != nil {
		return "", err
	}
	switch {
	case m.Hook != nil:
		return w.hook(ctx, r, p, m.Hook)
	case m.Stage != at: // the hooks are through
		before, after := op.Hooks()
		event := before
		if at == releaseplan.StageAfter {
			event = after
		}
		if err := w.dropHooks(ctx, r, p, event, release.AfterSuccess); err != nil {
			return "", err
		}
		if m.Stage == releaseplan.StageDone {
			return "", nil
		}
		return "", w.reach(ctx, r, m.Stage)
	case m.Stage == releaseplan.StageApply:
		if waits, err = w.apply(ctx, r, p, until); waits != "" || err != nil {
			return waits, err
		}
		return "", w.reach(ctx, r, releaseplan.StageAwait)
	default: // stageAwait
		if *w.hc.Spec.Wait {
			if waits, err = w.await(ctx, p); waits != "" || err != nil {
				return waits, err
			}
		}
		_, after := op.Hooks()
		for _, h := range r.On(after) { // one that runs before and after runs twice
			h.LastRun = release.Run{}
		}
		return "", w.reach(ctx, r, releaseplan.StageAfter)
	}
}

// reach writes down how far the operation has come.
func (w *work) reach(ctx context.Context, r *release.Record, s releaseplan.Stage) error {
	r.Marks = maps.Clone(r.Marks)
	if r.Marks == nil {
		r.Marks = map[string]string{}
	}
	r.Marks[markStage] = string(s)
	return w.save(ctx, r)
}

// finish makes a revision the one that is deployed.
func (w *work) finish(ctx context.Context, r *release.Record) (outcome, error) {
	op := operationOf(r)
	r.Info.Status = release.Deployed
	switch op {
	case releaseplan.Installing:
		r.Info.Description = "Install complete"
	case releaseplan.Upgrading:
		r.Info.Description = "Upgrade complete"
	default:
		r.Info.Description = fmt.Sprintf("Rollback to %d", r.Info.RollbackRevision)
	}
	if err := w.save(ctx, r); err != nil {
		return outcome{}, err
	}
	for _, old := range w.revisions {
		if old.Version < r.Version && old.Status == release.Deployed {
			if err := w.supersede(ctx, old.Version); err != nil {
				return outcome{}, err
			}
		}
	}
	if op != releaseplan.GoingBack { // the failures before it are still counted
		if err := w.prune(ctx, r.Version); err != nil {
			return outcome{}, err
		}
	}
	w.unparse()
	out := progressing(time.Millisecond, "revision %d is deployed", r.Version)
	if op != releaseplan.GoingBack {
		out = outcome{
			ready: metav1.ConditionTrue, reason: "Deployed", after: lookEvery,
			message: fmt.Sprintf("revision %d of the release is deployed", r.Version),
		}
	}
	out.change = func(s *chartobject.Status) {
		installed(r)(s)
		if op != releaseplan.GoingBack {
			s.Desired, s.Failures = w.in.desired, 0
		}
	}
	return out, nil
}

func (w *work) supersede(ctx context.Context, version int) error {
	old, err := w.record(ctx, version)
	if err != nil {
		return err
	}
	old.Info.Status = release.Superseded
	return w.save(ctx, old)
}

// prune deletes the oldest revisions.
func (w *work) prune(ctx context.Context, newest int) error {
	s := &w.hc.Spec
	old := slices.DeleteFunc(slices.Clone(w.revisions), func(r releaseplan.Revision) bool { return r.Version >= newest })
	for i := 0; i < len(old)-(keepRevisions-1); i++ {
		err := w.set.Kube.CoreV1().Secrets(s.TargetNamespace).Delete(ctx, release.Key(s.ReleaseName, old[i].Version), metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return w.hc.asAccount(err, "delete an old revision of the release")
		}
	}
	return nil
}

// fail ends an operation that cannot go on.
func (w *work) fail(ctx context.Context, r *release.Record, why string) (outcome, error) {
	op := operationOf(r)
	before, after := op.Hooks()
	if p, err := w.parse(ctx, r); err == nil {
		for _, event := range []string{before, after} {
			if err := w.dropHooks(ctx, r, p, event, release.AfterFailure); err != nil && !errors.Is(err, errLater) {
				why += "; " + err.Error()
			}
		}
	}
	why = clip(why, 2000)
	r.Info.Status, r.Info.Description = release.Failed, fmt.Sprintf("%s of %q failed: %s", title(op), r.Name, why)
	if err := w.save(ctx, r); err != nil {
		return outcome{}, err
	}
	w.unparse()
	out := failing(title(op)+"Failed", time.Millisecond, "revision %d failed: %s", r.Version, why)
	out.change = func(s *chartobject.Status) { s.Revision = r.Version }
	return out, nil
}

func title(op releaseplan.Operation) string { return strings.ToUpper(string(op[:1])) + string(op[1:]) }

// goBack begins a revision that brings back one of before.
func (w *work) goBack(ctx context.Context, d releaseplan.Decision) (outcome, error) {
	to, err := w.record(ctx, d.To)
	if err != nil {
		return outcome{}, err
	}
	r := *to
	r = release.Record{
		Name: r.Name, Namespace: r.Namespace, Version: d.Version, Chart: r.Chart, Config: r.Config, Manifest: r.Manifest, ApplyMethod: "ssa",
		Info: release.Info{
			FirstDeployed: r.Info.FirstDeployed, LastDeployed: release.Time{Time: w.c.now()}, Notes: r.Info.Notes, Status: release.PendingRollback,
			Description: fmt.Sprintf("Rollback to %d", d.To), RollbackRevision: d.To,
		},
		Marks: map[string]string{markOwner: string(w.hc.GetUID()), markBack: "true"},
	}
	for _, mark := range []string{markDesired, markDigest, markValues, markChart} {
		if v, ok := to.Marks[mark]; ok {
			r.Marks[mark] = v
		}
	}
	for _, h := range to.Hooks {
		again := *h
		again.LastRun = release.Run{}
		r.Hooks = append(r.Hooks, &again)
	}
	if err := w.create(ctx, &r); err != nil {
		return outcome{}, err
	}
	w.c.event(w.hc.Unstructured, true, "RollingBack", "revision %d failed, revision %d brings back revision %d", d.Version-1, d.Version, d.To)
	return progressing(time.Millisecond, "revision %d failed; revision %d brings back revision %d", d.Version-1, d.Version, d.To), nil
}

// remove deletes what a failed install made.
func (w *work) remove(ctx context.Context, d releaseplan.Decision) (outcome, error) {
	r, err := w.record(ctx, d.Version)
	if err != nil {
		return outcome{}, err
	}
	p, err := w.parse(ctx, r)
	if err != nil {
		return outcome{}, err
	}
	if _, err := w.delete(ctx, doom(p.objects, partial(r)), w.c.now().Add(budget)); errors.Is(err, errLater) {
		return progressing(poll, "what revision %d made is being removed, as it failed: %s", d.Version, r.Info.Description), nil
	} else if err != nil {
		return outcome{}, err
	}
	r.Info.Description += "; what it made was removed"
	r.Marks = maps.Clone(r.Marks)
	r.Marks[markRemedy] = "true"
	if err := w.save(ctx, r); err != nil {
		return outcome{}, err
	}
	w.unparse()
	return failing("InstallFailed", time.Millisecond, "revision %d failed: %s", d.Version, r.Info.Description), nil
}
