// SPDX-License-Identifier: Apache-2.0

package scheduler_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/scheduler"
	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/core/scheduler/queue"
	"github.com/wasmplane/wasmplane/core/scheduler/report"
)

// deletions is an API whose deletions of pods are answered by the test.
type deletions struct {
	report.Effects
	// asked has the names of pods to be deleted; each waits for its answer.
	asked   chan string
	answers chan error
}

func (d deletions) Delete(ctx context.Context, p *corev1.Pod) error {
	d.asked <- p.Name
	select {
	case err := <-d.answers:
		if err != nil {
			return err
		}
		return d.Effects.Delete(ctx, p)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// soon is a queue in which pods hardly back off: those that are woken are tried.
var soon = queue.Config{Backoff: queue.Backoff{InitialBackoff: time.Millisecond, MaxBackoff: time.Millisecond}}

// tries counts how often the pods of one name are tried.
type tries struct {
	pod   string
	count *atomic.Int32
}

func (tries) Name() string                  { return "tries" }
func (tries) Hints() framework.ClusterEvent { return framework.NodeAdded }

func (c tries) PreEnqueue(_ context.Context, p *framework.PodInfo) *framework.Status {
	if p.Pod.Name == c.pod {
		c.count.Add(1)
	}
	return nil
}

// While the API takes its time to delete a victim, the pod that it is for is promised the node and is not tried
// again, whatever happens; others get theirs.
func TestPreemptionDoesNotHoldUpOtherPods(t *testing.T) {
	d := deletions{asked: make(chan string, 16), answers: make(chan error)}
	count := &atomic.Int32{}
	c := startWith(t, soon, func(api report.Effects) report.Effects { d.Effects = api; return d },
		scheduler.Weighted{Plugin: tries{"vip", count}})
	c.node("a", "2")
	c.create(important("low", "2", 1, "a", nil))
	c.settled("low")
	c.create(important("vip", "2", 100, "", nil))
	if got := <-d.asked; got != "low" {
		t.Fatalf("%s is to be deleted", got)
	}
	if p := c.await("vip", func(p *corev1.Pod) bool { return p.Status.NominatedNodeName != "" }); p.Status.NominatedNodeName != "a" {
		t.Errorf("vip is promised %s", p.Status.NominatedNodeName)
	}
	c.node("b", "3") // where vip has room
	c.create(pod("other", "1"))
	c.await("other", bound)
	c.create(pod("another", "5")) // a try later: whoever was woken has been tried
	c.await("another", refused)
	if n := count.Load(); n != 1 {
		t.Errorf("vip was tried %d times while its victim was being deleted", n)
	}
	d.answers <- nil
	c.await("vip", bound)
}

// A victim that cannot be deleted is no promise: the pod says why, and is tried again.
func TestAVictimThatCannotBeDeleted(t *testing.T) {
	var busy atomic.Bool
	busy.Store(true)
	c := startWith(t, queue.Config{}, func(api report.Effects) report.Effects {
		return leaving{api, func(ctx context.Context, p *corev1.Pod) error {
			if busy.Load() {
				return errors.New("the store is busy")
			}
			return api.Delete(ctx, p)
		}}
	})
	c.node("a", "2")
	c.create(important("low", "2", 1, "a", nil))
	c.settled("low")
	c.create(important("vip", "2", 100, "", nil))
	c.await("vip", func(p *corev1.Pod) bool { return strings.Contains(message(p), "the store is busy") })
	busy.Store(false)
	c.await("vip", bound)
}

// A pod that goes slowly is awaited like one that has gone: the pod that it is for is not in its way when
// another node comes.
func TestTheFirstRoomIsTaken(t *testing.T) {
	d := deletions{asked: make(chan string, 16), answers: make(chan error, 1)}
	var c *cluster
	slow := func(api report.Effects) report.Effects {
		d.Effects = leaving{api, func(_ context.Context, p *corev1.Pod) error {
			going := p.DeepCopy()
			now := metav1.NewTime(time.Now())
			going.DeletionTimestamp, going.Finalizers = &now, []string{"example.com/slow"}
			return c.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), going, going.Namespace)
		}}
		return d
	}
	c = startWith(t, soon, slow)
	c.node("a", "2")
	c.create(important("low", "2", 1, "a", nil))
	c.settled("low")
	c.create(important("vip", "2", 100, "", nil))
	<-d.asked
	d.answers <- nil
	c.await("low", func(p *corev1.Pod) bool { return p.DeletionTimestamp != nil })
	c.node("b", "2")
	if p := c.await("vip", bound); p.Spec.NodeName != "b" {
		t.Errorf("vip is on %s", p.Spec.NodeName)
	}
}

// leaving is an API where deleted pods take their time.
type leaving struct {
	report.Effects
	remove func(context.Context, *corev1.Pod) error
}

func (l leaving) Delete(ctx context.Context, p *corev1.Pod) error { return l.remove(ctx, p) }
