// SPDX-License-Identifier: Apache-2.0

package helmchart

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/chart/chartobject"
	"github.com/wasmplane/wasmplane/core/chart/release"
	"github.com/wasmplane/wasmplane/core/chart/render"
	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/controllers"
	"github.com/wasmplane/wasmplane/core/controllers/helmchart/releaseplan"
)

// Finalizer keeps an object until its release is uninstalled.
const Finalizer = chartobject.Group + "/uninstall"

// Marks on the Secrets of revisions, for ourselves. Helm drops them where it writes one.
const (
	markOwner   = chartobject.Group + "/uid"
	markDesired = chartobject.Group + "/desired"
	markStage   = chartobject.Group + "/stage"
	markRemedy  = chartobject.Group + "/remedied"
	markPartial = chartobject.Group + "/partial"
	markBack    = chartobject.Group + "/rollback"
	markDigest  = chartobject.Group + "/digest"
	markValues  = chartobject.Group + "/values"
	markChart   = chartobject.Group + "/chart" // name, version and version of the app, in JSON
)

// lookEvery is how often references and the release are looked at although nothing was heard of them.
const lookEvery = time.Minute

// outcome is what a reconcile came to, for the status.
type outcome struct {
	ready   metav1.ConditionStatus
	reason  string
	message string
	after   time.Duration // when to look again
	change  func(*chartobject.Status)
	gone    bool // the object is let go: there is no status any more
}

func progressing(after time.Duration, format string, args ...any) outcome {
	return outcome{ready: metav1.ConditionFalse, reason: "Progressing", message: fmt.Sprintf(format, args...), after: after}
}

func failing(reason string, after time.Duration, format string, args ...any) outcome {
	return outcome{ready: metav1.ConditionFalse, reason: reason, message: fmt.Sprintf(format, args...), after: after}
}

// reconcile takes one step, or as many as can be taken without waiting for others.
func (c *Controller) reconcile(ctx context.Context, key controllers.Key) error {
	o, err := c.get(key)
	if o == nil {
		c.forget(key)
		return err
	}
	object, invalid := chartobject.Decode(o)
	hc := &chart{object}
	mine := slices.Contains(o.GetFinalizers(), Finalizer)
	switch {
	case o.GetDeletionTimestamp() != nil && !mine:
		return nil
	case o.GetDeletionTimestamp() == nil && !mine:
		return c.finalizers(ctx, hc, append(slices.Clone(o.GetFinalizers()), Finalizer))
	}
	out, err := c.attempt(ctx, key, hc, invalid)
	var f *faultError
	if errors.As(err, &f) {
		// The account or the references may be mended without a change of the object.
		text := strings.Replace(err.Error(), f.Error(), f.Message, 1) // with the field that it is about
		out, err = failing(f.Reason, lookEvery, "%s", text), nil
	}
	if err != nil || out.gone {
		return err
	}
	if err := c.report(ctx, hc, out); err != nil {
		return err
	}
	if out.after > 0 {
		c.loop.AddAfter(key, out.after)
	}
	return nil
}

func (c *Controller) attempt(ctx context.Context, key controllers.Key, hc *chart, invalid error) (outcome, error) {
	if hc.GetDeletionTimestamp() != nil {
		return c.leave(ctx, key, hc)
	}
	if invalid != nil {
		return failing("InvalidSpec", 0, "%v", invalid), nil
	}
	if hc.Spec.Suspend {
		return outcome{ready: metav1.ConditionUnknown, reason: "Suspended", message: "nothing is done until spec.suspend is taken away"}, nil
	}
	set, err := c.clients(ctx, hc)
	if err != nil {
		return outcome{}, err
	}
	in, err := c.input(ctx, hc, set.Kube)
	if err != nil {
		return outcome{}, err
	}
	w := &work{c: c, key: key, hc: hc, set: set, in: in}
	if err := w.history(ctx); err != nil {
		return outcome{}, err
	}
	return w.do(ctx)
}

