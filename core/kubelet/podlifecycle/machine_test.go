// SPDX-License-Identifier: Apache-2.0

package podlifecycle_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"pgregory.net/rapid"

	"github.com/wasmplane/wasmplane/core/kubelet/pod"
)

func (w *world) expect(t *testing.T, want ...string) {
	t.Helper()
	if !slices.Equal(w.story, want) {
		t.Errorf("story:\n  %s\nwant:\n  %s", strings.Join(w.story, ", "), strings.Join(want, ", "))
	}
	for _, b := range w.broken {
		t.Error(b)
	}
	w.story, w.broken = nil, nil
}

func TestAPodStartsInOrder(t *testing.T) {
	w := newWorld(aPod(corev1.RestartPolicyAlways, "init1", "side", "init2", "main1", "main2"))
	w.settle()
	w.expect(t, "sandbox", "start init1")
	w.die("init1", 0)
	w.settle()
	w.expect(t, "start side", "start init2")
	w.die("init2", 0)
	w.settle()
	w.expect(t, "start main1", "start main2")
	w.remove(30)
	w.settle()
	w.expect(t, "kill main1", "kill main2", "kill side")
	if w.m.Stage() != pod.Gone || len(w.boxes) != 0 || len(w.conts) != 0 {
		t.Errorf("stage %v, left %v %v", w.m.Stage(), w.boxes, w.conts)
	}
}

func TestSidecarThatIsNotUpHoldsTheOthersBack(t *testing.T) {
	p := aPod(corev1.RestartPolicyAlways, "side", "main")
	p.Spec.InitContainers[0].StartupProbe = &corev1.Probe{}
	w := newWorld(p)
	w.settle()
	w.expect(t, "sandbox", "start side")
	w.step(pod.Probed{Container: w.last("side").ID, Probe: pod.Startup, Success: true})
	w.settle()
	w.expect(t, "start main")
}

func TestCrashLoopBacksOff(t *testing.T) {
	w := newWorld(aPod(corev1.RestartPolicyAlways, "main"))
	w.settle()
	w.expect(t, "sandbox", "start main")
	w.die("main", 1)
	w.settle()
	w.expect(t, "start main") // the first time at once
	for _, delay := range []time.Duration{10, 20, 40, 80, 160, 300, 300} {
		w.die("main", 1)
		w.settle()
		w.expect(t, "note BackOff")
		if got := w.m.View().Containers[0].Waiting; got.Reason != "CrashLoopBackOff" || !strings.HasPrefix(got.Message,
			"back-off "+(delay*time.Second).String()+" restarting failed container=main pod=p_default(uid)") {
			t.Errorf("waiting %+v", got)
		}
		w.pass(delay*time.Second - time.Second)
		w.expect(t)
		w.pass(time.Second)
		w.expect(t, "start main")
	}
	w.pass(11 * time.Minute)
	w.die("main", 1)
	w.settle()
	w.expect(t, "start main") // it ran for long enough to be forgiven
}

func TestPoliciesOfRestart(t *testing.T) {
	never, onFailure := corev1.ContainerRestartPolicyNever, corev1.ContainerRestartPolicyOnFailure
	rules := []corev1.ContainerRestartRule{{
		Action:    corev1.ContainerRestartRuleActionRestart,
		ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: corev1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{42}},
	}}
	for _, c := range []struct {
		name   string
		policy corev1.RestartPolicy
		change func(*corev1.Container)
		code   int32
		again  bool
	}{
		{"always, success", corev1.RestartPolicyAlways, nil, 0, true},
		{"on failure, success", corev1.RestartPolicyOnFailure, nil, 0, false},
		{"on failure, failure", corev1.RestartPolicyOnFailure, nil, 1, true},
		{"never, failure", corev1.RestartPolicyNever, nil, 1, false},
		{"the container's own: never", corev1.RestartPolicyAlways, func(c *corev1.Container) { c.RestartPolicy = &never }, 1, false},
		{"the container's own: on failure", corev1.RestartPolicyNever, func(c *corev1.Container) { c.RestartPolicy = &onFailure }, 1, true},
		{"its rules", corev1.RestartPolicyAlways, func(c *corev1.Container) { c.RestartPolicy, c.RestartPolicyRules = &never, rules }, 42, true},
		{"its rules do not match", corev1.RestartPolicyAlways, func(c *corev1.Container) { c.RestartPolicy, c.RestartPolicyRules = &never, rules }, 41, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := aPod(c.policy, "main")
			if c.change != nil {
				c.change(&p.Spec.Containers[0])
			}
			w := newWorld(p)
			w.settle()
			w.die("main", c.code)
			w.settle()
			if got := len(w.list("main")) == 2; got != c.again {
				t.Errorf("restarted: %v, want %v", got, c.again)
			}
			if ended := w.m.Stage() == pod.Finished; ended == c.again {
				t.Errorf("stage %v", w.m.Stage())
			}
		})
	}
}

