// SPDX-License-Identifier: Apache-2.0

package customresource

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/customresource/extension"
	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/host"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/point"
	pointadmission "github.com/wasmplane/wasmplane/plugins/point/admission"
)

// request is a change as admission would be asked about it: rules, selectors and
// conditions mean the same there and here.
func request(c extension.Change) *admission.Request {
	r := &admission.Request{
		Operation: admission.Create, Resource: c.Resource, Subresource: c.Subresource, User: c.User, DryRun: c.DryRun,
		Kind: c.Object.GroupVersionKind(), Name: c.Object.GetName(), Namespace: c.Object.GetNamespace(),
		Object: carrier(c.Object),
	}
	if c.Old != nil {
		r.Operation, r.OldObject = admission.Update, carrier(c.Old)
	}
	return r
}

func carrier(u *unstructured.Unstructured) *object.Object {
	return object.FromVersioned(object.Unstructured{GVK: u.GroupVersionKind()}, u)
}

// Validate implements extension.Validator.
func (p *Plugin) Validate(ctx context.Context, c extension.Change) (extension.Judgement, error) {
	if c.Object == nil {
		return extension.Judgement{}, errors.New("there is no object to judge")
	}
	r := request(c)
	wrong, err := p.judge(ctx, r, c.Object)
	return extension.Judgement{Wrong: wrong, Warnings: r.Warnings(), Annotations: r.Annotations()}, err
}

func (p *Plugin) judge(ctx context.Context, r *admission.Request, o *unstructured.Unstructured) (field.ErrorList, error) {
	v := p.plugin.Current()
	if v == nil {
		return nil, nil // unloaded in between
	}
	matches, err := p.match.Matches(ctx, abi.CustomResourceValidate, r)
	if err != nil {
		call := &point.Call{Plugin: p.plugin, Version: v, Hook: v.Hook(abi.CustomResourceValidate)}
		call.Fail(err)
		return p.finish(ctx, r, o, call, nil)
	}
	if !matches {
		return nil, nil
	}
	if v.Pending() {
		return nil, v.Held()
	}
	if r.DryRun {
		if h := v.Hook(abi.CustomResourceValidate); h != nil && h.SideEffects == abi.SomeSideEffects {
			return field.ErrorList{{
				Type: field.ErrorTypeForbidden, Field: whole, BadValue: "",
				Detail: fmt.Sprintf("plugin %q does not support dry run: it declares sideEffects: Some", p.Name()),
			}}, nil
		}
		ctx = host.WithDryRun(ctx)
	}
	doc, err := pointadmission.Document(r)
	if err != nil {
		return nil, fmt.Errorf("read the object for plugin %q: %w", p.Name(), err)
	}
	call := p.plugin.Ask(ctx, abi.CustomResourceValidate, r.Kind.Kind, doc)
	if call == nil {
		return nil, nil
	}
	var answer *abi.AdmissionAnswer
	if call.Err == nil {
		if answer, err = abi.ParseAdmission(call.Answer, call.Hook.Hook); err != nil {
			call.Fail(err)
		}
	}
	return p.finish(ctx, r, o, call, answer)
}

// finish records a call, and has the mode decide what it means.
func (p *Plugin) finish(ctx context.Context, r *admission.Request, o *unstructured.Unstructured, call *point.Call,
	answer *abi.AdmissionAnswer,
) (field.ErrorList, error) {
	outcome := point.Outcome{Decision: "allow", Span: string(abi.CustomResourceValidate)}
	denied := call.Err == nil && answer.Denied()
	if denied {
		outcome.Decision, outcome.Message = "deny", pointadmission.Worded(answer)
	}
	if call.Err == nil && call.Mode() != manifest.Shadow {
		for _, w := range answer.Warnings {
			r.Warn(w)
		}
		for k, v := range answer.AuditAnnotations {
			r.Annotate(p.Name()+"/"+k, v)
		}
	}
	call.Record(ctx, abi.CustomResourceValidate, outcome)
	open := call.Err != nil && call.Policy(manifest.Fail) == manifest.Ignore
	switch mode := call.Mode(); {
	case mode == manifest.Enforce && open:
		r.Annotate(p.Name()+"/failed-open", call.Err.Error())
	case mode == manifest.Enforce && call.Err != nil:
		return nil, fmt.Errorf("a plugin failed at %s, and its failurePolicy is Fail: %w", abi.CustomResourceValidate, call.Err)
	case mode == manifest.Enforce && denied:
		return p.findings(answer, o), nil
	case mode == manifest.Warn && denied:
		r.Warn(fmt.Sprintf("plugin %q would refuse this: %s", p.Name(), outcome.Message))
	case mode == manifest.Audit && denied:
		r.Annotate(p.Name()+"/would-refuse", outcome.Message)
	}
	return nil, nil
}

// whole stands for the object where a finding names no field.
const whole = "object"

// findings are what the answer holds against the object.
func (p *Plugin) findings(a *abi.AdmissionAnswer, o *unstructured.Unstructured) field.ErrorList {
	causes := a.Causes
	if a.Message != "" || a.Field != "" || len(causes) == 0 {
		causes = append([]abi.Cause{{Field: a.Field, Message: a.Message}}, causes...)
	}
	var out field.ErrorList
	for _, c := range causes {
		e := &field.Error{
			Type: errorType(c.Reason), Field: cmp.Or(c.Field, whole), BadValue: field.OmitValueType{},
			Detail: fmt.Sprintf("%s (plugin %q)", cmp.Or(c.Message, "no reason was given"), p.Name()),
		}
		if value, ok := at(o.Object, c.Field); ok {
			e.BadValue = value
		}
		out = append(out, e)
	}
	return out
}

// errorType is the type of a finding by its name in the API. Invalid, where there
// is none of this name.
func errorType(reason string) field.ErrorType {
	known := []field.ErrorType{
		field.ErrorTypeRequired, field.ErrorTypeDuplicate, field.ErrorTypeNotSupported, field.ErrorTypeForbidden,
		field.ErrorTypeNotFound, field.ErrorTypeTooLong, field.ErrorTypeTooMany, field.ErrorTypeTypeInvalid,
	}
	if t := field.ErrorType(reason); slices.Contains(known, t) {
		return t
	}
	return field.ErrorTypeInvalid
}

// at is the value of a field such as spec.ports[0].name, to be shown beside what is
// wrong with it: a leaf, as nobody wants to read a tree in an error.
func at(tree map[string]any, path string) (any, bool) {
	var v any = tree
	for _, part := range strings.Split(path, ".") {
		name, rest, indexed := strings.Cut(part, "[")
		m, ok := v.(map[string]any)
		if !ok {
			return nil, false
		}
		if v, ok = m[name]; !ok {
			return nil, false
		}
		for indexed {
			var index string
			index, rest, ok = strings.Cut(rest, "]")
			i, err := strconv.Atoi(index)
			list, isList := v.([]any)
			if !ok || err != nil || !isList || i < 0 || i >= len(list) {
				return nil, false
			}
			v = list[i]
			rest, indexed = strings.CutPrefix(rest, "[")
		}
	}
	switch v.(type) {
	case string, bool, int64, float64:
		return v, true
	}
	return nil, false
}
