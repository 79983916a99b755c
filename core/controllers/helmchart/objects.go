// SPDX-License-Identifier: Apache-2.0

package helmchart

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/chart/chartobject"
	"github.com/wasmplane/wasmplane/core/chart/release"
	"github.com/wasmplane/wasmplane/core/controllers/helmchart/releaseplan"
)

// What Helm writes on the objects of a release, by which it knows them again.
const (
	fieldManager     = "helm"
	managedByLabel   = "app.kubernetes.io/managed-by"
	managedBy        = "Helm"
	nameAnnotation   = "meta.helm.sh/release-name"
	inAnnotation     = "meta.helm.sh/release-namespace"
	policyAnnotation = "helm.sh/resource-policy"
)

// depthAnnotation counts how many HelmCharts made each other, so that a chart cannot make itself without end.
const (
	depthAnnotation = chartobject.Group + "/depth"
	maxDepth        = 4
)

// parsed are the objects of a revision, and how far one has come with them in this process.
type parsed struct {
	of      string // a digest of what was parsed
	objects []*unstructured.Unstructured
	hooks   map[string][]*unstructured.Unstructured // by hookKey
	applied int
	ready   map[int]bool
	gone    bool // what former revisions had beyond this is deleted
}

func hookKey(h *release.Hook) string { return h.Path + "\x00" + h.Kind + "\x00" + h.Name }

// parse reads the manifests of a revision, in the child that reads YAML.
func (w *work) parse(ctx context.Context, r *release.Record) (*parsed, error) {
	texts := []string{r.Manifest}
	for _, h := range r.Hooks {
		texts = append(texts, h.Manifest)
	}
	sum := sha256.New()
	for _, t := range texts {
		fmt.Fprintf(sum, "%d:%s", len(t), t)
	}
	of := strconv.Itoa(r.Version) + ":" + string(r.Info.Status) + ":" + hex.EncodeToString(sum.Sum(nil))
	w.c.mu.Lock()
	have := w.c.parsed[w.key]
	w.c.mu.Unlock()
	if have != nil && have.of == of {
		return have, nil
	}
	lists, err := w.c.cfg.Renderer.Objects(ctx, texts)
	if err != nil {
		return nil, fault("DamagedRelease", "read the manifest of revision %d: %v", r.Version, err)
	}
	p := &parsed{of: of, hooks: map[string][]*unstructured.Unstructured{}, ready: map[int]bool{}}
	if p.objects, err = decodeAll(lists[0]); err != nil {
		return nil, err
	}
	for i, h := range r.Hooks {
		if p.hooks[hookKey(h)], err = decodeAll(lists[i+1]); err != nil {
			return nil, err
		}
	}
	w.c.mu.Lock()
	w.c.parsed[w.key] = p
	w.c.mu.Unlock()
	return p, nil
}

// unparse forgets them when the work on a revision has ended.
func (w *work) unparse() {
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	delete(w.c.parsed, w.key)
}

func decodeAll(list []rawObject) ([]*unstructured.Unstructured, error) {
	out := make([]*unstructured.Unstructured, len(list))
	for i, raw := range list {
		out[i] = &unstructured.Unstructured{}
		if err := json.Unmarshal(raw, out[i]); err != nil {
			return nil, fault("DamagedRelease", "an object of the chart cannot be read: %v", err)
		}
	}
	return out, nil
}

// label names an object for people.
func label(o *unstructured.Unstructured) string {
	if o.GetNamespace() == "" {
		return o.GetKind() + " " + o.GetName()
	}
	return o.GetKind() + " " + o.GetNamespace() + "/" + o.GetName()
}

// resource is where the objects of a kind are.
func (c *Controller) resource(d dynamic.Interface, apiVersion, kind, namespace string) (dynamic.ResourceInterface, error) {
	gvk := schema.FromAPIVersionAndKind(apiVersion, kind)
	m, err := c.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if meta.IsNoMatchError(err) { // it may have come a moment ago
		c.mapper.Reset()
		m, err = c.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	}
	if err != nil {
		return nil, err
	}
	if m.Scope.Name() != meta.RESTScopeNameNamespace || namespace == "" {
		return d.Resource(m.Resource), nil
	}
	return d.Resource(m.Resource).Namespace(namespace), nil
}

// at is where an object of the chart is. One that names no namespace is in the release's.
func (w *work) at(o *unstructured.Unstructured) (dynamic.ResourceInterface, error) {
	namespace := o.GetNamespace()
	if namespace == "" {
		namespace = w.hc.Spec.TargetNamespace
	}
	return w.c.resource(w.set.Dynamic, o.GetAPIVersion(), o.GetKind(), namespace)
}

// owned says whether an object is of the release, as Helm says it.
func (w *work) owned(o *unstructured.Unstructured) bool {
	a := o.GetAnnotations()
	return o.GetLabels()[managedByLabel] == managedBy && a[nameAnnotation] == w.hc.Spec.ReleaseName &&
		a[inAnnotation] == w.hc.Spec.TargetNamespace
}