func TestAFailedInitContainerEndsAPodThatIsNotRestarted(t *testing.T) {
	w := newWorld(aPod(corev1.RestartPolicyNever, "init1", "init2", "main"))
	w.settle()
	w.die("init1", 1)
	w.settle()
	w.expect(t, "sandbox", "start init1")
	if w.m.Stage() != pod.Finished {
		t.Errorf("stage %v", w.m.Stage())
	}
}

// A volume that is an image is pulled when the container is made: that it is not there is told in the same way.
func TestThePullOfAVolumesImageBacksOff(t *testing.T) {
	w := newWorld(aPod(corev1.RestartPolicyAlways, "main"))
	var create pod.Action
	for create == nil {
		if _, ok := w.flight[0].(pod.Create); ok {
			create, w.flight = w.flight[0], w.flight[1:]
			break
		}
		w.do(0)
	}
	w.step(pod.Done{Action: create, Err: errTest, Reason: "ErrImagePull", Message: "volume at /v: no such image"})
	if got := w.m.View().Containers[0].Waiting; got.Reason != "ErrImagePull" {
		t.Errorf("waiting %+v", got)
	}
	w.pass(3 * time.Second)
	got := w.m.View().Containers[0].Waiting
	if got.Reason != "ImagePullBackOff" || got.Message != "Back-off pulling the image of a volume: volume at /v: no such image" {
		t.Errorf("waiting %+v", got)
	}
	w.expect(t, "sandbox", "note BackOff", "note Failed")
	w.pass(time.Minute)
	w.expect(t, "start main")
	if got := w.m.View().Containers[0].Waiting; got != (pod.Waiting{}) {
		t.Errorf("waiting %+v", got)
	}
}

func TestImagePullBacksOff(t *testing.T) {
	w := newWorld(aPod(corev1.RestartPolicyAlways, "main"))
	broken := true
	w.fail = func(a pod.Action) error {
		if _, ok := a.(pod.Pull); ok && broken {
			return errTest
		}
		return nil
	}
	w.settle()
	if got := w.m.View().Containers[0].Waiting; got.Reason != "ErrImagePull" || got.Message != errTest.Error() {
		t.Errorf("waiting %+v", got)
	}
	w.pass(3 * time.Second)
	if got := w.m.View().Containers[0].Waiting; got.Reason != "ImagePullBackOff" ||
		got.Message != `Back-off pulling image "image": ErrImagePull: it does not work` {
		t.Errorf("waiting %+v", got)
	}
	broken = false
	w.pass(7 * time.Second)
	w.expect(t, "sandbox", "pod.Pull failed", "note BackOff", "note Failed", "start main")
}

func TestADeadSandboxIsReplaced(t *testing.T) {
	w := newWorld(aPod(corev1.RestartPolicyAlways, "init", "main"))
	w.settle()
	w.die("init", 0)
	w.settle()
	w.expect(t, "sandbox", "start init", "start main")
	for _, b := range w.boxes {
		b.Ready = false
	}
	w.observe()
	w.settle()
	w.expect(t, "kill main", "note SandboxChanged", "sandbox", "start init")
	w.die("init", 0)
	w.pass(time.Minute)
	w.expect(t, "start main")
	if c := w.last("main"); c.RestartCount != 1 {
		t.Errorf("restart count %d", c.RestartCount)
	}
}

