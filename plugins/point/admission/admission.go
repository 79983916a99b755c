// SPDX-License-Identifier: Apache-2.0

// Package admission lets Wasm plugins mutate and validate writes: it is
// core's admission.Mutator and Validator over a plugin.
//
// The hook sees the request under the names of admission.k8s.io/v1's
// AdmissionRequest (object, oldObject, userInfo, ...), projected onto the fields that it
// declared; the object is read where it is, never converted to JSON first. Its
// patch is applied to a copy. A change of what identifies the object is refused.
package admission

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	oteltrace "go.opentelemetry.io/otel/trace"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/host"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/point"
	"github.com/wasmplane/wasmplane/plugins/rights"
)

// Namespaces answers the labels of a namespace; ok is false where it does not exist.
type Namespaces func(ctx context.Context, name string) (labels map[string]string, ok bool)

// Cluster is what the adapters have to know of the cluster.
type Cluster struct {
	Namespaces Namespaces
	// Rights holds plugins of the API against the rights of their writers; nil = nobody can.
	Rights *rights.Checker
}

// New makes the adapter of a plugin for the points that it has hooks at now. It
// is nil where the plugin takes no part in admission.
func New(p *point.Plugin, c Cluster) admission.Plugin {
	v := p.Current()
	if v == nil {
		return nil
	}
	a := &adapter{plugin: p, cluster: c}
	mutates, validates := v.Hook(abi.AdmissionMutate) != nil, v.Hook(abi.AdmissionValidate) != nil
	switch {
	case mutates && validates:
		return both{a, mutator{a}, validator{a}}
	case mutates:
		return struct {
			*adapter
			mutator
		}{a, mutator{a}}
	case validates:
		return struct {
			*adapter
			validator
		}{a, validator{a}}
	}
	return nil
}

type both struct {
	*adapter
	mutator
	validator
}

// adapter is what both points share.
type adapter struct {
	plugin  *point.Plugin
	cluster Cluster
}

// Name implements admission.Plugin.
func (a *adapter) Name() string { return a.plugin.Name() }

// Handles implements admission.Plugin: only what can be told without reading the object.
func (a *adapter) Handles(r *admission.Request) bool {
	v := a.plugin.Current()
	if v == nil {
		return true // not loaded: the failure policy decides, for every request
	}
	return matcherOf(v).handles(r)
}

type mutator struct{ a *adapter }

// Mutate implements admission.Mutator.
func (m mutator) Mutate(ctx context.Context, r *admission.Request) error {
	return m.a.ask(ctx, abi.AdmissionMutate, r)
}

type validator struct{ a *adapter }

// Validate implements admission.Validator.
func (v validator) Validate(ctx context.Context, r *admission.Request) error {
	return v.a.ask(ctx, abi.AdmissionValidate, r)
}

// document is the request as hooks see it: AdmissionRequest's names.
type document struct {
	UID      string        `json:"uid"`
	Kind     groupKind     `json:"kind"`
	Resource groupResource `json:"resource"`
	// What the request was before a conversion: the same here. Modules of other projects expect it.
	RequestKind        *groupKind      `json:"requestKind,omitempty"`
	RequestResource    *groupResource  `json:"requestResource,omitempty"`
	RequestSubResource string          `json:"requestSubResource,omitempty"`
	SubResource        string          `json:"subResource,omitempty"`
	Name               string          `json:"name,omitempty"`
	Namespace          string          `json:"namespace,omitempty"`
	Operation          string          `json:"operation"`
	UserInfo           userInfo        `json:"userInfo"`
	Object             *abi.Object     `json:"object,omitempty"`
	OldObject          *abi.Object     `json:"oldObject,omitempty"`
	DryRun             bool            `json:"dryRun"`
	Options            *runtime.Object `json:"options,omitempty"`
}

// About names what the request is about, for people.
func (d *document) About() string {
	name := d.Name
	if d.Namespace != "" {
		name = d.Namespace + "/" + name
	}
	return fmt.Sprintf("%s %s %s", d.Operation, d.Kind.Kind, name)
}

type groupKind struct {
	Group   string `json:"group"`
	Version string `json:"version"`
	Kind    string `json:"kind"`
}

type groupResource struct {
	Group    string `json:"group"`
	Version  string `json:"version"`
	Resource string `json:"resource"`
}

type userInfo struct {
	Username string              `json:"username,omitempty"`
	UID      string              `json:"uid,omitempty"`
	Groups   []string            `json:"groups,omitempty"`
	Extra    map[string][]string `json:"extra,omitempty"`
}

