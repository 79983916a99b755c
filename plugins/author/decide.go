// SPDX-License-Identifier: Apache-2.0

package author

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/host"
	"github.com/wasmplane/wasmplane/plugins/point"
	pointadmission "github.com/wasmplane/wasmplane/plugins/point/admission"
	"github.com/wasmplane/wasmplane/plugins/point/customresource"
)

// The words for what a plugin decided.
const (
	Allow     = "allow"
	Deny      = "deny"
	Patched   = "patch"
	NoOpinion = "no opinion"
	NotAsked  = "not asked" // match leaves the request out
	Failed    = "failed"
	Scored    = "score"
	Planned   = "plan"
	Judged    = "judge"
	Converted = "convert"
	Answered  = "answer" // at points whose answer is shown as it is
)

// Decision is what a plugin decided, in the terms of its point.
type Decision struct {
	Point    abi.Point `json:"point"`
	Decision string    `json:"decision"`
	Message  string    `json:"message,omitempty"`
	Field    string    `json:"field,omitempty"`
	Code     int32     `json:"code,omitempty"`
	Reason   string    `json:"reason,omitempty"`
	// Causes are further things that are wrong, with their fields.
	Causes []map[string]any `json:"causes,omitempty"`

	Patch            []map[string]any  `json:"patch,omitempty"`
	Object           map[string]any    `json:"object,omitempty"` // what the object becomes
	Warnings         []string          `json:"warnings,omitempty"`
	AuditAnnotations map[string]string `json:"auditAnnotations,omitempty"`

	Reasons  []string       `json:"reasons,omitempty"`
	Score    *int64         `json:"score,omitempty"`
	Verdicts map[string]any `json:"verdicts,omitempty"` // by node: a score, or the reason
	Plan     map[string]any `json:"plan,omitempty"`
	Answer   any            `json:"answer,omitempty"` // as the plugin gave it
	Error    string         `json:"error,omitempty"`

	// Printed is the end of what the plugin wrote to stdout and stderr meanwhile.
	Printed string `json:"printed,omitempty"`

	Usage Usage `json:"usage"`
	stack string
}

// Usage is what a call has cost.
type Usage struct {
	Fuel         int64  `json:"fuel"`
	Microseconds int64  `json:"microseconds"`
	Memory       uint32 `json:"memory"`
	HostCalls    int64  `json:"hostCalls,omitempty"`
}

// Stack is the guest's stack of a failure, where its module has names.
func (d *Decision) Stack() string { return d.stack }

// Ask passes a document to the hook at a point. Admission documents are completed
// from their object first; whether the plugin's rules match is looked at too.
func (p *Plugin) Ask(ctx context.Context, pt abi.Point, document map[string]any) (*Decision, error) {
	if !p.TakesPartAt(pt) {
		return nil, fmt.Errorf("plugin %q takes no part at %s; it does at %s", p.plugin.Name(), pt, p.PointNames())
	}
	kind, asked, err := p.prepare(ctx, pt, document)
	if err != nil {
		return nil, err
	}
	if !asked {
		return &Decision{Point: pt, Decision: NotAsked}, nil
	}
	if primary, ok := document["primary"].(map[string]any); pt == abi.Reconcile && ok {
		kind, _ = primary["kind"].(string)
	}
	start := time.Now()
	c := p.plugin.Ask(ctx, pt, kind, document)
	if c == nil {
		return &Decision{Point: pt, Decision: NotAsked}, nil
	}
	d := &Decision{Point: pt, Printed: c.Usage.Printed}
	d.Usage = usage(c.Usage, time.Since(start))
	if c.Err == nil {
		c.Err = d.understand(c, kind, document)
	}
	if c.Err != nil {
		*d = Decision{Point: pt, Decision: Failed, Error: failure(c.Err), Printed: d.Printed, Usage: d.Usage, stack: c.Stack()}
	}
	return d, nil
}

// Prepared completes a document once, as Ask does, and asks with it as often as the
// caller wants: only the plugin's own work is left. What it answers is not read.
func (p *Plugin) Prepared(ctx context.Context, pt abi.Point, document map[string]any) (ask func(context.Context) *point.Call, err error) {
	kind, _, err := p.prepare(ctx, pt, document)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) *point.Call { return p.plugin.Ask(ctx, pt, kind, document) }, nil
}

// prepare completes a document with what goes without saying, and says of what kind
// it is and whether the plugin would be asked.
func (p *Plugin) prepare(ctx context.Context, pt abi.Point, document map[string]any) (kind string, asked bool, err error) {
	switch pt.Form() {
	case abi.AdmissionMutate, abi.CustomResourceValidate:
		r, err := complete(document)
		if err != nil {
			return "", false, err
		}
		asked := true
		if m := p.matcher(pt); m != nil {
			if asked, err = m.Matches(ctx, pt, r); err != nil {
				return "", false, fmt.Errorf("match: %w", err)
			}
		}
		return r.Kind.Kind, asked, nil
	case abi.CustomResourceConvert:
		kind, err := completeConversion(document)
		return kind, err == nil, err
	default: // every other point is about a pod, or its request names no kind
		return "Pod", true, nil
	}
}