// What the runtime tells of a sandbox does not make it complete: nothing starts in one before its
// StartSandbox has succeeded, and one that was refused is replaced, at a measured pace.
func TestNothingStartsInAnIncompleteSandbox(t *testing.T) {
	w := newWorld(aPod(corev1.RestartPolicyAlways, "main"))
	for len(w.flight) > 0 {
		if _, ok := w.flight[0].(pod.StartSandbox); ok {
			break
		}
		w.do(0)
	}
	w.sendEarlyEvent()
	if len(w.flight) != 1 {
		t.Fatalf("in flight beside its sandbox: %v", w.flight)
	}
	w.fail = func(a pod.Action) error {
		if a, ok := a.(pod.StartSandbox); ok {
			w.half(a)
			return errTest
		}
		return nil
	}
	w.settle()
	w.observe()
	w.pass(20 * time.Second) // after 1, 2, 4, and 8 seconds
	w.expect(t, "pod.StartSandbox failed", "pod.StartSandbox failed", "pod.StartSandbox failed", "pod.StartSandbox failed",
		"pod.StartSandbox failed")
	w.fail = nil
	w.pass(10 * time.Second)
	w.expect(t, "sandbox", "start main")
}

func TestRestartOfTheKubeletRestartsNothing(t *testing.T) {
	w := newWorld(aPod(corev1.RestartPolicyAlways, "init", "side", "main"))
	w.settle()
	w.die("init", 0)
	w.settle()
	w.expect(t, "sandbox", "start init", "start side", "start main")
	w.start()
	w.settle()
	w.pass(time.Minute)
	w.expect(t)
	w.remove(1)
	w.settle()
	w.expect(t, "kill main", "kill side")
}

func TestProbesKillAndImagesReplace(t *testing.T) {
	p := aPod(corev1.RestartPolicyAlways, "main")
	p.Spec.Containers[0].LivenessProbe = &corev1.Probe{}
	w := newWorld(p)
	w.settle()
	w.step(pod.Probed{Container: w.last("main").ID, Probe: pod.Liveness, Success: false})
	w.settle()
	w.expect(t, "sandbox", "start main", "kill main", "start main")
	q := p.DeepCopy()
	q.Spec.Containers[0].Image = "other"
	w.p = q
	w.step(pod.Updated{Pod: q})
	w.pass(time.Minute)
	w.expect(t, "kill main", "note BackOff", "start main")
}

func TestRefusedPodsEndAtOnce(t *testing.T) {
	w := newWorld(aPod(corev1.RestartPolicyAlways, "main"))
	w.refuse = "OutOfcpu"
	w.settle()
	w.expect(t)
	if v := w.m.View(); v.Stage != pod.Finished || v.End == nil || v.End.Reason != "OutOfcpu" {
		t.Errorf("view %+v", v)
	}
}

// A pod whose volumes will never be there ends without a container, and what was set up of them is taken down.
func TestPodsWhoseVolumesAreRefusedEnd(t *testing.T) {
	w := newWorld(aPod(corev1.RestartPolicyAlways, "main"))
	w.refuseMount = "VolumeAttachmentLimitExceeded"
	w.settle()
	w.expect(t)
	if v := w.m.View(); v.Stage != pod.Finished || v.End == nil || v.End.Reason != w.refuseMount {
		t.Errorf("view %+v", v)
	}
}

// Of a pod that was evicted for the node's sake no container stays, and its end stays in the status.
func TestAnEvictedPodGivesBackWhatItHas(t *testing.T) {
	for _, empty := range []bool{true, false} {
		p := aPod(corev1.RestartPolicyAlways, "main")
		w := newWorld(p)
		w.settle()
		w.die("main", 1)
		w.pass(time.Minute) // a second one runs; the first is kept
		w.step(pod.Evicted{Reason: "Evicted", Message: "the disk is full", Empty: empty})
		w.pass(time.Minute)
		w.observe()
		v := w.m.View()
		c := v.Containers[0]
		if v.Stage != pod.Finished || v.End == nil || v.End.Reason != "Evicted" ||
			c.Current == nil || c.Current.State != pod.Exited || c.Current.ExitCode != 143 {
			t.Errorf("empty %t: view %+v, container %+v", empty, v, c.Current)
		}
		if want := map[bool]int{true: 0, false: 2}[empty]; len(w.conts) != want {
			t.Errorf("empty %t: containers %v, want %d", empty, w.conts, want)
		}
		if c.Kept() == empty {
			t.Errorf("empty %t: it says that it keeps containers: %t", empty, c.Kept())
		}
		w.remove(1)
		w.settle()
		if w.m.Stage() != pod.Gone || len(w.boxes) > 0 || len(w.conts) > 0 {
			t.Errorf("empty %t: it is %v, with %v %v", empty, w.m.Stage(), w.boxes, w.conts)
		}
	}
}