// newDocument reads the request; the forms of the object are made at most once.
func newDocument(r *admission.Request) (*document, error) {
	d := &document{
		UID: string(r.UID), Operation: string(r.Operation), Name: r.Name, Namespace: r.Namespace, DryRun: r.DryRun,
		Kind:        groupKind{r.Kind.Group, r.Kind.Version, r.Kind.Kind},
		Resource:    groupResource{r.Resource.Group, r.Resource.Version, r.Resource.Resource},
		SubResource: r.Subresource,
	}
	if r.User != nil {
		d.UserInfo = userInfo{Username: r.User.GetName(), UID: r.User.GetUID(), Groups: r.User.GetGroups(), Extra: r.User.GetExtra()}
	}
	if r.Options != nil {
		d.Options = &r.Options
	}
	if r.Object != nil {
		v, err := r.Object.Versioned()
		if err != nil {
			return nil, err
		}
		d.Object = &abi.Object{Object: v, GVK: r.Object.Kind(), Keeper: r.Object}
	}
	if r.OldObject != nil {
		v, err := r.OldObject.Versioned()
		if err != nil {
			return nil, err
		}
		d.OldObject = &abi.Object{Object: v, GVK: r.OldObject.Kind(), Keeper: r.OldObject}
	}
	return d, nil
}

// ask is one plugin's turn: match, call, understand, act by mode.
func (a *adapter) ask(ctx context.Context, pt abi.Point, r *admission.Request) error {
	if v := a.plugin.Current(); v != nil {
		if v.Hook(pt) == nil {
			return nil
		}
		matches, err := matcherOf(v).matches(ctx, pt, r, a.cluster)
		if err != nil {
			return a.unmatched(ctx, pt, r, v, err)
		}
		if !matches {
			skipped(ctx)
			return nil
		}
		if v.Pending() {
			return a.held(r, v)
		}
	}
	doc, err := newDocument(r)
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("read the object for plugin %q: %w", a.Name(), err))
	}
	if v := a.plugin.Current(); v != nil && v.Foreign() {
		doc.RequestKind, doc.RequestResource, doc.RequestSubResource = &doc.Kind, &doc.Resource, doc.SubResource
	}
	if r.DryRun {
		if v := a.plugin.Current(); v != nil && v.Hook(pt) != nil && v.Hook(pt).SideEffects == abi.SomeSideEffects {
			return a.refuseDryRun(ctx, pt, r, v)
		}
		ctx = host.WithDryRun(ctx)
	}
	c := a.plugin.Ask(ctx, pt, r.Kind.Kind, doc)
	if c == nil {
		return nil
	}
	var answer *abi.AdmissionAnswer
	if c.Err == nil {
		if answer, err = abi.ParseAdmission(c.Answer, c.Hook.Hook); err != nil {
			c.Fail(err)
		}
	}
	t := turn{adapter: a, call: c, request: r, point: pt, answer: answer}
	return t.finish(ctx)
}

// held has a request wait for a plugin that is being loaded. It is no call of the plugin.
func (a *adapter) held(r *admission.Request, v *point.Version) error {
	err := v.Held()
	if err == nil && v.Entry.Mode == manifest.Enforce {
		r.Annotate(a.Name()+"/failed-open", v.Err.Error())
	}
	return err
}

// refuseDryRun: whoever asks for a dry run must be able to believe that nothing
// happened, and that the answer is what the real request would get. The plugin can give neither.
func (a *adapter) refuseDryRun(ctx context.Context, pt abi.Point, r *admission.Request, v *point.Version) error {
	refusal := apierrors.NewBadRequest(fmt.Sprintf("plugin %q does not support dry run: it declares sideEffects: Some", a.Name()))
	c := &point.Call{Plugin: a.plugin, Version: v, Hook: v.Hook(pt)}
	o := point.Outcome{Decision: "deny", Message: refusal.Error()}
	c.Record(ctx, pt, o)
	t := turn{adapter: a, call: c, request: r, point: pt}
	return t.byMode(refusal, o)
}

// skipped marks the plugin's span: the plugin was not asked.
func skipped(ctx context.Context) {
	if span := oteltrace.SpanFromContext(ctx); span.IsRecording() {
		span.SetAttributes(attribute.String("wasmplane.match", "no"))
	}
}