// work is one reconcile of one object.
type work struct {
	c         *Controller
	key       controllers.Key
	hc        *chart
	set       *client.Set
	in        *input // nil for one that is being deleted
	revisions []releaseplan.Revision
}

// history reads which revisions there are, as the account.
func (w *work) history(ctx context.Context) error {
	s := &w.hc.Spec
	list, err := w.set.Metadata.Resource(corev1.SchemeGroupVersion.WithResource("secrets")).Namespace(s.TargetNamespace).
		List(ctx, metav1.ListOptions{LabelSelector: release.Selector(s.ReleaseName)})
	if err != nil {
		return w.hc.asAccount(err, "look for releases in namespace "+s.TargetNamespace)
	}
	for i := range list.Items {
		m := &list.Items[i]
		n := release.VersionOf(m)
		if n == 0 || m.Name != release.Key(s.ReleaseName, n) {
			continue
		}
		when := m.CreationTimestamp.Time
		if at, err := strconv.ParseInt(m.Labels["modifiedAt"], 10, 64); err == nil {
			when = time.Unix(at, 0)
		}
		a := m.Annotations
		w.revisions = append(w.revisions, releaseplan.Revision{
			Version: n, Status: release.StatusOf(m), Owner: types.UID(a[markOwner]), Desired: a[markDesired],
			Remedied: a[markRemedy] != "", Back: a[markBack] != "", When: when,
		})
	}
	slices.SortFunc(w.revisions, func(a, b releaseplan.Revision) int { return a.Version - b.Version })
	return nil
}

// taken says which other object the release belongs to.
func (w *work) taken() (metav1.Object, bool) {
	for _, r := range slices.Backward(w.revisions) {
		if r.Owner == w.hc.GetUID() {
			return nil, false
		}
		if r.Owner != "" {
			return w.c.lives(r.Owner)
		}
	}
	return nil, false
}

func (w *work) seen() releaseplan.Seen {
	s := releaseplan.Seen{
		Me: w.hc.GetUID(), Acted: w.hc.Status.Desired, Revision: w.hc.Status.Revision,
		Failing: w.hc.Status.Failures > 0, History: w.revisions,
		Deleted: w.hc.GetDeletionTimestamp() != nil, Retries: *w.hc.Spec.Retries, RollBack: w.hc.Spec.FailurePolicy != chartobject.Keep,
		Now: w.c.now(),
	}
	if w.in != nil {
		s.Desired = w.in.desired
	}
	return s
}

// do carries a decision out.
func (w *work) do(ctx context.Context) (outcome, error) {
	name := w.hc.Spec.ReleaseName
	if other, ok := w.taken(); ok {
		return failing("ReleaseTaken", lookEvery, "the release %s in namespace %s is of the HelmChart %s/%s: set another releaseName or targetNamespace",
			name, w.hc.Spec.TargetNamespace, other.GetNamespace(), other.GetName()), nil
	}
	switch d := releaseplan.Decide(w.seen()); d.Do {
	case releaseplan.UpToDate:
		return w.deployed(ctx, d)
	case releaseplan.Start:
		return w.start(ctx, d)
	case releaseplan.CarryOn:
		return w.carryOn(ctx, d)
	case releaseplan.GoBack:
		return w.goBack(ctx, d)
	case releaseplan.Remove:
		return w.remove(ctx, d)
	case releaseplan.Pause:
		return w.failed(ctx, d, d.After, fmt.Sprintf("it is tried again in %s", d.After.Round(time.Second)))
	case releaseplan.Exhausted:
		return w.failed(ctx, d, lookEvery, fmt.Sprintf("it has failed %d times and is tried no more: change the spec or the values", d.Failures))
	case releaseplan.Foreign:
		return outcome{
			ready: metav1.ConditionTrue, reason: "ChangedByHelm", after: lookEvery,
			message: fmt.Sprintf("the revision %d of the release is of another client of Helm, and stays until the spec or the values change", d.Version),
			change:  func(s *chartobject.Status) { s.Failures = 0 },
		}, nil
	default:
		return failing("Busy", 15*time.Second, "another client of Helm is at work on the release (revision %d): if none is, end that by "+
			"helm rollback %s -n %s, or helm uninstall", d.Version, name, w.hc.Spec.TargetNamespace), nil
	}
}

