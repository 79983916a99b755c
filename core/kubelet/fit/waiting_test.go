// SPDX-License-Identifier: Apache-2.0

package fit_test

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/fit"
)

// asked are pods of a node with two processors, of which one has most of it, that ask for more.
type asked struct {
	t *testing.T
	r *fit.Room
}

func newAsked(t *testing.T, names ...string) *asked {
	t.Helper()
	a := &asked{t, fit.NewRoom(nil, nil)}
	for _, name := range names {
		a.r.Keep(pod(name, "100m"))
	}
	return a
}

// asks says whether a pod gets what it asks for.
func (a *asked) asks(want bool, name, cpu string, change ...func(*corev1.Pod)) {
	a.t.Helper()
	n := node()
	n.Status.Allocatable[corev1.ResourcePods] = resource.MustParse("10")
	p := pod(name, cpu)
	for _, c := range change {
		c(p)
	}
	time.Sleep(time.Second)
	if v := a.r.Resize(p, n); v.Refused == want {
		a.t.Errorf("%s asks for %s: %+v", name, cpu, v)
	}
}

func important(p *corev1.Pod) { p.Spec.Priority = new(int32(1000)) }

func guaranteed(p *corev1.Pod) {
	r := &p.Spec.Containers[0].Resources
	r.Requests[corev1.ResourceMemory] = resource.MustParse("1Mi")
	r.Limits = r.Requests.DeepCopy()
}

// Room that comes free goes to those who wait by their priority, then their class, then the time that they have waited,
// whoever asks first.
func TestWhoWaitsGetsRoomInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAsked(t, "z", "guaranteed", "important", "a")
		a.r.Keep(pod("large", "1300m"))
		wants := func(want bool, name string) {
			t.Helper()
			switch name {
			case "important":
				a.asks(want, name, "1300m", important)
			case "guaranteed":
				a.asks(want, name, "1300m", guaranteed)
			default:
				a.asks(want, name, "1300m")
			}
		}
		order := []string{"important", "guaranteed", "z", "a"}
		for _, name := range []string{"z", "guaranteed", "important", "a"} {
			wants(false, name)
		}
		a.r.Release("large")
		for i, first := range order {
			for _, later := range order[i+1:] {
				wants(false, later)
			}
			wants(true, first)
			for _, later := range order[i+1:] {
				wants(false, later)
			}
			a.r.Release(pod(first, "").UID)
		}
	})
}

// What is left beside those who come first is given at once, and a pod that asks for less never waits.
func TestWhatOthersDoNotNeedIsGiven(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAsked(t, "a", "b", "c")
		a.r.Keep(pod("large", "1500m"))
		a.asks(false, "a", "1000m", important)
		a.asks(true, "c", "50m")
		a.r.Release("large")
		a.asks(false, "b", "1000m")
		a.asks(true, "b", "900m")
		a.asks(true, "a", "1000m", important)
	})
}

// Nothing is kept for a pod that asks no more, or goes.
func TestNothingIsKeptForWhoDoesNotWait(t *testing.T) {
	for name, change := range map[string]func(*fit.Room){
		"it takes back what it asked for": func(r *fit.Room) { r.Changed(pod("a", "100m")) },
		"it asks for more than there is":  func(r *fit.Room) { r.GiveUp("a") },
		"it has gone":                     func(r *fit.Room) { r.Release("a") },
		"it is being deleted": func(r *fit.Room) {
			p := pod("a", "1000m")
			p.DeletionTimestamp = new(metav1.Now())
			r.Changed(p)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newAsked(t, "a", "b")
				a.r.Keep(pod("large", "1500m"))
				a.asks(false, "a", "1000m", important)
				a.r.Release("large")
				a.asks(false, "b", "1500m")
				change(a.r)
				a.asks(true, "b", "1500m")
			})
		})
	}
}

// How long a pod has waited is in its status, also after the node's process has begun again.
func TestWaitingOutlivesTheProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAsked(t, "a", "b")
		since := metav1.Now()
		a.r.Keep(pod("large", "1500m"))
		a.asks(false, "b", "1500m")
		a.asks(false, "a", "1500m", func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodResizePending, Reason: corev1.PodReasonDeferred, LastTransitionTime: since}}
		})
		a.r.Release("large")
		a.asks(false, "b", "1500m")
		a.asks(true, "a", "1500m")
	})
}