// unmatched is a condition or selector that could not be evaluated: a failure of the entry.
func (a *adapter) unmatched(ctx context.Context, pt abi.Point, r *admission.Request, v *point.Version, err error) error {
	c := &point.Call{Plugin: a.plugin, Version: v, Hook: v.Hook(pt)}
	c.Fail(err)
	t := turn{adapter: a, call: c, request: r, point: pt}
	return t.finish(ctx)
}

// turn is a call with what it means for the request.
type turn struct {
	adapter *adapter
	call    *point.Call
	request *admission.Request
	point   abi.Point
	answer  *abi.AdmissionAnswer
}

func (t *turn) finish(ctx context.Context) error {
	var refusal error
	outcome := point.Outcome{Decision: "allow"}
	switch {
	case t.call.Err != nil:
		refusal = t.failed()
	case t.answer.Denied():
		refusal = t.refusal()
		outcome.Decision, outcome.Message = "deny", t.answer.Message
	case len(t.answer.Patch) > 0 || len(t.answer.Object) > 0:
		outcome.Decision = "patch"
		if len(t.answer.Patch) > 0 {
			outcome.Patch = patchText(t.answer.Patch)
		}
		if err := t.change(ctx); err != nil {
			t.call.Fail(err)
			refusal, outcome = t.failed(), point.Outcome{}
		}
	}
	if t.answer != nil && t.call.Mode() != manifest.Shadow {
		for _, w := range t.answer.Warnings {
			t.request.Warn(w)
		}
		for k, v := range t.answer.AuditAnnotations {
			t.request.Annotate(t.adapter.Name()+"/"+k, v)
		}
	}
	t.call.Record(ctx, t.point, outcome)
	t.annotate(outcome)
	return t.byMode(refusal, outcome)
}

// annotate leaves in the audit log what the plugin decided where that had an
// effect, and by which version.
func (t *turn) annotate(o point.Outcome) {
	if t.call.Mode() != manifest.Enforce || t.call.Err != nil || o.Decision == "allow" {
		return
	}
	digest := ""
	if v := t.call.Version; v != nil {
		digest = v.Digest
	}
	t.request.Annotate(t.adapter.Name()+"/decision", fmt.Sprintf("%s at %s by %s", o.Decision, t.point, digest))
}

// byMode turns a refusal into what the mode makes of it.
func (t *turn) byMode(refusal error, o point.Outcome) error {
	name := t.adapter.Name()
	switch t.call.Mode() {
	case manifest.Enforce:
		return refusal
	case manifest.Warn:
		if refusal != nil {
			t.request.Warn(fmt.Sprintf("plugin %q would refuse this: %s", name, refusal))
		}
	case manifest.Audit:
		if refusal != nil {
			t.request.Annotate(name+"/would-refuse", refusal.Error())
		}
		if o.Decision == "patch" {
			t.request.Annotate(name+"/would-patch", o.Patch)
		}
	case manifest.Shadow:
	}
	return nil
}

// failed is a plugin failure, by the failure policy.
func (t *turn) failed() error {
	if t.call.Policy(manifest.Fail) == manifest.Ignore {
		if t.call.Mode() == manifest.Enforce {
			t.request.Annotate(t.adapter.Name()+"/failed-open", t.call.Err.Error())
		}
		return nil
	}
	return apierrors.NewInternalError(fmt.Errorf("admission is closed because a plugin failed at %s, and its failurePolicy is Fail: %w", t.point, t.call.Err))
}

// refusal words the plugin's refusal as an API status.
func (t *turn) refusal() error {
	a := t.answer
	err := admission.Forbidden(t.request, fmt.Errorf("plugin %q denied the request: %s", t.adapter.Name(), worded(a)))
	var status *apierrors.StatusError
	if !errors.As(err, &status) {
		return err
	}
	if a.Code != 0 {
		status.ErrStatus.Code = a.Code
		status.ErrStatus.Reason = reasonOf(a.Code)
	}
	if a.Reason != "" {
		status.ErrStatus.Reason = metav1.StatusReason(a.Reason)
	}
	if a.Field != "" {
		status.ErrStatus.Details.Causes = append(status.ErrStatus.Details.Causes, metav1.StatusCause{
			Type: metav1.CauseTypeFieldValueInvalid, Field: a.Field, Message: a.Message,
		})
	}
	for _, c := range a.Causes {
		status.ErrStatus.Details.Causes = append(status.ErrStatus.Details.Causes, metav1.StatusCause{
			Type: metav1.CauseType(cmp.Or(c.Reason, string(metav1.CauseTypeFieldValueInvalid))), Field: c.Field, Message: c.Message,
		})
	}
	return status
}