// named is what a mark says of a chart.
type named struct{ Name, Version, AppVersion string }

// installed puts what a record's marks say into the status.
func installed(r *release.Record) func(*chartobject.Status) {
	return func(s *chartobject.Status) {
		var n named
		if json.Unmarshal([]byte(r.Marks[markChart]), &n) == nil {
			s.ChartName, s.ChartVersion, s.AppVersion = n.Name, n.Version, n.AppVersion
		}
		s.Digest, s.ValuesDigest = r.Marks[markDigest], r.Marks[markValues]
		s.Revision = r.Version
	}
}

func (w *work) deployed(ctx context.Context, d releaseplan.Decision) (outcome, error) {
	out := outcome{
		ready: metav1.ConditionTrue, reason: "Deployed", after: lookEvery,
		message: fmt.Sprintf("revision %d of the release is deployed", d.Version), change: func(s *chartobject.Status) { s.Failures = 0 },
	}
	if w.hc.Status.Revision == d.Version && w.hc.Status.Desired == w.in.desired {
		return out, nil // nothing that has to be read
	}
	r, err := w.record(ctx, d.Version)
	if err != nil {
		return outcome{}, err
	}
	out.change = func(s *chartobject.Status) {
		installed(r)(s)
		s.Desired, s.Failures = w.in.desired, 0
	}
	return out, nil
}

// failed says what failed, of the last failure's record.
func (w *work) failed(ctx context.Context, d releaseplan.Decision, after time.Duration, then string) (outcome, error) {
	s := w.seen()
	at := slices.IndexFunc(w.revisions, func(r releaseplan.Revision) bool { return s.Failed(r) && r.When.Equal(s.LastFailure()) })
	out := failing("UpgradeFailed", after, "%s", then)
	if at < 0 {
		return out, nil
	}
	r, err := w.record(ctx, w.revisions[at].Version)
	if err != nil {
		return outcome{}, err
	}
	if !s.DeployedBefore(r.Version) {
		out.reason = "InstallFailed"
	}
	state := ""
	if last := w.revisions[len(w.revisions)-1]; last.Back && last.Status == release.Deployed {
		state = fmt.Sprintf("revision %d brought back what was there before; ", last.Version)
	}
	out.message = fmt.Sprintf("revision %d failed: %s; %s%s", r.Version, r.Info.Description, state, then)
	out.change = func(s *chartobject.Status) {
		s.Failures, s.Desired = d.Failures, w.in.desired
		if len(w.revisions) > 0 {
			s.Revision = w.revisions[len(w.revisions)-1].Version
		}
	}
	return out, nil
}

// trouble is what keeps a chart from being installed before there is a revision of it.
type trouble struct {
	of    string // what was attempted
	times int
	next  time.Time
	fault *faultError
}

// longestHold is short enough for somebody who has mended what was in the way.
const longestHold = 2 * time.Minute

func (w *work) attempted() string { return fmt.Sprintf("%s/%d", w.in.desired, w.hc.GetGeneration()) }

// held is the trouble that an earlier attempt at the same had, while it is too early for another one.
func (w *work) held() *trouble {
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	t := w.c.trouble[w.key]
	if t == nil || t.of != w.attempted() || !w.c.now().Before(t.next) {
		return nil
	}
	return t
}

func (w *work) hold(f *faultError) outcome {
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	t := w.c.trouble[w.key]
	if t == nil || t.of != w.attempted() {
		t = &trouble{of: w.attempted()}
		w.c.trouble[w.key] = t
	}
	t.times++
	wait := min(releaseplan.Between(t.times), longestHold)
	t.fault, t.next = f, w.c.now().Add(wait)
	return failing(f.Reason, wait, "%s", f.Message)
}