func TestDeadline(t *testing.T) {
	p := aPod(corev1.RestartPolicyNever, "main")
	limit := int64(60)
	p.Spec.ActiveDeadlineSeconds = &limit
	w := newWorld(p)
	w.settle()
	w.pass(59 * time.Second)
	w.expect(t, "sandbox", "start main")
	w.pass(2 * time.Second)
	w.expect(t, "note DeadlineExceeded", "kill main")
	if v := w.m.View(); v.End == nil || v.End.Reason != "DeadlineExceeded" || v.Stage != pod.Finished {
		t.Errorf("view %+v", v)
	}
}

func TestAShorterGraceCutsAKillShort(t *testing.T) {
	w := newWorld(aPod(corev1.RestartPolicyAlways, "main"))
	w.settle()
	w.remove(600)
	if len(w.flight) != 1 {
		t.Fatalf("in flight: %v", w.flight)
	}
	w.remove(1)
	if k, ok := w.flight[len(w.flight)-1].(pod.Kill); !ok || k.Grace != 1 || !k.NoHook {
		t.Errorf("in flight: %#v", w.flight)
	}
	w.settle()
	if w.m.Stage() != pod.Gone {
		t.Errorf("stage %v", w.m.Stage())
	}
}

// hookedSidecars is a pod whose sidecars have preStop hooks.
func hookedSidecars() *corev1.Pod {
	p := aPod(corev1.RestartPolicyAlways, "side1", "side2", "main")
	for i := range p.Spec.InitContainers {
		p.Spec.InitContainers[i].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{}}
	}
	return p
}

// Sidecars wait for their turn to be killed, their hooks do not.
func TestHooksOfSidecarsRunWhenTheirPodBeginsToEnd(t *testing.T) {
	w := newWorld(hookedSidecars())
	w.settle()
	w.expect(t, "sandbox", "start side1", "start side2", "start main")
	w.remove(30)
	w.settle()
	w.expect(t, "kill main", "prepare to stop side2", "prepare to stop side1", "kill side2", "kill side1")
	if w.m.Stage() != pod.Gone {
		t.Errorf("stage %v", w.m.Stage())
	}
}

// Without another container that runs, the last sidecar's hook is a part of its kill.
func TestHooksOfSidecarsThatAreLeft(t *testing.T) {
	p := hookedSidecars()
	p.Spec.RestartPolicy = corev1.RestartPolicyNever
	w := newWorld(p)
	w.settle()
	w.expect(t, "sandbox", "start side1", "start side2", "start main")
	w.die("main", 0)
	for _, a := range w.flight {
		if k, ok := a.(pod.Kill); ok && (k.Container != "side2" || k.NoHook) {
			t.Errorf("in flight: %#v", k)
		}
	}
	w.settle()
	w.expect(t, "kill side2", "prepare to stop side1", "kill side1")
}

// A hook that does not end keeps its sidecar until the pod's time is up, and is not run again.
func TestAHookOfASidecarThatHangs(t *testing.T) {
	w := newWorld(hookedSidecars())
	w.settle()
	w.remove(30)
	var hooks []pod.Action
	for _, a := range slices.Clone(w.flight) {
		if _, ok := a.(pod.PreStop); ok {
			hooks = append(hooks, a)
			w.flight = slices.DeleteFunc(w.flight, func(b pod.Action) bool { return a == b })
		}
	}
	if len(hooks) != 2 || hooks[0].(pod.PreStop).Grace != 30 {
		t.Fatalf("hooks: %#v", hooks)
	}
	w.settle()
	w.expect(t, "sandbox", "start side1", "start side2", "start main", "kill main")
	w.pass(29 * time.Second)
	w.expect(t)
	w.step(pod.Done{Action: hooks[1]}) // side1's: it waits for side2, which goes on
	w.settle()
	w.expect(t)
	w.now = w.now.Add(time.Second)
	w.step(pod.Tick{})
	if len(w.flight) != 2 {
		t.Errorf("in flight: %#v", w.flight)
	}
	for _, a := range w.flight {
		if k, ok := a.(pod.Kill); !ok || !k.NoHook || k.Grace != 2 {
			t.Errorf("in flight: %#v", a)
		}
	}
	w.settle()
	w.expect(t, "kill side2", "kill side1")
	w.step(pod.Done{Action: hooks[0]})
	w.settle()
	if w.m.Stage() != pod.Gone {
		t.Errorf("stage %v", w.m.Stage())
	}
}

