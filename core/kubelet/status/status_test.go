// SPDX-License-Identifier: Apache-2.0

package status_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/pod"
	"github.com/wasmplane/wasmplane/core/kubelet/status"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)

// view of a pod whose containers are given as "name:state", the state one of
// none, wait, run, ready, ok, fail, again (failed, and to be restarted), revived (ended well, and to be restarted).
func view(policy corev1.RestartPolicy, stage pod.Stage, containers ...string) pod.View {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u", Generation: 4}}
	p.Spec.RestartPolicy = policy
	v := pod.View{
		Pod: p, Stage: stage, Started: now.Add(-time.Minute),
		Sandbox: &pod.Sandbox{ID: "sb", Ready: stage < pod.Ended, IPs: []string{"10.0.0.1"}},
	}
	always := corev1.ContainerRestartPolicyAlways
	for _, s := range containers {
		name, state, _ := strings.Cut(s, ":")
		c := pod.ContainerView{Spec: &corev1.Container{Name: name, Image: "img"}, Kind: pod.Regular}
		switch {
		case strings.HasPrefix(name, "init"):
			c.Kind = pod.Init
			p.Spec.InitContainers = append(p.Spec.InitContainers, *c.Spec)
		case strings.HasPrefix(name, "side"):
			c.Kind = pod.Sidecar
			c.Spec.RestartPolicy = &always
			p.Spec.InitContainers = append(p.Spec.InitContainers, *c.Spec)
		default:
			p.Spec.Containers = append(p.Spec.Containers, *c.Spec)
		}
		cur := &pod.Container{
			ID: "id-" + name, Name: name, Sandbox: "sb", ImageID: "sha256:1", Started: now.Add(-30 * time.Second),
			Finished: now,
		}
		switch state {
		case "none":
			cur = nil
		case "wait":
			cur, c.Waiting = nil, pod.Waiting{Reason: "ErrImagePull", Message: "no"}
		case "run":
			cur.State, c.Started = pod.Running, true
		case "ready":
			cur.State, c.Started, c.Ready = pod.Running, true, true
		case "ok":
			cur.State, c.Ready = pod.Exited, c.Kind == pod.Init
		case "fail":
			cur.State, cur.ExitCode = pod.Exited, 1
		case "again":
			cur.State, cur.ExitCode, c.Restarting = pod.Exited, 1, true
			c.Waiting = pod.Waiting{Reason: "CrashLoopBackOff", Message: "back-off"}
		case "revived":
			cur.State, c.Restarting = pod.Exited, true
		}
		c.Current = cur
		v.Containers = append(v.Containers, c)
	}
	return v
}

func TestPhases(t *testing.T) {
	const always, onFailure, never = corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever
	for _, c := range []struct {
		policy     corev1.RestartPolicy
		stage      pod.Stage
		containers string
		want       corev1.PodPhase
	}{
		{always, pod.Syncing, "a:none", corev1.PodPending},
		{always, pod.Syncing, "a:wait b:ready", corev1.PodPending},
		{always, pod.Syncing, "a:run b:ready", corev1.PodRunning},
		{always, pod.Syncing, "a:again", corev1.PodRunning},
		{always, pod.Syncing, "a:ok", corev1.PodRunning},
		{onFailure, pod.Syncing, "a:revived", corev1.PodRunning},
		{never, pod.Syncing, "a:revived b:fail", corev1.PodRunning},
		{onFailure, pod.Syncing, "a:ok b:ready", corev1.PodRunning},
		{onFailure, pod.Ended, "a:ok b:ok", corev1.PodSucceeded},
		{never, pod.Ended, "a:ok b:fail", corev1.PodFailed},
		{always, pod.Ended, "a:ok", corev1.PodSucceeded},    // deleted
		{always, pod.Ended, "a:fail", corev1.PodFailed},     // deleted
		{always, pod.Ended, "a:none", corev1.PodFailed},     // never ran
		{never, pod.Terminating, "a:ok", corev1.PodPending}, // told once nothing runs
		{always, pod.Syncing, "init:run a:none", corev1.PodPending},
		{always, pod.Syncing, "init:again a:none", corev1.PodPending},
		{always, pod.Syncing, "init:ok a:ready", corev1.PodRunning},
		{never, pod.Ended, "init:fail a:none", corev1.PodFailed},
		{always, pod.Syncing, "side:run a:none", corev1.PodPending},
		{always, pod.Syncing, "side:again a:ready", corev1.PodRunning},
		{never, pod.Ended, "side:fail a:ok", corev1.PodSucceeded},
	} {
		v := view(c.policy, c.stage, strings.Fields(c.containers)...)
		if got := status.Generate(v, &corev1.PodStatus{}, status.Node{}, now); got.Phase != c.want {
			t.Errorf("%s %s %s: %s, want %s", c.policy, c.stage, c.containers, got.Phase, c.want)
		}
	}
}