// start fetches and renders the chart, and begins a revision.
func (w *work) start(ctx context.Context, d releaseplan.Decision) (outcome, error) {
	if t := w.held(); t != nil {
		return failing(t.fault.Reason, t.next.Sub(w.c.now()), "%s", t.fault.Message), nil
	}
	hc, s := w.hc, &w.hc.Spec
	o := render.Order{
		Release: s.ReleaseName, Namespace: s.TargetNamespace, Revision: d.Version, Upgrade: !d.Install, Values: w.in.values,
		Tenant: hc.tenant(),
	}
	what := fmt.Sprintf("%s/%d", w.attempted(), d.Version)
	p, full := w.c.jobs.ask(w.key, what, func(ctx context.Context) *prepared { //nolint:contextcheck // it outlives this reconcile
		return w.c.prepare(ctx, hc, w.set, w.in, o)
	})
	if full {
		return progressing(time.Second, "other charts are fetched and rendered before this one"), nil
	}
	if p == nil {
		return progressing(0, "the chart is being fetched and rendered"), nil
	}
	if p.err == nil {
		p.err = w.begin(ctx, d, p)
	}
	var f *faultError
	if errors.As(p.err, &f) {
		return w.hold(f), nil
	}
	if p.err != nil {
		return outcome{}, p.err
	}
	w.c.mu.Lock()
	delete(w.c.trouble, w.key)
	w.c.mu.Unlock()
	return progressing(time.Millisecond, "revision %d of the release is begun", d.Version), nil
}

// begin makes the record of a revision, after what has to be there before it.
func (w *work) begin(ctx context.Context, d releaseplan.Decision, p *prepared) error {
	s := &w.hc.Spec
	if err := w.namespace(ctx); err != nil {
		return err
	}
	if d.Install && !s.SkipCRDs {
		if err := w.definitions(ctx, p.rendered.CRDs); err != nil {
			return err
		}
	}
	now := release.Time{Time: w.c.now()}
	r := &release.Record{
		Name: s.ReleaseName, Namespace: s.TargetNamespace, Version: d.Version, ApplyMethod: "ssa",
		Chart: p.rendered.Chart, Config: p.rendered.Config, Manifest: p.rendered.Manifest, Hooks: p.rendered.Hooks,
		Info: release.Info{
			FirstDeployed: now, LastDeployed: now, Notes: p.rendered.Notes, Status: release.PendingInstall,
			Description: "Initial install underway",
		},
		Marks: w.marks(p.digest, p.rendered),
	}
	if !d.Install {
		r.Info.Status, r.Info.Description = release.PendingUpgrade, "Preparing upgrade"
	}
	if err := w.create(ctx, r); err != nil {
		return err
	}
	verb := "Installing"
	if !d.Install {
		verb = "Upgrading"
	}
	w.c.event(w.hc.Unstructured, false, verb, "revision %d: chart %s %s", d.Version, p.rendered.Name, p.rendered.Version)
	return nil
}

func (w *work) marks(digest string, r *render.Rendered) map[string]string {
	about, err := json.Marshal(named{clip(r.Name, 250), clip(r.Version, 250), clip(r.AppVersion, 250)})
	if err != nil {
		about = nil
	}
	return map[string]string{
		markOwner: string(w.hc.GetUID()), markDesired: w.in.desired, markDigest: digest, markValues: w.in.valuesDigest, markChart: string(about),
	}
}

