// SPDX-License-Identifier: Apache-2.0

package eventrate

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/admissiontest"
	"github.com/wasmplane/wasmplane/core/admission/pluginconfig"
)

func TestEventsAreLimited(t *testing.T) {
	now := clocktesting.NewFakePassiveClock(time.Now())
	p, err := New([]pluginconfig.EventLimit{
		{Type: "Server", QPS: 10, Burst: 6}, {Type: "Namespace", QPS: 1, Burst: 4}, {Type: "User", QPS: 1, Burst: 3}, {Type: sourceAndObject, QPS: 1, Burst: 2},
	}, now)
	if err != nil {
		t.Fatal(err)
	}
	event := func(who, about string) *admission.Request {
		e := &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Name: "e", Namespace: "default"}, Source: corev1.EventSource{Component: "kubelet"},
			InvolvedObject: corev1.ObjectReference{Name: about},
		}
		return admissiontest.Creating("events", e, admissiontest.By(&user.DefaultInfo{Name: who}))
	}
	for i, c := range []struct{ who, about, reached string }{
		{"a", "x", ""},
		{"a", "x", ""},
		{"a", "x", "[limit reached on type SourceAndObject for key kubeletx]"},
		{"a", "y", "limit reached on type User for key a"},
		{"b", "z", "limit reached on type Namespace for key default"},
	} {
		err := p.Validate(t.Context(), event(c.who, c.about))
		if c.reached == "" && err != nil || c.reached != "" && (!apierrors.IsTooManyRequests(err) || !strings.Contains(err.Error(), strings.Trim(c.reached, "[]"))) {
			t.Errorf("event %d: %v, want %q", i, err, c.reached)
		}
	}
	now.SetTime(now.Now().Add(time.Minute))
	if err := p.Validate(t.Context(), event("a", "x")); err != nil {
		t.Errorf("a minute later: %v", err)
	}
	if p.Handles(admissiontest.Creating("pods", &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default"}})) ||
		!p.Handles(event("a", "x")) {
		t.Error("it handles something else than events")
	}
}