// matcher decides whether the plugin is asked about a request.
type matcher interface {
	Matches(context.Context, abi.Point, *admission.Request) (bool, error)
}

func (p *Plugin) matcher(pt abi.Point) matcher {
	if pt == abi.CustomResourceValidate {
		if p.custom != nil {
			return p.custom
		}
		return nil
	}
	m, _ := p.admits.(matcher)
	return m
}

// completeConversion fills in what the object says of itself.
func completeConversion(doc map[string]any) (kind string, err error) {
	object, _ := doc["object"].(map[string]any)
	if object == nil {
		return "", fmt.Errorf("%s: an object was expected, to be converted", abi.CustomResourceConvert)
	}
	if to, _ := doc["desiredAPIVersion"].(string); to == "" {
		return "", fmt.Errorf("%s: into what? A case says to: example.com/v2, a document desiredAPIVersion, the command line --to", abi.CustomResourceConvert)
	}
	u := &unstructured.Unstructured{Object: object}
	gvk := u.GroupVersionKind()
	for key, value := range map[string]any{
		"kind": map[string]any{"group": gvk.Group, "version": gvk.Version, "kind": gvk.Kind}, "name": u.GetName(), "namespace": u.GetNamespace(),
	} {
		if _, there := doc[key]; !there && value != "" {
			doc[key] = value
		}
	}
	return gvk.Kind, nil
}

func usage(u host.Usage, total time.Duration) Usage {
	return Usage{Fuel: u.Fuel, Microseconds: total.Microseconds(), Memory: u.Memory, HostCalls: u.HostCalls}
}

// failure is an error without the plugin's name, which is known here.
func failure(err error) string {
	var said *host.GuestError
	if errors.As(err, &said) {
		return said.Message
	}
	return err.Error()
}

// understand reads an answer.
func (d *Decision) understand(c *point.Call, kind string, document map[string]any) error {
	d.Answer = nil
	if len(c.Answer) > 0 && json.Unmarshal(c.Answer, &d.Answer) != nil {
		return fmt.Errorf("the answer is no JSON: %.80q", c.Answer)
	}
	switch d.Point.Form() {
	case abi.AdmissionMutate, abi.CustomResourceValidate:
		return d.admission(c, kind, document)
	case abi.CustomResourceConvert:
		return d.conversion(c, document)
	case abi.Authorization:
		a, err := abi.ParseAuthorization(c.Answer)
		d.Decision, d.Message = a.Decision, a.Reason
		if a.Decision == "noOpinion" {
			d.Decision = NoOpinion
		}
		return err
	case abi.SchedulingFilter:
		a, err := abi.ParseFilter(c.Answer)
		d.Decision, d.Reasons = Allow, a.Reasons
		if a.Fits != nil && !*a.Fits {
			d.Decision, d.Message = Deny, strings.Join(a.Reasons, "; ")
		}
		return err
	case abi.SchedulingScore:
		score, err := abi.ParseScore(c.Answer)
		d.Decision, d.Score = Scored, &score
		return err
	case abi.NodeAdmission:
		a, err := abi.ParseNodeAdmission(c.Answer)
		d.Decision = Allow
		if a.Admitted != nil && !*a.Admitted {
			d.Decision, d.Reason, d.Message = Deny, a.Reason, a.Message
		}
		return err
	case abi.Reconcile:
		_, err := abi.ParsePlan(c.Answer)
		d.Decision = Planned
		if d.Plan, _ = d.Answer.(map[string]any); d.Plan == nil {
			d.Plan = map[string]any{}
		}
		return err
	default: // shown as it is
		d.Decision = Answered
		if d.Answer == nil {
			d.Decision = NoOpinion
		}
		return nil
	}
}

func (d *Decision) admission(c *point.Call, kind string, document map[string]any) error {
	a, err := abi.ParseAdmission(c.Answer, c.Hook.Hook)
	if err != nil {
		return err
	}
	d.Decision, d.Warnings, d.AuditAnnotations = Allow, a.Warnings, a.AuditAnnotations
	switch {
	case a.Denied():
		d.refused(a)
	case len(a.Patch) > 0:
		d.Decision = Patched
		for _, op := range a.Patch {
			var m map[string]any
			b, err := json.Marshal(op)
			if err == nil {
				err = json.Unmarshal(b, &m)
			}
			if err != nil {
				return err
			}
			d.Patch = append(d.Patch, m)
		}
		before, _ := document["object"].(map[string]any)
		d.Object, err = c.Hook.Patch(deepCopy(before), kind, a.Patch)
		return err
	case len(a.Object) > 0:
		d.Decision = Patched
		return json.Unmarshal(a.Object, &d.Object)
	}
	return nil
}