func conditions(st *corev1.PodStatus) string {
	var out []string
	for _, c := range st.Conditions {
		s := string(c.Type) + "=" + string(c.Status)
		if c.Reason != "" {
			s += "(" + c.Reason + ")"
		}
		out = append(out, s)
	}
	return strings.Join(out, " ")
}

func TestConditions(t *testing.T) {
	for _, c := range []struct {
		containers string
		change     func(*pod.View)
		want       string
	}{
		{"a:ready", nil, "PodReadyToStartContainers=True Initialized=True Ready=True ContainersReady=True PodScheduled=True"},
		{"a:run b:ready", nil, "PodReadyToStartContainers=True Initialized=True Ready=False(ContainersNotReady) ContainersReady=False(ContainersNotReady) PodScheduled=True"},
		{"init:run a:none", nil, "PodReadyToStartContainers=True Initialized=False(ContainersNotInitialized) Ready=False(ContainersNotReady) ContainersReady=False(ContainersNotReady) PodScheduled=True"},
		{"a:none", func(v *pod.View) { v.Sandbox = nil }, "PodReadyToStartContainers=False Initialized=True Ready=False(ContainersNotReady) ContainersReady=False(ContainersNotReady) PodScheduled=True"},
		{"a:ok", func(v *pod.View) { v.Stage = pod.Ended }, "PodReadyToStartContainers=False Initialized=True(PodCompleted) Ready=False(PodCompleted) ContainersReady=False(PodCompleted) PodScheduled=True"},
		{"a:ready", func(v *pod.View) {
			v.Pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "mine/gate"}}
		}, "PodReadyToStartContainers=True Initialized=True Ready=False(ReadinessGatesNotReady) ContainersReady=True PodScheduled=True"},
		{"a:ready", func(v *pod.View) {
			v.Pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "mine/gate"}}
			v.Pod.Status.Conditions = []corev1.PodCondition{{Type: "mine/gate", Status: corev1.ConditionTrue}}
		}, "mine/gate=True PodReadyToStartContainers=True Initialized=True Ready=True ContainersReady=True PodScheduled=True"},
	} {
		v := view(corev1.RestartPolicyAlways, pod.Syncing, strings.Fields(c.containers)...)
		if c.change != nil {
			c.change(&v)
		}
		st := status.Generate(v, &corev1.PodStatus{}, status.Node{}, now)
		if got := conditions(&st); got != c.want {
			t.Errorf("%s:\n%s, want\n%s", c.containers, got, c.want)
		}
	}
}

func TestTransitionTimesStay(t *testing.T) {
	v := view(corev1.RestartPolicyAlways, pod.Syncing, "a:run")
	first := status.Generate(v, &corev1.PodStatus{}, status.Node{}, now)
	v.Containers[0].Ready = true
	later := now.Add(time.Hour)
	second := status.Generate(v, &first, status.Node{}, later)
	for i, c := range second.Conditions {
		moved := c.LastTransitionTime.Time.Equal(later.Truncate(time.Second))
		if changed := c.Status != first.Conditions[i].Status; moved != changed {
			t.Errorf("%s changed: %v, its time: %v", c.Type, changed, moved)
		}
		if c.ObservedGeneration != 4 {
			t.Errorf("%s is of generation %d", c.Type, c.ObservedGeneration)
		}
	}
}

func TestContainerStatuses(t *testing.T) {
	v := view(corev1.RestartPolicyAlways, pod.Syncing, "z:ready", "a:again", "w:wait")
	st := status.Generate(v, &corev1.PodStatus{}, status.Node{HostIPs: []string{"192.0.2.1", "fd00::1"}, Runtime: "containerd"}, now)
	if st.PodIP != "10.0.0.1" || st.HostIP != "192.0.2.1" || len(st.HostIPs) != 2 || st.ObservedGeneration != 4 {
		t.Errorf("%+v", st)
	}
	a, w, z := st.ContainerStatuses[0], st.ContainerStatuses[1], st.ContainerStatuses[2]
	if z.ContainerID != "containerd://id-z" || z.State.Running == nil || !*z.Started || !z.Ready || z.ImageID != "sha256:1" {
		t.Errorf("z: %+v", z)
	}
	if a.State.Waiting == nil || a.State.Waiting.Reason != "CrashLoopBackOff" || a.LastTerminationState.Terminated == nil || a.LastTerminationState.Terminated.Reason != "Error" {
		t.Errorf("a: %+v", a)
	}
	if w.State.Waiting == nil || w.State.Waiting.Reason != "ErrImagePull" || *w.Started {
		t.Errorf("w: %+v", w)
	}
}

