// SPDX-License-Identifier: Apache-2.0

package scheduler_test

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/wasmplane/wasmplane/core/scheduler"
	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/core/scheduler/report"
)

// belated is a Permit plugin that has pods with a label wait until it is told what to say.
type belated struct{ answer chan *framework.Status }

func (belated) Name() string                  { return "belated" }
func (belated) Hints() framework.ClusterEvent { return framework.NodeAdded }

func (l belated) Permit(_ context.Context, _ *framework.State, p *framework.PodInfo, _ string) (*framework.Status, time.Duration) {
	if p.Pod.Labels["wait"] == "" {
		return nil, 0
	}
	select {
	case st := <-l.answer:
		return st, 0
	default:
		return framework.NewStatus(framework.Wait), time.Millisecond
	}
}

func nominatedTo(node string) func(*corev1.Pod) bool {
	return func(p *corev1.Pod) bool { return p.Status.NominatedNodeName == node && p.Spec.NodeName == "" }
}

// A pod that has its node and waits says so; it does not any more when it may not be bound there.
func TestAPodThatWaitsSaysWhichNodeItGets(t *testing.T) {
	l := belated{make(chan *framework.Status)}
	c := start(t, scheduler.Weighted{Plugin: l})
	c.node("n", "2")
	c.create(important("waits", "1", 0, "", map[string]string{"wait": "yes"}))
	c.await("waits", nominatedTo("n"))
	l.answer <- framework.NewStatus(framework.Unschedulable, "not today")
	c.await("waits", func(p *corev1.Pod) bool { return refused(p) && nominatedTo("")(p) })
	c.create(pod("plain", "1"))
	if p := c.await("plain", bound); p.Status.NominatedNodeName != "" {
		t.Errorf("a pod that waits for nobody was nominated to %q", p.Status.NominatedNodeName)
	}
}

// What PreBind plugins have to do counts too, where it takes a while.
func TestAPodWhoseVolumesComeSaysWhichNodeItGets(t *testing.T) {
	s := slow{"waits", make(chan struct{})}
	c := start(t, scheduler.Weighted{Plugin: s})
	c.node("n", "2")
	c.create(pod("waits", "1"))
	c.await("waits", nominatedTo("n"))
	<-s.entered
}

// Another component may nominate a pod at any time, and take that back.
func TestWhatOthersNominateHolds(t *testing.T) {
	c := startWith(t, soon, func(api report.Effects) report.Effects { return api })
	c.node("n", "2")
	vip := important("vip", "2", 10, "", nil)
	vip.Spec.NodeSelector = map[string]string{"there": "soon"}
	c.create(vip)
	c.await("vip", refused)
	nominate := func(patch string) {
		t.Helper()
		pods := c.client.CoreV1().Pods("default")
		if _, err := pods.Patch(t.Context(), "vip", types.MergePatchType, []byte(patch), metav1.PatchOptions{}, "status"); err != nil {
			t.Fatal(err)
		}
	}
	nominate(`{"status":{"nominatedNodeName":"n"}}`)
	c.await("vip", nominatedTo("n"))
	known := func(context.Context) (bool, error) { return c.s.Promised(vip.UID) == "n", nil }
	if err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, time.Minute, true, known); err != nil {
		t.Fatal(err)
	}
	c.create(important("low", "1", 1, "", nil))
	c.await("low", refused)
	nominate(`{"status":{"nominatedNodeName":null}}`)
	c.await("low", bound)
}
