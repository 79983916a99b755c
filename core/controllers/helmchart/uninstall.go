// SPDX-License-Identifier: Apache-2.0

package helmchart

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/chart/release"
	"github.com/wasmplane/wasmplane/core/controllers"
	"github.com/wasmplane/wasmplane/core/controllers/helmchart/releaseplan"
)

// leave uninstalls the release of an object that is being deleted, and lets the object go.
func (c *Controller) leave(ctx context.Context, key controllers.Key, hc *chart) (outcome, error) {
	c.jobs.drop(key)
	if hc.Status.Revision == 0 && hc.Status.Desired == "" && !c.begun(hc) {
		return c.let(ctx, hc)
	}
	out, err := c.uninstall(ctx, key, hc)
	var f *faultError
	if !errors.As(err, &f) {
		return out, err
	}
	if ns, gone := c.namespaces.Get(hc.GetNamespace()); gone == nil && ns.DeletionTimestamp != nil {
		// Its rights go with its namespace, in any order: nobody is left who could uninstall it.
		c.log.WarnContext(ctx, "a HelmChart goes with its namespace, and its release is not uninstalled: helm uninstall does it",
			"namespace", hc.GetNamespace(), "name", hc.GetName(), "release", hc.Spec.ReleaseName, "releaseNamespace", hc.Spec.TargetNamespace,
			"reason", f.Reason)
		return c.let(ctx, hc)
	}
	return failing("UninstallFailed", 15*time.Second, "%s; or take the finalizer %s off, and what the release made stays", f.Message,
		Finalizer), nil
}

// begun says whether there may be a release although the status does not say so yet: its condition has been at
// something that makes one.
func (c *Controller) begun(hc *chart) bool {
	return slices.ContainsFunc(hc.Status.Conditions, func(m metav1.Condition) bool { return m.Reason == "Progressing" })
}

// let takes the finalizer off.
func (c *Controller) let(ctx context.Context, hc *chart) (outcome, error) {
	list := slices.DeleteFunc(slices.Clone(hc.GetFinalizers()), func(f string) bool { return f == Finalizer })
	return outcome{gone: true}, c.finalizers(ctx, hc, list)
}

func (c *Controller) uninstall(ctx context.Context, key controllers.Key, hc *chart) (outcome, error) {
	set, err := c.clients(ctx, hc)
	if err != nil {
		return outcome{}, err
	}
	w := &work{c: c, key: key, hc: hc, set: set}
	if err := w.history(ctx); err != nil {
		return outcome{}, err
	}
	if _, taken := w.taken(); taken {
		return c.let(ctx, hc)
	}
	switch d := releaseplan.Decide(w.seen()); d.Do {
	case releaseplan.LetGo:
		return c.let(ctx, hc)
	case releaseplan.Busy:
		return failing("UninstallFailed", 15*time.Second, "another client of Helm is at work on the release (revision %d)", d.Version), nil
	default:
		return w.uninstall(ctx, d)
	}
}

// uninstall takes the steps of one.
func (w *work) uninstall(ctx context.Context, d releaseplan.Decision) (outcome, error) {
	r, err := w.record(ctx, d.Version)
	if err != nil {
		return outcome{}, err
	}
	if r.Info.Status != release.Uninstalling || r.Marks[markOwner] != string(w.hc.GetUID()) {
		if err := w.beginUninstall(ctx, r); err != nil {
			return outcome{}, err
		}
	}
	until := w.c.now().Add(budget)
	for {
		at := releaseplan.Stage(r.Marks[markStage])
		m := releaseplan.Next(r, releaseplan.Uninstalling, at)
		if m.Fail != "" {
			return w.again(ctx, r, m.Fail)
		}
		waits, err := w.undo(ctx, r, at, m, until)
		switch {
		case errors.Is(err, errLater) || waits != "":
			if w.c.now().After(r.Info.Deleted.Add(w.hc.Timeout)) {
				return failing("UninstallFailed", 15*time.Second, "it is not done after %s: %s", w.hc.Timeout, waits), nil
			}
			return progressing(poll, "uninstall: %s", waits), nil
		case err != nil:
			var bad *failureError
			if errors.As(err, &bad) {
				return w.again(ctx, r, bad.why)
			}
			return outcome{}, err
		case m.Stage == releaseplan.StageDone:
			return w.forgetRelease(ctx)
		}
	}
}

func (w *work) beginUninstall(ctx context.Context, r *release.Record) error {
	r.Marks = maps.Clone(r.Marks)
	if r.Marks == nil {
		r.Marks = map[string]string{}
	}
	if partial(r) {
		r.Marks[markPartial] = "true"
	}
	delete(r.Marks, markStage)
	r.Marks[markOwner] = string(w.hc.GetUID())
	r.Info.Status, r.Info.Description = release.Uninstalling, "Deletion in progress"
	r.Info.Deleted = release.Time{Time: w.c.now()}
	for _, h := range r.Hooks {
		h.LastRun = release.Run{}
	}
	if err := w.save(ctx, r); err != nil {
		return err
	}
	w.c.event(w.hc.Unstructured, false, "Uninstalling", "release %s in namespace %s", r.Name, r.Namespace)
	return nil
}

// again lets hooks that failed run once more, later.
func (w *work) again(ctx context.Context, r *release.Record, why string) (outcome, error) {
	for _, h := range r.Hooks {
		if h.LastRun.Phase == release.HookFailed {
			h.LastRun = release.Run{}
		}
	}
	if err := w.save(ctx, r); err != nil {
		return outcome{}, err
	}
	return failing("UninstallFailed", lookEvery, "%s; it is tried again in %s; or take the finalizer %s off, and what is left stays", why, lookEvery,
		Finalizer), nil
}

func (w *work) undo(ctx context.Context, r *release.Record, at releaseplan.Stage, m releaseplan.Move, until time.Time,
) (waits string, err error) {
	p, err := w.parse(ctx, r)
	if err != nil {
		return "", err
	}
	switch {
	case m.Hook != nil:
		return w.hook(ctx, r, p, m.Hook)
	case m.Stage == releaseplan.StageDone:
		return "", w.dropHooks(ctx, r, p, "post-delete", release.AfterSuccess)
	case m.Stage != at:
		if err := w.dropHooks(ctx, r, p, "pre-delete", release.AfterSuccess); err != nil {
			return "", err
		}
		return "", w.reach(ctx, r, m.Stage)
	}
	others, err := w.earlier(ctx, r)
	if err != nil {
		return "", err
	}
	left, err := w.delete(ctx, slices.Concat(others, doom(p.objects, partial(r))), until)
	if err != nil {
		return left, err
	}
	for _, h := range r.On("post-delete") { // one that runs before and after runs twice
		h.LastRun = release.Run{}
	}
	return "", w.reach(ctx, r, releaseplan.StageAfter)
}

// forgetRelease deletes what is kept of the release, the newest last: it says how far the uninstall is.
func (w *work) forgetRelease(ctx context.Context) (outcome, error) {
	s := &w.hc.Spec
	for _, old := range w.revisions {
		err := w.set.Kube.CoreV1().Secrets(s.TargetNamespace).Delete(ctx, release.Key(s.ReleaseName, old.Version), metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return outcome{}, w.hc.asAccount(err, "forget the release")
		}
	}
	w.c.event(w.hc.Unstructured, false, "Uninstalled", "release %s in namespace %s", s.ReleaseName, s.TargetNamespace)
	return w.c.let(ctx, w.hc)
}