// passing says whether an error goes away by itself, within an operation's time.
func passing(err error) bool {
	return meta.IsNoMatchError(err) || apierrors.IsConflict(err) || apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) ||
		apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsInternalError(err) ||
		meta.IsAmbiguousError(err) || apierrors.HasStatusCause(err, "NamespaceTerminating")
}

// apply applies the objects of a revision, and deletes those of former ones that it has no more.
func (w *work) apply(ctx context.Context, r *release.Record, p *parsed, until time.Time) (waits string, err error) {
	for ; p.applied < len(p.objects); p.applied++ {
		o := p.objects[p.applied]
		if w.c.now().After(until) {
			return fmt.Sprintf("%d of %d objects are applied", p.applied, len(p.objects)), nil
		}
		err := w.applyOne(ctx, o)
		if err != nil && passing(err) {
			return fmt.Sprintf("%s cannot be applied yet: %s", label(o), clip(err.Error(), 500)), nil
		}
		if err != nil {
			return "", &failureError{w.explain(err, "apply "+label(o))}
		}
	}
	if p.gone {
		return "", nil
	}
	earlier, err := w.earlier(ctx, r)
	if err != nil {
		return "", err
	}
	now := map[string]bool{}
	for _, o := range p.objects {
		now[w.identity(o)] = true
	}
	surplus := slices.DeleteFunc(earlier, func(o doomed) bool { return now[w.identity(o.Unstructured)] })
	if waits, err = w.delete(ctx, surplus, until); err != nil {
		if err == errLater { //nolint:errorlint // it is never wrapped
			return waits, nil
		}
		return "", &failureError{w.explain(err, "delete what the chart has no more")}
	}
	p.gone = true
	return "", nil
}

// explain says to the owner why the API refused something.
func (w *work) explain(err error, what string) string {
	return strings.TrimPrefix(w.hc.asAccount(err, what).Error(), "Forbidden: ")
}

func (w *work) identity(o *unstructured.Unstructured) string {
	namespace := o.GetNamespace()
	if namespace == "" {
		namespace = w.hc.Spec.TargetNamespace
	}
	return o.GroupVersionKind().GroupKind().String() + "/" + namespace + "/" + o.GetName()
}

// applyOne applies one object, unless it is there and of somebody else.
func (w *work) applyOne(ctx context.Context, o *unstructured.Unstructured) error {
	r, err := w.at(o)
	if err != nil {
		return err
	}
	have, err := r.Get(ctx, o.GetName(), metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	if err == nil && !w.owned(have) {
		return fmt.Errorf("it is there already and not of this release: delete it, or have the release take it over by the label %s: %s "+
			"and the annotations %s: %s and %s: %s", managedByLabel, managedBy, nameAnnotation, w.hc.Spec.ReleaseName, inAnnotation,
			w.hc.Spec.TargetNamespace)
	}
	o = o.DeepCopy()
	labels, annotations := maps.Clone(o.GetLabels()), maps.Clone(o.GetAnnotations())
	if labels == nil {
		labels = map[string]string{}
	}
	if annotations == nil {
		annotations = map[string]string{}
	}
	labels[managedByLabel] = managedBy
	annotations[nameAnnotation], annotations[inAnnotation] = w.hc.Spec.ReleaseName, w.hc.Spec.TargetNamespace
	if o.GetKind() == chartobject.Kind && o.GroupVersionKind().Group == chartobject.Group {
		depth, err := w.depth()
		if err != nil {
			return err
		}
		annotations[depthAnnotation] = strconv.Itoa(depth)
	}
	o.SetLabels(labels)
	o.SetAnnotations(annotations)
	o.SetManagedFields(nil)
	_, err = r.Apply(ctx, o.GetName(), o, metav1.ApplyOptions{FieldManager: fieldManager, Force: true})
	return err
}

// depth is that of a HelmChart that this one makes.
func (w *work) depth() (int, error) {
	n, err := strconv.Atoi(w.hc.GetAnnotations()[depthAnnotation])
	if err != nil || n < 0 {
		n = 0
	}
	if n+1 > maxDepth {
		return 0, fmt.Errorf("charts that make HelmCharts may do so %d times in a row, and this is one more", maxDepth)
	}
	return n + 1, nil
}

// definitions makes the definitions of a chart that are not there.
func (w *work) definitions(ctx context.Context, list []rawObject) error {
	objects, err := decodeAll(list)
	if err != nil {
		return err
	}
	for _, o := range objects {
		r, err := w.at(o)
		if err != nil {
			return fault("RenderFailed", "the chart's folder crds has %s: %v", label(o), err)
		}
		_, err = r.Get(ctx, o.GetName(), metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			_, err = r.Create(ctx, o, metav1.CreateOptions{FieldManager: fieldManager})
		}
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return w.hc.asAccount(err, "make the "+label(o)+" of the chart")
		}
	}
	return nil
}

// doomed is an object that is to be deleted.
type doomed struct {
	*unstructured.Unstructured
	// partial: its revision was never applied as a whole, perhaps because the account may not touch this very
	// object. What the account may not even see then, it has not made.
	partial bool
}

