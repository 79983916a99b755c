// SPDX-License-Identifier: Apache-2.0

package podlifecycle_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/pod"
)

// restartsAll has the container of a name restart its whole pod when it ends with 42.
func restartsAll(p *corev1.Pod, name string) *corev1.Pod {
	c, kind := pod.Find(p, name)
	never := corev1.ContainerRestartPolicyNever
	if kind != pod.Sidecar {
		c.RestartPolicy = &never
	}
	c.RestartPolicyRules = []corev1.ContainerRestartRule{{
		Action:    corev1.ContainerRestartRuleActionRestartAllContainers,
		ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: corev1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{42}},
	}}
	return p
}

// begun is a pod whose containers all run, or have.
func begun(t *testing.T, p *corev1.Pod) *world {
	t.Helper()
	w := newWorld(p)
	w.settle()
	w.die("init1", 0)
	w.settle()
	w.expect(t, "sandbox", "start init1", "start side", "start main1", "start main2")
	return w
}

func (w *world) counts() map[string]int32 {
	out := map[string]int32{}
	for _, c := range w.m.View().Containers {
		if c.Current != nil {
			out[c.Spec.Name] = c.Current.RestartCount
		}
	}
	return out
}

func TestAnExitRestartsAllContainers(t *testing.T) {
	for _, c := range []struct {
		source string
		early  bool
	}{{"main1", false}, {"side", false}, {"main1", true}, {"side", true}} {
		source := c.source
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			w := begun(t, restartsAll(aPod(corev1.RestartPolicyNever, "init1", "side", "main1", "main2"), source))
			w.early = c.early
			w.die(source, 42)
			if !w.m.View().RestartingAll {
				t.Error("the pod is not said to restart all")
			}
			w.settle()
			other := map[string]string{"main1": "side", "side": "main1"}[source]
			w.expect(t, "kill main2", "kill "+other, "start init1")
			if w.m.View().RestartingAll {
				t.Error("the pod is still said to restart all")
			}
			for _, c := range w.m.View().Containers {
				if c.Spec.Name != "init1" && (c.Current == nil || c.Current.Reason != pod.RestartingAllContainers || !c.Restarting) {
					t.Errorf("%s: %+v", c.Spec.Name, c.Current)
				}
			}
			w.die("init1", 0)
			w.settle()
			w.expect(t, "start side", "start main1", "start main2")
			for name, n := range w.counts() {
				if n != 1 {
					t.Errorf("%s was restarted %d times", name, n)
				}
			}
			if len(w.boxes) != 1 {
				t.Errorf("sandboxes %v, want the one that was there", w.boxes)
			}
			for _, c := range w.m.View().Containers {
				if c.Last == nil || c.Last.Reason != pod.RestartingAllContainers {
					t.Errorf("%s: before there was %+v", c.Spec.Name, c.Last)
				}
			}
			// Another code is nothing special.
			w.die("main2", 1)
			w.settle()
			w.expect(t)
		})
	}
}

func TestAnInitContainerRestartsAllContainers(t *testing.T) {
	p := restartsAll(aPod(corev1.RestartPolicyNever, "side", "init1", "init2", "main1"), "init2")
	w := newWorld(p)
	w.settle()
	w.die("init1", 0)
	w.settle()
	w.expect(t, "sandbox", "start side", "start init1", "start init2")
	w.die("init2", 42)
	w.settle()
	w.expect(t, "kill side", "start side", "start init1")
	w.die("init1", 0)
	w.settle()
	w.die("init2", 0)
	w.settle()
	w.expect(t, "start init2", "start main1")
}

// Who restarts all again and again waits for its back-off, and does not end the pod.
func TestRestartingAllBacksOff(t *testing.T) {
	w := newWorld(restartsAll(aPod(corev1.RestartPolicyNever, "main1", "main2"), "main1"))
	w.settle()
	w.expect(t, "sandbox", "start main1", "start main2")
	w.die("main1", 42)
	w.settle()
	w.expect(t, "kill main2", "start main1", "start main2")
	w.die("main1", 42)
	w.settle()
	w.expect(t, "kill main2", "note BackOff", "start main2")
	w.pass(w.m.Wake().Sub(w.now))
	w.expect(t, "start main1")
}

// A kubelet that begins in the middle goes on, whatever was done before.
func TestRestartingAllGoesOnAfterARestartOfTheKubelet(t *testing.T) {
	for steps := range 12 {
		w := begun(t, restartsAll(aPod(corev1.RestartPolicyNever, "init1", "side", "main1", "main2"), "main1"))
		w.p.Status = statusOf(w)
		w.die("main1", 42)
		for range steps {
			if len(w.flight) > 0 {
				w.do(0)
			}
		}
		w.start()
		w.settle()
		w.die("init1", 0)
		w.settle()
		if got := w.running(); len(got) != 3 {
			t.Errorf("after %d steps and a restart %v run: %v", steps, got, w.story)
		}
		for _, b := range w.broken {
			t.Error(b)
		}
	}
}

// statusOf is as much of a status as a machine takes over; it is older than what the runtime holds.
func statusOf(w *world) corev1.PodStatus {
	st := corev1.PodStatus{}
	for _, c := range w.m.View().Containers {
		s := corev1.ContainerStatus{Name: c.Spec.Name, RestartCount: c.Current.RestartCount, ContainerID: "x://" + c.Current.ID}
		if c.Current.State == pod.Running {
			s.State.Running = &corev1.ContainerStateRunning{}
		} else {
			s.State.Terminated = &corev1.ContainerStateTerminated{ExitCode: c.Current.ExitCode}
		}
		if c.Kind == pod.Regular {
			st.ContainerStatuses = append(st.ContainerStatuses, s)
		} else {
			st.InitContainerStatuses = append(st.InitContainerStatuses, s)
		}
	}
	st.Conditions = []corev1.PodCondition{{Type: corev1.AllContainersRestarting, Status: corev1.ConditionTrue}}
	return st
}
