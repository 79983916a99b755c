// SPDX-License-Identifier: Apache-2.0

package nodeadmission

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/point/pointtest"
)

func TestAdmit(t *testing.T) {
	const enforce = manifest.Enforce
	refusal := pointtest.Answers{"": `{"admitted":false,"reason":"NoGPU","message":"there is no GPU"}`}
	for name, tc := range map[string]struct {
		mode            manifest.Mode
		policy          manifest.FailurePolicy
		guest           pointtest.Answers
		admitted        bool
		reason, message string
		fails           bool
	}{
		"no answer admits":             {mode: enforce, guest: pointtest.Answers{"": ""}, admitted: true},
		"an empty answer admits":       {mode: enforce, guest: pointtest.Answers{"": "{}"}, admitted: true},
		"a refusal, in its words":      {mode: enforce, guest: refusal, reason: "NoGPU", message: "there is no GPU"},
		"a refusal without words":      {mode: enforce, guest: pointtest.Answers{"": `{"admitted":false}`}, reason: "PluginRefused", message: `plugin "p" refused the pod`},
		"a refusal that only warns":    {mode: manifest.Warn, guest: refusal, admitted: true},
		"a refusal in the shadow":      {mode: manifest.Shadow, guest: refusal, admitted: true},
		"a failure keeps the pod back": {mode: enforce, guest: nil, fails: true},
		"a failure that is ignored":    {mode: enforce, policy: manifest.Ignore, guest: nil, admitted: true},
		"a failure in the shadow":      {mode: manifest.Shadow, guest: nil, admitted: true},
		"an answer that is none":       {mode: enforce, guest: pointtest.Answers{"": "yes"}, fails: true},
		"that, ignored":                {mode: enforce, policy: manifest.Ignore, guest: pointtest.Answers{"": "yes"}, admitted: true},
	} {
		t.Run(name, func(t *testing.T) {
			e := manifest.Entry{Mode: tc.mode, FailurePolicy: tc.policy}
			a := New(pointtest.Plugin(t, e, abi.Hook{Op: 1, Point: abi.NodeAdmission}, tc.guest))
			admitted, reason, message, err := a.Admit(t.Context(), &corev1.Pod{}, &corev1.Node{})
			if admitted != tc.admitted || reason != tc.reason || message != tc.message || (err != nil) != tc.fails {
				t.Errorf("admitted %t, reason %q, message %q, error %v", admitted, reason, message, err)
			}
			if tc.fails && tc.guest == nil && !errors.Is(err, pointtest.ErrGuest) {
				t.Errorf("the error %v hides its cause", err)
			}
		})
	}
}

func TestThePodAndTheNodeAreSeen(t *testing.T) {
	h := abi.Hook{Op: 1, Point: abi.NodeAdmission, Fields: []string{"pod.spec.priority", "node.metadata.name"}}
	var w abi.Writer
	pod, node := &corev1.Pod{}, &corev1.Node{}
	priority := int32(7)
	pod.Spec.Priority, node.Name = &priority, "gpu-1"
	v1 := corev1.SchemeGroupVersion
	abi.NewProjection(&h).Write(&w, &document{
		Pod: abi.Object{Object: pod, GVK: v1.WithKind("Pod")}, Node: abi.Object{Object: node, GVK: v1.WithKind("Node")},
	}, "Pod")
	a := New(pointtest.Plugin(t, manifest.Entry{Mode: manifest.Enforce}, h,
		pointtest.Answers{string(w.Bytes()): `{"admitted":false}`, "": "{}"}))
	if admitted, _, _, err := a.Admit(t.Context(), pod, node); admitted || err != nil {
		t.Errorf("admitted %t, %v: it saw something else", admitted, err)
	}
	node.Name = "cpu-1"
	if admitted, _, _, err := a.Admit(t.Context(), pod, node); !admitted || err != nil {
		t.Errorf("admitted %t, %v", admitted, err)
	}
}

func TestAPluginWithoutTheHookHasNoAdapter(t *testing.T) {
	if a := New(pointtest.Plugin(t, manifest.Entry{}, abi.Hook{Op: 1, Point: abi.Authorization}, nil)); a != nil {
		t.Errorf("adapter %v", a)
	}
	e := manifest.Entry{Points: []string{string(abi.AdmissionValidate)}}
	if a := New(pointtest.Plugin(t, e, abi.Hook{Op: 1, Point: abi.NodeAdmission}, nil)); a != nil {
		t.Errorf("adapter %v of an entry that is for another point", a)
	}
}