func doom(objects []*unstructured.Unstructured, partial bool) []doomed {
	out := make([]doomed, len(objects))
	for i, o := range objects {
		out[i] = doomed{o, partial}
	}
	return out
}

// partial says whether a revision was not applied as a whole.
func partial(r *release.Record) bool {
	switch r.Info.Status {
	case release.Deployed, release.Superseded:
		return false
	case release.Uninstalling:
		return r.Marks[markPartial] != ""
	default:
		s := releaseplan.Stage(r.Marks[markStage])
		return r.Marks[markOwner] != "" && (s == releaseplan.StageBefore || s == releaseplan.StageApply)
	}
}

// earlier are the objects of what is deployed, and of what has failed since.
func (w *work) earlier(ctx context.Context, r *release.Record) ([]doomed, error) {
	var texts []string
	var parts []bool
	for _, old := range slices.Backward(w.revisions) {
		if old.Version >= r.Version {
			continue
		}
		if old.Status == release.Deployed || old.Status == release.Failed && !old.Remedied {
			before, err := w.record(ctx, old.Version)
			if err != nil {
				return nil, err
			}
			texts, parts = append(texts, before.Manifest), append(parts, partial(before))
		}
		if old.Status == release.Deployed {
			break
		}
	}
	if len(texts) == 0 {
		return nil, nil
	}
	lists, err := w.c.cfg.Renderer.Objects(ctx, texts)
	if err != nil {
		return nil, fault("DamagedRelease", "read the manifests of former revisions: %v", err)
	}
	var out []doomed
	for i, l := range lists {
		objects, err := decodeAll(l)
		if err != nil {
			return nil, err
		}
		out = append(out, doom(objects, parts[i])...)
	}
	return out, nil
}

// delete deletes objects that are of the release, the last ones first, and sees whether they are gone. The error is
// errLater while some are left.
func (w *work) delete(ctx context.Context, objects []doomed, until time.Time) (left string, err error) {
	for _, o := range slices.Backward(objects) {
		if w.c.now().After(until) {
			return "objects are being deleted", errLater
		}
		there, err := w.deleteOne(ctx, o.Unstructured)
		if o.partial && apierrors.IsForbidden(err) {
			continue
		}
		if err != nil && passing(err) && !meta.IsNoMatchError(err) {
			left = fmt.Sprintf("%s cannot be deleted yet: %s", label(o.Unstructured), clip(err.Error(), 500))
		} else if err != nil {
			return "", w.hc.asAccount(err, "delete "+label(o.Unstructured))
		} else if there && left == "" {
			left = label(o.Unstructured) + " is being deleted"
		}
	}
	if left != "" {
		return left, errLater
	}
	return "", nil
}

func (w *work) deleteOne(ctx context.Context, o *unstructured.Unstructured) (there bool, err error) {
	r, err := w.at(o)
	if meta.IsNoMatchError(err) {
		return false, nil // its kind has gone, and took it along
	}
	if err != nil {
		return false, err
	}
	have, err := r.Get(ctx, o.GetName(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if !w.owned(have) || keeps(have) || keeps(o) {
		return false, nil
	}
	if have.GetDeletionTimestamp() != nil {
		return true, nil
	}
	err = r.Delete(ctx, o.GetName(), metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: ptr.To(have.GetUID())}, PropagationPolicy: ptr.To(metav1.DeletePropagationBackground),
	})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return true, err
}

// keeps says that an object stays when its release goes.
func keeps(o *unstructured.Unstructured) bool {
	return strings.EqualFold(strings.TrimSpace(o.GetAnnotations()[policyAnnotation]), "keep")
}

// await looks whether what was applied is ready. What has been is not looked at again.
func (w *work) await(ctx context.Context, p *parsed) (waits string, err error) {
	var missing []string
	for i, o := range p.objects {
		if p.ready[i] {
			continue
		}
		r, err := w.at(o)
		if err != nil {
			return "", &failureError{w.explain(err, "look at "+label(o))}
		}
		have, err := r.Get(ctx, o.GetName(), metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			missing = append(missing, label(o)+" is gone")
			continue
		}
		if err != nil && passing(err) {
			return clip(err.Error(), 500), nil
		}
		if err != nil {
			return "", &failureError{w.explain(err, "look at "+label(o))}
		}
		result, err := status.Compute(have)
		if err != nil {
			return "", &failureError{fmt.Sprintf("look at %s: %v", label(o), err)}
		}
		switch result.Status {
		case status.CurrentStatus:
			p.ready[i] = true
		case status.FailedStatus:
			return "", &failureError{fmt.Sprintf("%s failed: %s", label(have), clip(result.Message, 500))}
		default:
			missing = append(missing, fmt.Sprintf("%s is not ready: %s", label(have), clip(result.Message, 200)))
		}
	}
	return few(missing), nil
}

// few names the first of many.
func few(list []string) string {
	const most = 3
	if len(list) > most {
		return strings.Join(list[:most], "; ") + fmt.Sprintf("; and %d more", len(list)-most)
	}
	return strings.Join(list, "; ")
}