// worded is the answer's message, with the fields and messages of its causes where
// there are any: not every client shows causes.
func worded(a *abi.AdmissionAnswer) string {
	var parts []string
	if a.Message != "" || a.Field != "" {
		parts = append(parts, about(a.Field, a.Message))
	}
	for _, c := range a.Causes {
		parts = append(parts, about(c.Field, c.Message))
	}
	return cmp.Or(strings.Join(parts, "; "), "no reason was given")
}

func about(field, message string) string {
	message = cmp.Or(message, "no reason was given")
	if field == "" {
		return message
	}
	return field + ": " + message
}

// reasonOf is the status reason that goes with a code.
func reasonOf(code int32) metav1.StatusReason {
	switch code {
	case http.StatusBadRequest:
		return metav1.StatusReasonBadRequest
	case http.StatusUnauthorized:
		return metav1.StatusReasonUnauthorized
	case http.StatusConflict:
		return metav1.StatusReasonConflict
	case http.StatusUnprocessableEntity:
		return metav1.StatusReasonInvalid
	case http.StatusTooManyRequests:
		return metav1.StatusReasonTooManyRequests
	}
	return metav1.StatusReasonForbidden
}

// change applies a patch or takes a whole object, on a copy. Modes other than
// Enforce apply it to see whether it could be, and keep the object as it is.
func (t *turn) change(ctx context.Context) error {
	o := t.request.Object
	if o == nil {
		return errors.New("it answered with a change, but this request has no object to change")
	}
	before, err := o.Versioned()
	if err != nil {
		return err
	}
	after, err := t.changed(before)
	if err != nil {
		return err
	}
	if err := sameIdentity(before, after); err != nil {
		return err
	}
	if err := t.mayChange(ctx, before, after); err != nil {
		return err
	}
	if t.call.Mode() == manifest.Enforce {
		o.SetVersioned(after)
	}
	return nil
}

func (t *turn) changed(before runtime.Object) (runtime.Object, error) {
	codec, hook := t.request.Object.Codec(), t.call.Hook
	kind := t.request.Kind.Kind
	if len(t.answer.Object) > 0 {
		var tree map[string]any
		if err := json.Unmarshal(t.answer.Object, &tree); err != nil {
			return nil, fmt.Errorf("it answered with something that is no object: %w", err)
		}
		return codec.FromTree(tree)
	}
	after := before.DeepCopyObject()
	err := hook.PatchStruct(after, kind, t.answer.Patch)
	if err == nil || !errors.Is(err, abi.ErrNotTyped) {
		return after, err
	}
	tree, err := codec.ToTree(before.DeepCopyObject())
	if err != nil {
		return nil, err
	}
	if tree, err = hook.Patch(tree, kind, t.answer.Patch); err != nil {
		return nil, err
	}
	return codec.FromTree(tree)
}

// sameIdentity refuses a change of what the rest of the request goes by.
func sameIdentity(before, after runtime.Object) error {
	switch before.(type) {
	case metav1.Object, metav1.ObjectMetaAccessor:
	default:
		return nil // an object without metadata has no identity to lose
	}
	b, err := meta.Accessor(before)
	if err != nil {
		return err
	}
	a, err := meta.Accessor(after)
	if err != nil {
		return err
	}
	return sameMeta(before, after, b, a)
}

func sameMeta(before, after runtime.Object, b, a metav1.Object) error {
	bk, ak := before.GetObjectKind().GroupVersionKind(), after.GetObjectKind().GroupVersionKind()
	if !bk.Empty() && !ak.Empty() && bk != ak {
		return fmt.Errorf("it turned a %s into a %s", bk.Kind, ak.Kind)
	}
	for _, f := range []struct{ name, before, after string }{
		{"name", b.GetName(), a.GetName()},
		{"generateName", b.GetGenerateName(), a.GetGenerateName()},
		{"namespace", b.GetNamespace(), a.GetNamespace()},
		{"uid", string(b.GetUID()), string(a.GetUID())},
		{"resourceVersion", b.GetResourceVersion(), a.GetResourceVersion()},
	} {
		if f.before != f.after {
			return fmt.Errorf("it changed metadata.%s from %q to %q", f.name, f.before, f.after)
		}
	}
	return nil
}

// patchLimit bounds the patch that a record carries, in bytes.
const patchLimit = 16 << 10

func patchText(ops []abi.PatchOp) string {
	b, err := json.Marshal(ops)
	if err != nil || len(b) > patchLimit {
		return fmt.Sprintf("%d operations", len(ops))
	}
	return string(b)
}
