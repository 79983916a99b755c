// SPDX-License-Identifier: Apache-2.0

package deviceplugin_test

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// reports waits until a container's devices are reported to be so.
func (w *world) reports(p *corev1.Pod, name string, want ...corev1.ResourceHealth) {
	w.t.Helper()
	var got []corev1.ResourceStatus
	w.until(name+" has other devices than expected", func() bool {
		got = w.m.Health(p, name)
		if len(want) == 0 {
			return len(got) == 0
		}
		return len(got) == 1 && got[0].Name == res && slices.Equal(got[0].Resources, want)
	})
}

// affected waits until a pod is named whose devices have changed.
func (w *world) affected(want ...types.UID) {
	w.t.Helper()
	select {
	case <-w.m.HealthChanged():
	case <-time.After(patience):
		w.t.Fatalf("nobody said that devices of %v have changed", want)
	}
	got := w.m.Affected()
	slices.Sort(got)
	if !slices.Equal(got, want) {
		w.t.Errorf("the devices of %v have changed, expected those of %v", got, want)
	}
}

// TestTheHealthOfDevices is what their plugin says, for the pods that have them, and unknown while nobody says it.
func TestTheHealthOfDevices(t *testing.T) {
	is := func(id string, h corev1.ResourceHealthStatus) corev1.ResourceHealth {
		return corev1.ResourceHealth{ResourceID: corev1.ResourceID(id), Health: h}
	}
	const healthy, unhealthy = corev1.ResourceHealthStatusHealthy, corev1.ResourceHealthStatusUnhealthy
	const unknown = corev1.ResourceHealthStatusUnknown
	w := newWorld(t)
	f := newFake()
	stop := w.serve(f, "x.sock", res)
	f.lists <- devices(api.Healthy, "a", "b", "c", "d")
	w.have(res, 4, 4)
	one, two := aPod("one", container("main", 2, res), container("other", 0, res)), aPod("two", container("main", 1, res))
	w.given(one)
	w.given(two)
	w.reports(one, "main", is("a", healthy), is("b", healthy))
	w.reports(one, "other")

	f.lists <- append(devices(api.Healthy, "a", "c"), devices(api.Unhealthy, "b", "d")...) // d is nobody's
	w.affected("one")
	w.reports(one, "main", is("a", healthy), is("b", unhealthy))

	f.lists <- devices(api.Healthy, "b", "c")
	w.affected("one")
	w.reports(one, "main", is("a", unknown), is("b", healthy))

	stop()
	w.affected("one", "two")
	w.reports(two, "main", is("c", unknown))

	w.stop()
	w.start()
	w.reports(two, "main", is("c", unknown))
	f = newFake()
	w.serve(f, "x.sock", res)
	f.lists <- devices(api.Healthy, "a", "b", "c")
	w.affected("one", "two")
	w.reports(one, "main", is("a", healthy), is("b", healthy))
	w.m.Release("one")
	w.reports(one, "main")
}