func (d *Decision) refused(a *abi.AdmissionAnswer) {
	d.Decision, d.Message, d.Field, d.Code, d.Reason = Deny, a.Message, a.Field, a.Code, a.Reason
	for _, c := range a.Causes {
		cause := map[string]any{"field": c.Field, "message": c.Message}
		if c.Reason != "" {
			cause["reason"] = c.Reason
		}
		d.Causes = append(d.Causes, cause)
	}
}

// conversion shows the object as it is in the other version.
func (d *Decision) conversion(c *point.Call, document map[string]any) error {
	a, err := abi.ParseAdmission(c.Answer, c.Hook.Hook)
	if err != nil {
		return err
	}
	if a.Denied() {
		d.refused(a)
		return nil
	}
	before, _ := document["object"].(map[string]any)
	to, _ := document["desiredAPIVersion"].(string)
	gv, err := schema.ParseGroupVersion(to)
	if err != nil {
		return fmt.Errorf("desiredAPIVersion: %w", err)
	}
	after, err := customresource.Converted(c.Hook.Hook, a, &unstructured.Unstructured{Object: before}, gv)
	if err != nil {
		return err
	}
	if after.GroupVersionKind().GroupVersion() != gv {
		return fmt.Errorf("it answered with an object in %s, where %s was asked for", after.GetAPIVersion(), gv)
	}
	d.Decision, d.Object = Converted, after.Object
	return nil
}

func deepCopy(m map[string]any) map[string]any {
	if m == nil {
		return map[string]any{}
	}
	return (&unstructured.Unstructured{Object: m}).DeepCopy().Object
}

// Request is the request that a document of admission describes; what it leaves out follows from its object.
func Request(doc map[string]any) (*admission.Request, error) { return complete(doc) }

// complete fills in what a request always has, and makes the request by which
// rules, selectors and conditions are judged.
func complete(doc map[string]any) (*admission.Request, error) {
	object0, _ := doc["object"].(map[string]any)
	old, _ := doc["oldObject"].(map[string]any)
	about := object0
	if about == nil {
		about = old
	}
	set := func(key string, value any) {
		if _, there := doc[key]; !there && value != nil && value != "" {
			doc[key] = value
		}
	}
	u := &unstructured.Unstructured{Object: about}
	gvk := schema.GroupVersionKind{Version: "v1", Kind: "Pod"}
	if about != nil && u.GetKind() != "" {
		gvk = u.GroupVersionKind()
	}
	plural, _ := meta.UnsafeGuessKindToResource(gvk)
	operation := "CREATE"
	switch {
	case object0 == nil && old != nil:
		operation = "DELETE"
	case old != nil:
		operation = "UPDATE"
	}
	set("uid", "00000000-0000-0000-0000-000000000000")
	set("kind", map[string]any{"group": gvk.Group, "version": gvk.Version, "kind": gvk.Kind})
	set("resource", map[string]any{"group": plural.Group, "version": plural.Version, "resource": plural.Resource})
	set("operation", operation)
	set("dryRun", false)
	if about != nil {
		set("name", u.GetName())
		set("namespace", u.GetNamespace())
	}
	set("userInfo", map[string]any{"username": "plugin-test", "groups": []any{"system:authenticated"}})
	set("requestKind", doc["kind"])
	set("requestResource", doc["resource"])
	return request(doc, object0, old)
}

// request reads a completed document as the point's contract has it.
func request(doc, object0, old map[string]any) (*admission.Request, error) {
	b, err := json.Marshal(doc)
	if err != nil {
		return nil, fmt.Errorf("read the request: %w", err)
	}
	var d struct {
		UID         types.UID
		Kind        struct{ Group, Version, Kind string }
		Resource    struct{ Group, Version, Resource string }
		SubResource string
		Name        string
		Namespace   string
		Operation   admission.Operation
		DryRun      bool
		Implied     bool
		UserInfo    struct {
			Username, UID string
			Groups        []string
			Extra         map[string][]string
		}
	}
	if err := json.Unmarshal(b, &d); err != nil {
		return nil, fmt.Errorf("the input is no admission request: %w", err)
	}
	r := &admission.Request{
		UID: d.UID, Operation: d.Operation, Subresource: d.SubResource, Name: d.Name, Namespace: d.Namespace, DryRun: d.DryRun,
		Kind:     schema.GroupVersionKind(d.Kind),
		Resource: schema.GroupVersionResource(d.Resource),
		User:     &user.DefaultInfo{Name: d.UserInfo.Username, UID: d.UserInfo.UID, Groups: d.UserInfo.Groups, Extra: d.UserInfo.Extra},
	}
	if d.Implied {
		pointadmission.Imply(r)
	}
	codec := object.Unstructured{GVK: r.Kind}
	if object0 != nil {
		r.Object = object.FromVersioned(codec, &unstructured.Unstructured{Object: object0})
	}
	if old != nil {
		r.OldObject = object.FromVersioned(codec, &unstructured.Unstructured{Object: old})
	}
	return r, nil
}
