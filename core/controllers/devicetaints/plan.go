// SPDX-License-Identifier: Apache-2.0

package devicetaints

import (
	"fmt"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/wasmplane/wasmplane/core/devicetaint"
)

// pool is a driver's pool.
type pool struct{ driver, name string }

// offers finds a device in the newest generation of its pool; nil = it is in none.
type offers func(p pool, device string) *resourcev1.Device

// eviction is when a pod has to go, and because of which rules.
type eviction struct {
	at    time.Time
	rules []types.UID
}

// sooner joins two evictions; nil = none.
func sooner(a, b *eviction) *eviction {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	both := &eviction{a.at, slices.Clone(a.rules)}
	if b.at.Before(a.at) {
		both.at = b.at
	}
	for _, r := range b.rules {
		if !slices.Contains(both.rules, r) {
			both.rules = append(both.rules, r)
		}
	}
	return both
}

// planPod says when a pod has to go because of a device that it uses; nil = it may stay. claims
// finds the claims that it names.
func planPod(p *corev1.Pod, claims func(string) *resourcev1.ResourceClaim, find offers, rules []*resourcev1.DeviceTaintRule) *eviction {
	if p.Spec.NodeName == "" || p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return nil
	}
	var out *eviction
	look := func(name string, owned bool) {
		c := claims(name)
		if c == nil || c.Status.Allocation == nil || owned && resourceclaim.IsForPod(p, c, false) != nil ||
			!resourceclaim.IsReservedForPod(p, c, false) {
			return
		}
		for i := range c.Status.Allocation.Devices.Results {
			out = sooner(out, ofDevice(&c.Status.Allocation.Devices.Results[i], find, rules))
		}
	}
	for i := range p.Spec.ResourceClaims {
		if name, owned, err := resourceclaim.Name(p, &p.Spec.ResourceClaims[i]); err == nil && name != nil {
			look(*name, owned)
		}
	}
	if s := p.Status.ExtendedResourceClaimStatus; s != nil {
		look(s.ResourceClaimName, true)
	}
	return out
}

// ofDevice says when those who use a device have to go.
func ofDevice(r *resourcev1.DeviceRequestAllocationResult, find offers, rules []*resourcev1.DeviceTaintRule) *eviction {
	var out *eviction
	if d := find(pool{r.Driver, r.Pool}, r.Device); d != nil {
		for i := range d.Taints {
			out = sooner(out, ofTaint(&d.Taints[i], r.Tolerations))
		}
	}
	for _, rule := range rules {
		if !devicetaint.Selects(rule.Spec.DeviceSelector, r.Driver, r.Pool, r.Device) {
			continue
		}
		if e := ofTaint(&rule.Spec.Taint, r.Tolerations); e != nil {
			e.rules = []types.UID{rule.UID}
			out = sooner(out, e)
		}
	}
	return out
}

// ofTaint says when a taint that is not tolerated for ever takes effect.
func ofTaint(t *resourcev1.DeviceTaint, tolerations []resourcev1.DeviceToleration) *eviction {
	if t.Effect != resourcev1.DeviceTaintEffectNoExecute || t.TimeAdded == nil {
		return nil
	}
	least, tolerated := int64(math.MaxInt64), false
	for i := range tolerations {
		tol := &tolerations[i]
		if tol.Effect != "" && tol.Effect != resourcev1.DeviceTaintEffectNoExecute || !resourceclaim.ToleratesTaint(*tol, *t) {
			continue
		}
		if tol.TolerationSeconds == nil {
			return nil
		}
		least, tolerated = min(least, max(*tol.TolerationSeconds, 0)), true
	}
	at := t.TimeAdded.Time
	if tolerated {
		at = at.Add(time.Duration(least) * time.Second)
	}
	return &eviction{at: at}
}

// count is what a rule is about.
type count struct{ devices, allocated, pods, namespaces, evicted int }

// condition is what a rule's status says, in upstream's words.
func condition(rule *resourcev1.DeviceTaintRule, n count) metav1.Condition {
	c := metav1.Condition{
		Type: resourcev1.DeviceTaintConditionEvictionInProgress, Status: metav1.ConditionFalse, ObservedGeneration: rule.Generation,
	}
	switch effect := rule.Spec.Taint.Effect; {
	case effect == resourcev1.DeviceTaintEffectNone:
		c.Reason = "NoEffect"
		c.Message = fmt.Sprintf("%s selected. %s selected. %s would be evicted in %s if the effect was NoExecute. "+
			"This information will not be updated again. Recreate the DeviceTaintRule to trigger an update.",
			several(n.devices, "published device", "published devices"), several(n.allocated, "allocated device", "allocated devices"),
			several(n.pods, "pod", "pods"), several(n.namespaces, "namespace", "different namespaces"))
	case effect != resourcev1.DeviceTaintEffectNoExecute:
		c.Reason, c.Message = "OtherEffect", "Eviction only happens for the NoExecute effect."
	case n.pods > 0:
		c.Status, c.Reason = metav1.ConditionTrue, "PodsPendingEviction"
		c.Message = fmt.Sprintf("%s to be evicted in %s.", several(n.pods, "pod needs", "pods need"),
			several(n.namespaces, "namespace", "different namespaces"))
	case n.evicted > 0:
		c.Reason = "Completed"
	default:
		c.Reason = "NotStarted"
	}
	if n.evicted > 0 {
		if c.Message != "" {
			c.Message += " "
		}
		c.Message += several(n.evicted, "pod", "pods") + " evicted since starting the controller."
	}
	return c
}

func several(n int, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, more)
}
