// SPDX-License-Identifier: Apache-2.0

package customresource

import (
	"context"
	"errors"
	"fmt"

	"go.opentelemetry.io/otel/codes"
	oteltrace "go.opentelemetry.io/otel/trace"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/point"
	pointadmission "github.com/wasmplane/wasmplane/plugins/point/admission"
)

// conversion is the document of the hook.
type conversion struct {
	Kind              groupKind   `json:"kind"`
	Name              string      `json:"name,omitempty"`
	Namespace         string      `json:"namespace,omitempty"`
	Object            *abi.Object `json:"object"`
	DesiredAPIVersion string      `json:"desiredAPIVersion"`
}

type groupKind struct {
	Group   string `json:"group"`
	Version string `json:"version"`
	Kind    string `json:"kind"`
}

// About names the object, for people.
func (c *conversion) About() string {
	return fmt.Sprintf("%s %s/%s to %s", c.Kind.Kind, c.Namespace, c.Name, c.DesiredAPIVersion)
}

// Convert implements extension.Converter.
func (p *Plugin) Convert(ctx context.Context, objects []*unstructured.Unstructured,
	to schema.GroupVersion,
) (out []*unstructured.Unstructured, err error) {
	// One span for all: a list may have thousands of objects.
	if parent := oteltrace.SpanFromContext(ctx); parent.IsRecording() {
		var span oteltrace.Span
		ctx, span = parent.TracerProvider().Tracer("plugins").Start(ctx, string(abi.CustomResourceConvert))
		defer func() {
			if err != nil {
				span.SetStatus(codes.Error, err.Error())
			}
			span.End()
		}()
	}
	out = make([]*unstructured.Unstructured, len(objects))
	for i, o := range objects {
		if out[i], err = p.convert(ctx, o, to); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// convert asks about one object.
func (p *Plugin) convert(ctx context.Context, o *unstructured.Unstructured, to schema.GroupVersion) (*unstructured.Unstructured, error) {
	gvk := o.GroupVersionKind()
	c := p.plugin.Ask(ctx, abi.CustomResourceConvert, gvk.Kind, &conversion{
		Kind: groupKind{gvk.Group, gvk.Version, gvk.Kind}, Name: o.GetName(), Namespace: o.GetNamespace(),
		Object: &abi.Object{Object: o, GVK: gvk}, DesiredAPIVersion: to.String(),
	})
	if c == nil {
		return nil, fmt.Errorf("plugin %q: %w", p.Name(), errNoHook)
	}
	var converted *unstructured.Unstructured
	outcome := point.Outcome{Decision: "convert"}
	if c.Err == nil {
		answer, err := abi.ParseAdmission(c.Answer, c.Hook.Hook)
		switch {
		case err != nil:
			c.Fail(err)
		case answer.Denied():
			outcome.Decision, outcome.Message = "deny", pointadmission.Worded(answer)
		default:
			if converted, err = Converted(c.Hook.Hook, answer, o, to); err != nil {
				c.Fail(err)
			}
		}
	}
	c.Record(ctx, abi.CustomResourceConvert, outcome)
	switch {
	case c.Err != nil:
		return nil, c.Err // it names the plugin
	case converted == nil:
		return nil, fmt.Errorf("plugin %q refused to convert %s: %s", p.Name(), identity(o), outcome.Message)
	}
	return converted, nil
}

// Converted is what an answer makes of an object: a patch is applied to a copy that
// has the other version already, a whole object takes its place.
func Converted(h *abi.Hook, answer *abi.AdmissionAnswer, o *unstructured.Unstructured,
	to schema.GroupVersion,
) (*unstructured.Unstructured, error) {
	if len(answer.Object) > 0 {
		var tree map[string]any
		if err := utiljson.Unmarshal(answer.Object, &tree); err != nil || tree == nil {
			return nil, errors.Join(errors.New("it answered with something that is no object"), err)
		}
		return &unstructured.Unstructured{Object: tree}, nil
	}
	kind := o.GetKind()
	next := o.DeepCopy()
	next.SetAPIVersion(to.String())
	tree, err := h.Patch(next.Object, kind, answer.Patch)
	if err != nil {
		return nil, err
	}
	return &unstructured.Unstructured{Object: tree}, nil
}

// identity names an object, for people.
func identity(o *unstructured.Unstructured) string {
	if o.GetNamespace() == "" {
		return o.GetKind() + " " + o.GetName()
	}
	return o.GetKind() + " " + o.GetNamespace() + "/" + o.GetName()
}
