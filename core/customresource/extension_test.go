// SPDX-License-Identifier: Apache-2.0

package customresource_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/wasmplane/wasmplane/core/customresource/extension"
)

// plugin converts as the webhook of versions_test.go does, and refuses port 13.
type plugin struct {
	off    atomic.Bool
	broken atomic.Bool
	dry    atomic.Int32
}

func (p *plugin) Converter(name string, gr schema.GroupResource) extension.Converter {
	if p.off.Load() || name != "endpoints-converter" || gr.Resource != "endpoints" {
		return nil
	}
	return p
}

func (p *plugin) Validators(gr schema.GroupResource) []extension.Validator {
	if gr.Resource != "endpoints" {
		return nil
	}
	return []extension.Validator{p}
}

func (p *plugin) Convert(_ context.Context, objects []*unstructured.Unstructured,
	to schema.GroupVersion,
) ([]*unstructured.Unstructured, error) {
	var out []*unstructured.Unstructured
	for _, o := range objects {
		if o.GetName() == "" {
			return nil, errors.New("asked about an object that stands for nothing")
		}
		o = o.DeepCopy()
		convertHost(o, to.String())
		if p.broken.Load() {
			o.SetName("other")
		}
		out = append(out, o)
	}
	return out, nil
}

func (p *plugin) Validate(_ context.Context, c extension.Change) (extension.Judgement, error) {
	hostPort, _ := c.Object.Object["hostPort"].(string)
	if c.DryRun {
		p.dry.Add(1)
	}
	switch {
	case c.User.GetName() != "jane" || c.Resource.Resource != "endpoints":
		return extension.Judgement{}, errors.New("asked with the wrong change")
	case strings.HasSuffix(hostPort, ":13"):
		return extension.Judgement{Wrong: field.ErrorList{field.Invalid(field.NewPath("hostPort"), hostPort, "brings bad luck")}}, nil
	case strings.HasSuffix(hostPort, ":0"):
		return extension.Judgement{}, errors.New("out of fuel")
	}
	return extension.Judgement{}, nil
}

// namesConverter puts the annotation on a definition; "" takes it off.
func namesConverter(name string) func(*apiextensionsv1.CustomResourceDefinition) {
	return func(crd *apiextensionsv1.CustomResourceDefinition) {
		if name == "" {
			delete(crd.Annotations, extension.ConverterAnnotation)
			return
		}
		crd.Annotations = map[string]string{extension.ConverterAnnotation: name}
	}
}

func TestAnExtensionConvertsAndValidates(t *testing.T) {
	p := &plugin{}
	h := startHook(t)
	c := start(t, clusterOptions{extension: p})
	crd := c.define(strings.Replace(endpoints(h), "metadata: {",
		"metadata: {annotations: {"+extension.ConverterAnnotation+": endpoints-converter}, ", 1))
	v1, v2 := c.in("endpoints.v1.stable.example.com"), c.in("endpoints.v2.stable.example.com")
	_, err := v1.Create(t.Context(), endpoint(t, "v1", "a", "hostPort: x:1"), metav1.CreateOptions{})
	must(t, err)
	got, err := v2.Get(t.Context(), "a", metav1.GetOptions{})
	if err != nil || at(got, "host") != "x" || h.calls.Load() != 0 {
		t.Errorf("converted to %s %v, by the webhook %d times", text(got), err, h.calls.Load())
	}
	_, err = v1.Create(t.Context(), endpoint(t, "v1", "b", "hostPort: x:13"), metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), `hostPort: Invalid value: "x:13": brings bad luck`) {
		t.Errorf("%v", err)
	}
	if _, err = v1.Create(t.Context(), endpoint(t, "v1", "b", "hostPort: x:0"), metav1.CreateOptions{}); err == nil ||
		!strings.Contains(err.Error(), "out of fuel") {
		t.Errorf("a validator that cannot judge: %v", err)
	}
	_, err = v1.Create(t.Context(), endpoint(t, "v1", "b", "hostPort: x:4"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil || p.dry.Load() != 1 {
		t.Errorf("a dry run: %v, of which the validator was told %d times", err, p.dry.Load())
	}
	p.broken.Store(true)
	_, err = v1.Create(t.Context(), endpoint(t, "v1", "c", "hostPort: x:2"), metav1.CreateOptions{})
	must(t, err)
	if _, err := v2.Get(t.Context(), "c", metav1.GetOptions{}); err == nil || !strings.Contains(err.Error(), "conversion plugin for stable.example.com/v1, Kind=Endpoint returned invalid object: must have the same name: c != other") {
		t.Errorf("%v", err)
	}
	p.broken.Store(false)
	if _, err := v2.Get(t.Context(), "c", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}

	// One that goes away leaves what it converted, and nothing else is converted in another way.
	p.off.Store(true)
	if _, err := v2.Get(t.Context(), "c", metav1.GetOptions{}); err != nil {
		t.Errorf("what was converted is not remembered: %v", err)
	}
	must(t, c.serving.Renew(t.Context(), func(name string) bool { return name == "endpoints-converter" }))
	_, err = v2.Get(t.Context(), "c", metav1.GetOptions{})
	if err == nil || !strings.Contains(err.Error(), `conversion plugin for stable.example.com/v1, Kind=Endpoint failed: no plugin "endpoints-converter" is loaded, which the definition names in its annotation plugins.wasmplane.dev/converter`) {
		t.Errorf("without the converter: %v", err)
	}
	if _, err := v1.Get(t.Context(), "c", metav1.GetOptions{}); err != nil || h.calls.Load() != 0 {
		t.Errorf("in its stored version: %v; the webhook was asked %d times", err, h.calls.Load())
	}

	// Without the annotation the definition's own strategy is in force again.
	c.redefine(crd.Name, namesConverter(""))
	until(t, "the webhook converts", func() bool {
		got, err := v2.Get(t.Context(), "c", metav1.GetOptions{})
		return err == nil && at(got, "port") == "2" && h.calls.Load() > 0
	})
}
