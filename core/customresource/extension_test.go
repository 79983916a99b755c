package customresource_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

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
}

func (p *plugin) Converter(gr schema.GroupResource) extension.Converter {
	if p.off.Load() || gr.Resource != "endpoints" {
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

func (p *plugin) Convert(_ context.Context, objects []*unstructured.Unstructured, to schema.GroupVersion) ([]*unstructured.Unstructured, error) {
	var out []*unstructured.Unstructured
	for _, o := range objects {
		o = o.DeepCopy()
		convertHost(o, to.String())
		if p.broken.Load() {
			o.SetName("other")
		}
		out = append(out, o)
	}
	return out, nil
}

func (p *plugin) Validate(_ context.Context, c extension.Change) (field.ErrorList, []string, error) {
	hostPort, _ := c.Object.Object["hostPort"].(string)
	switch {
	case c.User.GetName() != "jane" || c.Resource.Resource != "endpoints":
		return nil, nil, errors.New("asked with the wrong change")
	case strings.HasSuffix(hostPort, ":13"):
		return field.ErrorList{field.Invalid(field.NewPath("hostPort"), hostPort, "brings bad luck")}, nil, nil
	case strings.HasSuffix(hostPort, ":0"):
		return nil, nil, errors.New("out of fuel")
	}
	return nil, nil, nil
}

func TestAnExtensionConvertsAndValidates(t *testing.T) {
	p := &plugin{}
	h := startHook(t)
	c := start(t, clusterOptions{extension: p})
	c.define(endpoints(h))
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
	if _, err = v1.Create(t.Context(), endpoint(t, "v1", "b", "hostPort: x:0"), metav1.CreateOptions{}); err == nil || !strings.Contains(err.Error(), "out of fuel") {
		t.Errorf("a validator that cannot judge: %v", err)
	}
	p.broken.Store(true)
	_, err = v1.Create(t.Context(), endpoint(t, "v1", "c", "hostPort: x:2"), metav1.CreateOptions{})
	must(t, err)
	if _, err := v2.Get(t.Context(), "c", metav1.GetOptions{}); err == nil || !strings.Contains(err.Error(), "conversion plugin for stable.example.com/v1, Kind=Endpoint returned invalid object: must have the same name: c != other") {
		t.Errorf("%v", err)
	}
	// A plugin that goes away leaves what it converted; Renew has it converted again.
	p.broken.Store(false)
	if _, err := v2.Get(t.Context(), "c", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	p.off.Store(true) // the definition's own strategy takes over
	if _, err := v2.Get(t.Context(), "c", metav1.GetOptions{}); err != nil || h.calls.Load() != 0 {
		t.Errorf("what was converted is not remembered: %v", err)
	}
	must(t, c.serving.Renew(t.Context(), func(gr schema.GroupResource) bool { return gr.Resource == "endpoints" }))
	if got, err = v2.Get(t.Context(), "c", metav1.GetOptions{}); err != nil || at(got, "port") != "2" || h.calls.Load() == 0 {
		t.Errorf("%s %v", text(got), err)
	}
}