// namespace sees to it that the release's namespace is there.
func (w *work) namespace(ctx context.Context) error {
	name := w.hc.Spec.TargetNamespace
	if _, err := w.c.namespaces.Get(name); err == nil {
		return nil
	}
	if !w.hc.Spec.CreateNamespace {
		return fault("NoNamespace", "there is no namespace %s: make it, or set createNamespace", name)
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	_, err := w.set.Kube.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return w.hc.asAccount(err, "make the namespace "+name)
}

// record reads a revision as the account.
func (w *work) record(ctx context.Context, version int) (*release.Record, error) {
	s := &w.hc.Spec
	secret, err := w.set.Kube.CoreV1().Secrets(s.TargetNamespace).Get(ctx, release.Key(s.ReleaseName, version), metav1.GetOptions{})
	if err != nil {
		return nil, w.hc.asAccount(err, "read the release")
	}
	r, err := release.Read(secret)
	if err != nil {
		return nil, fault("DamagedRelease", "%v: delete that Secret, or restore it", err)
	}
	return r, nil
}

func (w *work) create(ctx context.Context, r *release.Record) error {
	secret, err := r.Secret(w.c.now())
	if err != nil {
		return fault("TooLarge", "%v", err)
	}
	made, err := w.set.Kube.CoreV1().Secrets(r.Namespace).Create(ctx, secret, metav1.CreateOptions{})
	if err != nil {
		return w.hc.asAccount(err, "keep the release")
	}
	r.Wrote(made)
	return nil
}

func (w *work) save(ctx context.Context, r *release.Record) error {
	secret, err := r.Secret(w.c.now())
	if err != nil {
		return fault("TooLarge", "%v", err)
	}
	made, err := w.set.Kube.CoreV1().Secrets(r.Namespace).Update(ctx, secret, metav1.UpdateOptions{})
	if err != nil {
		return w.hc.asAccount(err, "keep the release")
	}
	r.Wrote(made)
	return nil
}

// finalizers sets those of the object.
func (c *Controller) finalizers(ctx context.Context, hc *chart, list []string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"finalizers": list, "resourceVersion": hc.GetResourceVersion()}})
	if err != nil {
		return err
	}
	objects := c.objects.Resource(chartobject.Resource()).Namespace(hc.GetNamespace())
	_, err = objects.Patch(ctx, hc.GetName(), types.MergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// report writes the status, if it is another one.
func (c *Controller) report(ctx context.Context, hc *chart, out outcome) error {
	before, err := json.Marshal(hc.Status)
	if err != nil {
		return err
	}
	s := hc.Status
	s.Conditions = slices.Clone(hc.Status.Conditions)
	s.ObservedGeneration, s.ReleaseName, s.ReleaseNamespace = hc.GetGeneration(), hc.Spec.ReleaseName, hc.Spec.TargetNamespace
	if out.change != nil {
		out.change(&s)
	}
	old := meta.FindStatusCondition(s.Conditions, "Ready")
	news := old == nil || old.Reason != out.reason || old.Status != out.ready
	meta.SetStatusCondition(&s.Conditions, metav1.Condition{
		Type: "Ready", Status: out.ready, Reason: out.reason, Message: clip(out.message, 4000), ObservedGeneration: hc.GetGeneration(),
		LastTransitionTime: metav1.Time{Time: c.now()},
	})
	after, err := json.Marshal(s)
	if err != nil || string(after) == string(before) {
		return err
	}
	// All members of the status are written, so that none of before is left.
	var whole map[string]any
	if err := json.Unmarshal(after, &whole); err != nil {
		return err
	}
	for _, member := range []string{"failures", "revision"} {
		if whole[member] == nil {
			whole[member] = nil
		}
	}
	patch, err := json.Marshal(map[string]any{"status": whole})
	if err != nil {
		return err
	}
	if _, err := c.objects.Resource(chartobject.Resource()).Namespace(hc.GetNamespace()).Patch(ctx, hc.GetName(), types.MergePatchType, patch,
		metav1.PatchOptions{}, "status"); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("write the status: %w", err)
	}
	if news && out.ready == metav1.ConditionTrue {
		c.event(hc.Unstructured, false, out.reason, "%s", out.message)
	} else if news && out.reason != "Progressing" && out.ready == metav1.ConditionFalse {
		c.event(hc.Unstructured, true, out.reason, "%s", out.message)
	}
	return nil
}