func ask(cpu string) corev1.ResourceRequirements {
	return corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}
}

func TestResourcesChangeInPlace(t *testing.T) {
	p := aPod(corev1.RestartPolicyAlways, "main", "main2")
	p.Spec.Containers[0].Resources, p.Spec.Containers[1].Resources = ask("1"), ask("1")
	p.Spec.Containers[1].ResizePolicy = []corev1.ContainerResizePolicy{{
		ResourceName:  corev1.ResourceCPU,
		RestartPolicy: corev1.RestartContainer,
	}}
	w := newWorld(p)
	w.settle()
	w.expect(t, "sandbox", "start main", "start main2")
	change := func(cpu string) {
		q := w.p.DeepCopy()
		q.Generation++
		q.Spec.Containers[0].Resources = ask(cpu)
		w.p = q
		w.step(pod.Updated{Pod: q})
		if !w.m.View().Resizing.Unanswered {
			t.Error("the node was not asked yet, and the change counts as observed")
		}
	}
	w.refuse = "Deferred"
	change("2")
	w.settle()
	if w.m.View().Resizing.Unanswered {
		t.Error("the node has answered, and the change does not count as observed")
	}
	if v := w.m.View(); v.Resizing.Pending != "Deferred" || v.Containers[0].Granted.Requests.Cpu().String() != "1" {
		t.Errorf("%+v", v.Resizing)
	}
	w.refuse = ""
	w.pass(11 * time.Second)
	w.expect(t, "pod to 3000m", "resize main to 2")
	if v := w.m.View(); v.Resizing.Pending != "" || v.Resizing.Active || v.Containers[0].Applied.Requests.Cpu().String() != "2" {
		t.Errorf("%+v", v.Resizing)
	}
	w.start() // a kubelet that starts anew brings it about once more, which changes nothing
	w.settle()
	w.expect(t, "pod to 3000m", "resize main to 2")
	q := w.p.DeepCopy()
	q.Generation++
	q.Spec.Containers[1].Resources = ask("3")
	w.p = q
	w.step(pod.Updated{Pod: q})
	for range 100 { // until the next one runs, the change is under way
		if len(w.flight) == 0 {
			break
		}
		w.do(0)
		r, c := w.m.View().Resizing, w.last("main2")
		if done := c.State == pod.Running && c.Resources.Requests.Cpu().String() == "3"; !done && !r.Active && !r.Unanswered {
			t.Errorf("%+v, the container is in state %v", r, c.State)
		}
	}
	if w.m.View().Resizing.Active {
		t.Error("the change is done, and told as under way")
	}
	w.expect(t, "pod to 5000m", "kill main2", "start main2")
	if c := w.last("main2"); c.Resources.Requests.Cpu().String() != "3" {
		t.Errorf("%+v", c.Resources)
	}
	w.refuse = "Infeasible"
	change("100")
	w.pass(time.Hour)
	w.expect(t)
	if v := w.m.View(); v.Resizing.Pending != "Infeasible" {
		t.Errorf("%+v", v.Resizing)
	}
}

