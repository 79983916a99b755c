// SPDX-License-Identifier: Apache-2.0

package devicetaints

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/controllers/controllertest"
)

const driver = "gpu.example.com"

func pod(name, claim string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("pod-" + name)}}
	p.Spec.NodeName = "a"
	p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &claim}}
	return p
}

func claim(name, user, device string, tolerations ...resourcev1.DeviceToleration) *resourcev1.ResourceClaim {
	c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	given := resourcev1.DeviceRequestAllocationResult{Driver: driver, Pool: "a", Device: device, Tolerations: tolerations}
	c.Status.Allocation = &resourcev1.AllocationResult{
		Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{given}},
	}
	c.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: user, UID: types.UID("pod-" + user)}}
	return c
}

func broken(effect resourcev1.DeviceTaintEffect, ago time.Duration) resourcev1.DeviceTaint {
	return resourcev1.DeviceTaint{Key: "broken", Effect: effect, TimeAdded: new(metav1.NewTime(time.Now().Add(-ago)))}
}

func rule(name string, effect resourcev1.DeviceTaintEffect) *resourcev1.DeviceTaintRule {
	return &resourcev1.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: resourcev1.DeviceTaintRuleSpec{
		DeviceSelector: &resourcev1.DeviceTaintSelector{Driver: new(driver)}, Taint: broken(effect, time.Minute),
	}}
}

// TestWhenPodsHaveToGo goes through taints and what claims tolerate.
func TestWhenPodsHaveToGo(t *testing.T) {
	forever := resourcev1.DeviceToleration{Key: "broken", Operator: resourcev1.DeviceTolerationOpExists}
	hour := forever
	hour.TolerationSeconds = new(int64(3600))
	other := resourcev1.DeviceToleration{Key: "hot", Operator: resourcev1.DeviceTolerationOpExists}
	execute := broken(resourcev1.DeviceTaintEffectNoExecute, time.Minute)
	for what, c := range map[string]struct {
		taint       *resourcev1.DeviceTaint
		rules       []*resourcev1.DeviceTaintRule
		tolerations []resourcev1.DeviceToleration
		want        time.Duration // after the taint; -1 = it stays
	}{
		"no taint":                 {want: -1},
		"a taint":                  {taint: &execute, want: 0},
		"one that is no matter":    {taint: new(broken(resourcev1.DeviceTaintEffectNoSchedule, time.Minute)), want: -1},
		"tolerated":                {taint: &execute, tolerations: []resourcev1.DeviceToleration{forever}, want: -1},
		"tolerated for a while":    {taint: &execute, tolerations: []resourcev1.DeviceToleration{hour}, want: time.Hour},
		"another one is tolerated": {taint: &execute, tolerations: []resourcev1.DeviceToleration{other}, want: 0},
		"by a rule":                {rules: []*resourcev1.DeviceTaintRule{rule("r", resourcev1.DeviceTaintEffectNoExecute)}, want: 0},
		"a rule without effect":    {rules: []*resourcev1.DeviceTaintRule{rule("r", resourcev1.DeviceTaintEffectNone)}, want: -1},
	} {
		p, cl := pod("p", "c"), claim("c", "p", "0", c.tolerations...)
		got := planPod(p, func(string) *resourcev1.ResourceClaim { return cl }, func(pool, string) *resourcev1.Device {
			d := &resourcev1.Device{Name: "0"}
			if c.taint != nil {
				d.Taints = append(d.Taints, *c.taint)
			}
			return d
		}, c.rules)
		switch {
		case c.want < 0 && got != nil, c.want >= 0 && got == nil:
			t.Errorf("%s: %+v", what, got)
		case got != nil:
			if after := got.at.Sub(execute.TimeAdded.Time).Round(time.Minute); after != c.want {
				t.Errorf("%s: after %s, want %s", what, after, c.want)
			}
			if got.because("r") != (len(c.rules) > 0) {
				t.Errorf("%s: because of %q", what, got.rules)
			}
		}
	}
}

// TestPodsAreEvicted: with a condition, those that do not tolerate it alone, by a rule that
// comes and by a driver's taint; and the rule's status says so.
func TestPodsAreEvicted(t *testing.T) {
	forever := resourcev1.DeviceToleration{Operator: resourcev1.DeviceTolerationOpExists}
	slice := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: resourcev1.ResourceSliceSpec{
		Driver: driver, NodeName: new("a"), Pool: resourcev1.ResourcePool{Name: "a", Generation: 1, ResourceSliceCount: 1},
		Devices: []resourcev1.Device{{Name: "0"}, {Name: "1"}, {
			Name:   "2",
			Taints: []resourcev1.DeviceTaint{broken(resourcev1.DeviceTaintEffectNoExecute, 0)},
		}},
	}}
	c := controllertest.New(slice, pod("tolerates", "c0"), claim("c0", "tolerates", "0", forever), pod("goes", "c1"), claim("c1", "goes", "1"),
		pod("tainted", "c2"), claim("c2", "tainted", "2"), rule("idle", resourcev1.DeviceTaintEffectNone))
	ctl, err := New(c.Env(t), 2)
	if err != nil {
		t.Fatal(err)
	}
	c.Start(t, ctl)
	gone := func(name string) func() error {
		return func() error {
			if _, err := c.Client.CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return fmt.Errorf("pod %s: %s", name, fmt.Sprint(err))
			}
			return nil
		}
	}
	status := func(name, reason, message string) func() error {
		return func() error {
			r, err := c.Client.ResourceV1().DeviceTaintRules().Get(t.Context(), name, metav1.GetOptions{})
			if err != nil || len(r.Status.Conditions) != 1 || r.Status.Conditions[0].Reason != reason ||
				!strings.HasPrefix(r.Status.Conditions[0].Message, message) {
				return fmt.Errorf("rule %s: %+v (%s)", name, r.Status, fmt.Sprint(err))
			}
			return nil
		}
	}
	controllertest.Eventually(t, gone("tainted"))
	controllertest.Eventually(t, status("idle", "NoEffect", "3 published devices selected. "))
	if _, err := c.Client.CoreV1().Pods("default").Get(t.Context(), "goes", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Client.ResourceV1().DeviceTaintRules().Create(t.Context(), rule("now", resourcev1.DeviceTaintEffectNoExecute),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	controllertest.Eventually(t, gone("goes"))
	if _, err := c.Client.CoreV1().Pods("default").Get(t.Context(), "tolerates", metav1.GetOptions{}); err != nil {
		t.Errorf("the pod that tolerates the taint: %v", err)
	}
	controllertest.Eventually(t, func() error { // once the cache has seen that the pod is gone
		n := ctl.count(rule("now", resourcev1.DeviceTaintEffectNoExecute))
		if is := condition(rule("now", resourcev1.DeviceTaintEffectNoExecute), n); n.evicted != 1 || n.pods != 0 || is.Reason != "Completed" {
			return fmt.Errorf("counted %+v, %+v", n, is)
		}
		return nil
	})
}