// A container that is killed for its own sake, as for a probe that failed, and is to run again is never told as ended where
// the pod's policy would leave it at that: the API refuses whatever is said of it later.
func TestAContainerThatRunsAgainAgainstItsPodsPolicy(t *testing.T) {
	for policy, ended := range map[corev1.RestartPolicy]bool{
		corev1.RestartPolicyAlways: true, corev1.RestartPolicyOnFailure: false, corev1.RestartPolicyNever: false,
	} {
		st := status.Generate(view(policy, pod.Syncing, "a:revived"), &corev1.PodStatus{}, status.Node{}, now)
		s := st.ContainerStatuses[0]
		if (s.State.Terminated != nil) != ended {
			t.Errorf("%s: %+v", policy, s.State)
		}
		if !ended && (s.State.Waiting == nil || s.State.Waiting.Reason != status.ContainerCreating || s.LastTerminationState.Terminated == nil) {
			t.Errorf("%s: %+v, before %+v", policy, s.State, s.LastTerminationState)
		}
	}
	st := status.Generate(view(corev1.RestartPolicyOnFailure, pod.Syncing, "a:ok"), &corev1.PodStatus{}, status.Node{}, now)
	if st.ContainerStatuses[0].State.Terminated == nil {
		t.Errorf("one that has ended for good: %+v", st.ContainerStatuses[0].State)
	}
}

func TestEndsKeepTheirReason(t *testing.T) {
	v := view(corev1.RestartPolicyAlways, pod.Ended, "a:fail")
	v.End = &pod.End{Reason: "Evicted", Message: "low on memory"}
	st := status.Generate(v, &corev1.PodStatus{}, status.Node{}, now)
	if st.Phase != corev1.PodFailed || st.Reason != "Evicted" {
		t.Errorf("%+v", st)
	}
	v.End, v.Pod.Status = nil, st // after a restart
	if again := status.Generate(v, &st, status.Node{}, now); again.Phase != corev1.PodFailed || again.Reason != "Evicted" ||
		again.Message != "low on memory" {
		t.Errorf("%+v", again)
	}
}

func TestQOS(t *testing.T) {
	list := func(cpu, mem string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(mem)}
	}
	for _, c := range []struct {
		r    []corev1.ResourceRequirements
		want corev1.PodQOSClass
	}{
		{[]corev1.ResourceRequirements{{}}, corev1.PodQOSBestEffort},
		{[]corev1.ResourceRequirements{{Requests: list("1", "1Gi"), Limits: list("1", "1Gi")}}, corev1.PodQOSGuaranteed},
		{[]corev1.ResourceRequirements{{Requests: list("1", "1Gi"), Limits: list("2", "1Gi")}}, corev1.PodQOSBurstable},
		{[]corev1.ResourceRequirements{{Requests: list("1", "1Gi"), Limits: list("1", "1Gi")}, {}}, corev1.PodQOSBurstable},
	} {
		p := &corev1.Pod{}
		for _, r := range c.r {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Resources: r})
		}
		if got := status.QOS(p); got != c.want {
			t.Errorf("%v: %s", c.r, got)
		}
	}
}

func TestPatchSaysOnlyWhatChanged(t *testing.T) {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}}
	p.Status = corev1.PodStatus{Phase: corev1.PodPending, Reason: "Old", Conditions: []corev1.PodCondition{
		{Type: "theirs", Status: corev1.ConditionTrue}, {Type: corev1.PodReady, Status: corev1.ConditionFalse},
	}}
	want := p.Status.DeepCopy()
	want.Phase, want.Reason = corev1.PodRunning, ""
	want.Conditions[1].Status = corev1.ConditionTrue
	raw, err := status.Patch(p, want)
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]map[string]any
	if err := json.Unmarshal(raw, &got); err != nil {
		t.Fatal(err)
	}
	if got["metadata"]["uid"] != "u" || got["status"]["phase"] != "Running" || strings.Contains(string(raw), `"theirs","`) ||
		!strings.Contains(string(raw), `"reason":null`) {
		t.Errorf("%s", raw)
	}
	if none, err := status.Patch(p, p.Status.DeepCopy()); err != nil || none != nil {
		t.Errorf("%s %v", none, err)
	}
}

// A change of resources counts as observed once the node has answered it: before
// that the status has nothing to tell of it, and would read as if it were done.
func TestAnUnansweredChangeIsNotObserved(t *testing.T) {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Generation: 2}}
	prev := &corev1.PodStatus{ObservedGeneration: 1}
	for unanswered, want := range map[bool]int64{true: 1, false: 2} {
		v := pod.View{Pod: p, Stage: pod.Syncing, Resizing: pod.Resizing{Unanswered: unanswered}}
		if st := status.Generate(v, prev, status.Node{}, time.Unix(0, 0)); st.ObservedGeneration != want {
			t.Errorf("unanswered %v: generation %d is observed, want %d", unanswered, st.ObservedGeneration, want)
		}
	}
}