// An init container that runs gets what changes; one that has ended, or begins later, has it when it starts.
func TestResourcesOfInitContainersChangeInPlace(t *testing.T) {
	p := aPod(corev1.RestartPolicyAlways, "init1", "init2", "main")
	p.Spec.InitContainers[0].Resources, p.Spec.InitContainers[1].Resources = ask("1"), ask("1")
	w := newWorld(p)
	w.settle()
	w.expect(t, "sandbox", "start init1")
	change := func(name, cpu string) {
		q := w.p.DeepCopy()
		q.Generation++
		c, _ := pod.Find(q, name)
		c.Resources = ask(cpu)
		w.p = q
		w.step(pod.Updated{Pod: q})
		w.settle()
	}
	change("init1", "2")
	w.expect(t, "pod to 2000m", "resize init1 to 2")
	if c := w.m.View().Containers[0]; c.Applied.Requests.Cpu().String() != "2" {
		t.Errorf("%+v", c)
	}
	change("init2", "3")
	w.expect(t, "pod to 3000m")
	w.die("init1", 0)
	w.settle()
	w.expect(t, "start init2")
	if c := w.last("init2"); c.Resources.Requests.Cpu().String() != "3" {
		t.Errorf("%+v", c.Resources)
	}
	change("init1", "1") // it has ended
	w.expect(t)
	if v := w.m.View(); v.Resizing.Pending != "" || v.Resizing.Active || v.Resizing.Unanswered {
		t.Errorf("%+v", v.Resizing)
	}
	w.die("init2", 0)
	w.settle()
	w.expect(t, "start main")
}

// Whatever happens, in whatever order, the promises in the package's text hold,
// and a pod that is deleted goes.
func TestPromisesHold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		policy := rapid.SampledFrom([]corev1.RestartPolicy{
			corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure,
			corev1.RestartPolicyNever,
		}).Draw(t, "policy")
		names := rapid.SampledFrom([][]string{
			{"main"},
			{"main1", "main2"},
			{"init", "main"},
			{"init1", "side1", "init2", "side2", "main1", "main2"},
			{"side", "main"},
		}).Draw(t, "containers")
		p := aPod(policy, names...)
		if rapid.Bool().Draw(t, "hooks") {
			p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{}}
		}
		if rapid.Bool().Draw(t, "restart all") {
			restartsAll(p, names[len(names)-1])
		}
		w := newWorld(p)
		w.early = rapid.Bool().Draw(t, "early")
		gone := false
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 13).Draw(t, "what") {
			case 13:
				if rapid.IntRange(0, 3).Draw(t, "short") == 0 {
					w.step(pod.Evicted{Reason: "Evicted", Empty: rapid.Bool().Draw(t, "empty")})
				}
			case 12:
				w.sendEarlyEvent()
			case 0, 1, 2, 3:
				if len(w.flight) > 0 {
					if rapid.IntRange(0, 4).Draw(t, "luck") == 0 {
						w.fail = func(pod.Action) error { return errTest }
					}
					w.do(rapid.IntRange(0, len(w.flight)-1).Draw(t, "which"))
					w.fail = nil
				}
			case 4:
				w.settle()
			case 5, 6:
				w.die(rapid.SampledFrom(names).Draw(t, "who"), rapid.SampledFrom([]int32{0, 1, 42}).Draw(t, "code"))
			case 7:
				for _, b := range w.boxes {
					b.Ready = false
				}
				w.observe()
			case 8:
				w.now = w.now.Add(time.Duration(rapid.IntRange(1, 400).Draw(t, "seconds")) * time.Second)
				w.step(pod.Tick{})
			case 9:
				w.start() // the kubelet was restarted, and what was in flight was lost
			case 10:
				w.step(pod.Observed{Snapshot: w.snapshot(), Complete: true, Since: w.now})
			case 11:
				if !gone && rapid.IntRange(0, 3).Draw(t, "really") == 0 {
					gone = true
					w.remove(int64(rapid.IntRange(0, 30).Draw(t, "grace")))
				}
			}
			seen := map[string]bool{}
			for _, n := range w.running() {
				if seen[n] {
					t.Fatalf("two of %s run", n)
				}
				seen[n] = true
			}
		}
		if !gone {
			w.remove(5)
		}
		w.pass(10 * time.Minute)
		if w.m.Stage() != pod.Gone || len(w.conts) > 0 || len(w.boxes) > 0 {
			t.Fatalf("the pod is %v, and left %v %v", w.m.Stage(), w.conts, w.boxes)
		}
		for _, b := range w.broken {
			t.Error(b)
		}
	})
}
