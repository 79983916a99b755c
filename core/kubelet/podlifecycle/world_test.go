// SPDX-License-Identifier: Apache-2.0

package podlifecycle_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/pod"
	"github.com/wasmplane/wasmplane/core/kubelet/podlifecycle"
)

// world is a runtime and an API with one pod, and a clock that stands still
// until it is moved. It carries out what the machine asks for.
type world struct {
	now    time.Time
	m      *podlifecycle.Machine
	p      *corev1.Pod
	boxes  map[string]*pod.Sandbox
	conts  map[string]*pod.Container
	order  []string // of containers made
	serial int
	flight []pod.Action
	story  []string // what was done, in words
	// partial are the sandboxes that were never answered for.
	partial     map[string]bool
	deleted     bool     // from the API
	broken      []string // promises that were not kept
	fail        func(pod.Action) error
	refuse      string
	refuseMount string // why volumes will never be there
	early       bool   // the runtime tells of a removal before the removal has come back
}

var errTest = errors.New("it does not work")

func newWorld(p *corev1.Pod) *world {
	w := &world{
		now: time.Unix(1_000_000, 0), p: p, boxes: map[string]*pod.Sandbox{}, conts: map[string]*pod.Container{},
		partial: map[string]bool{},
	}
	w.start()
	return w
}

// start a machine over what is there: at first, and after a restart of the kubelet.
func (w *world) start() {
	w.m = podlifecycle.NewMachine(w.p, w.snapshot(), w.now, podlifecycle.Options{})
	w.flight = nil
	clear(w.partial) // who starts containers in what it found is the runtime's firewall to judge
	w.step(pod.Tick{})
}

func (w *world) snapshot() pod.Snapshot {
	var s pod.Snapshot
	for _, b := range w.boxes {
		s.Sandboxes = append(s.Sandboxes, *b)
	}
	for _, id := range w.order {
		if c := w.conts[id]; c != nil {
			s.Containers = append(s.Containers, *c)
		}
	}
	return s
}

func (w *world) breach(format string, args ...any) {
	w.broken = append(w.broken, fmt.Sprintf(format, args...))
}

func (w *world) step(ev pod.Event) {
	for _, a := range w.m.Step(w.now, ev) {
		switch a := a.(type) {
		case pod.Note:
			w.story = append(w.story, "note "+a.Reason)
			continue
		case pod.Cancel, pod.Forget:
			continue
		case pod.Create:
			w.checkCreate(a)
		}
		if slices.Contains(w.flight, a) {
			w.breach("%#v was asked for while in flight", a)
		}
		w.flight = append(w.flight, a)
	}
}

func (w *world) checkCreate(a pod.Create) {
	b := w.boxes[a.Sandbox]
	if b == nil || !b.Ready || w.partial[a.Sandbox] {
		w.breach("%s is created in a sandbox that is not ready", a.Container)
	}
	for _, c := range w.conts {
		if c.Name == a.Container && c.State == pod.Running {
			w.breach("%s is created while %s runs", a.Container, c.ID)
		}
	}
	if w.m.Stage() >= pod.Terminating {
		w.breach("%s is created though the pod ends", a.Container)
	}
	if !strings.HasPrefix(a.Container, "main") {
		return
	}
	for i := range w.p.Spec.InitContainers {
		c := &w.p.Spec.InitContainers[i]
		done := slices.ContainsFunc(w.list(c.Name), func(x *pod.Container) bool {
			return x.Sandbox == a.Sandbox && (pod.IsSidecar(c) && !x.Started.IsZero() || x.State == pod.Exited && x.ExitCode == 0)
		})
		earlier := slices.ContainsFunc(w.order, func(id string) bool {
			x := w.conts[id]
			return x != nil && strings.HasPrefix(x.Name, "main") && x.Sandbox == a.Sandbox
		})
		if !done && !earlier {
			w.breach("%s is created before %s is through", a.Container, c.Name)
		}
	}
}

func (w *world) list(name string) []*pod.Container {
	var out []*pod.Container
	for _, id := range w.order {
		if c := w.conts[id]; c != nil && c.Name == name {
			out = append(out, c)
		}
	}
	return out
}

// last container of a name.
func (w *world) last(name string) *pod.Container {
	l := w.list(name)
	if len(l) == 0 {
		return nil
	}
	return l[len(l)-1]
}

func (w *world) running() []string {
	var out []string
	for _, id := range w.order {
		if c := w.conts[id]; c != nil && c.State == pod.Running {
			out = append(out, c.Name)
		}
	}
	return out
}

// do carries out one action in flight and tells the machine.
func (w *world) do(i int) {
	a := w.flight[i]
	w.flight = slices.Delete(w.flight, i, i+1)
	w.step(w.carryOut(a))
}

func (w *world) carryOut(a pod.Action) pod.Done {
	d := pod.Done{Action: a}
	if w.fail != nil {
		if d.Err = w.fail(a); d.Err != nil {
			d.Reason, d.Message = "ErrImagePull", d.Err.Error()
			if _, ok := a.(pod.Pull); !ok {
				d.Reason = "CreateContainerError"
			}
			w.story = append(w.story, fmt.Sprintf("%T failed", a))
			return d
		}
	}
	switch a := a.(type) {
	case pod.Resize:
		w.story = append(w.story, "resize "+a.Container+" to "+a.To.Requests.Cpu().String())
	case pod.Bound:
		w.story = append(w.story, fmt.Sprintf("pod to %dm", a.To.CPU))
	case pod.Mount:
		d.Refused, d.Reason = w.refuseMount != "", w.refuseMount
	case pod.Admit, pod.Grant:
		d.Refused, d.Reason = w.refuse != "", w.refuse
	case pod.StartSandbox:
		b := w.half(a)
		delete(w.partial, b.ID)
		c := *b
		d.Sandbox = &c
		w.story = append(w.story, "sandbox")
	case pod.StopSandbox:
		if b := w.boxes[a.ID]; b != nil {
			b.Ready = false
		}
		for _, c := range w.conts {
			if c.Sandbox == a.ID && c.State == pod.Running {
				w.breach("%s still runs when its sandbox is stopped", c.Name)
				w.exit(c, 137)
			}
		}
	case pod.RemoveSandbox:
		delete(w.boxes, a.ID)
		for id, c := range w.conts {
			if c.Sandbox == a.ID {
				delete(w.conts, id)
			}
		}
	case pod.Pull:
		d.Image = "sha256:image"
	case pod.Create:
		w.serial++
		c := &pod.Container{
			ID: fmt.Sprintf("c-%d", w.serial), Name: a.Container, Sandbox: a.Sandbox, RestartCount: a.RestartCount,
			Hash: w.hash(a.Container), Created: w.now, Resources: a.Resources, Level: a.Level,
		}
		w.conts[c.ID] = c
		w.order = append(w.order, c.ID)
		got := *c
		d.Container = &got
	case pod.Start:
		if c := w.conts[a.ID]; c != nil {
			c.State, c.Started = pod.Running, w.now
			got := *c
			d.Container = &got
			w.story = append(w.story, "start "+c.Name)
		} else {
			d.Err = errTest
		}
	case pod.PostStart:
		w.story = append(w.story, "hook "+a.Container)
	case pod.PreStop:
		w.story = append(w.story, "prepare to stop "+a.Container)
	case pod.Kill:
		if c := w.conts[a.ID]; c != nil && c.State == pod.Running {
			w.exit(c, 143)
			w.story = append(w.story, "kill "+c.Name)
		}
		if c := w.conts[a.ID]; c != nil {
			got := *c
			d.Container = &got
		}
	case pod.RemoveContainer:
		if c := w.conts[a.ID]; c != nil && c.State == pod.Running {
			w.breach("%s is removed while it runs", c.Name)
		}
		delete(w.conts, a.ID)
		if w.early {
			w.step(pod.Deleted{ID: a.ID})
		}
	case pod.Delete:
		w.deleted = true
	}
	return d
}

// half makes a sandbox of which the runtime tells before its StartSandbox has ended.
func (w *world) half(a pod.StartSandbox) *pod.Sandbox {
	for id := range w.partial {
		if b := w.boxes[id]; b != nil && b.Attempt == a.Attempt && b.Ready {
			return b
		}
	}
	w.serial++
	b := &pod.Sandbox{ID: fmt.Sprintf("box-%d", w.serial), Attempt: a.Attempt, Ready: true, Created: w.now, IPs: []string{"10.0.0.1"}}
	w.boxes[b.ID], w.partial[b.ID] = b, true
	return b
}

// sendEarlyEvent has the runtime tell of a sandbox that is not complete.
func (w *world) sendEarlyEvent() {
	for _, a := range w.flight {
		if a, ok := a.(pod.StartSandbox); ok {
			w.half(a)
			w.observe()
			return
		}
	}
}

func (w *world) hash(name string) string {
	for _, l := range [][]corev1.Container{w.p.Spec.InitContainers, w.p.Spec.Containers} {
		for i := range l {
			if l[i].Name == name {
				return pod.Hash(&l[i])
			}
		}
	}
	return ""
}

func (w *world) exit(c *pod.Container, code int32) {
	c.State, c.ExitCode, c.Finished = pod.Exited, code, w.now
}

// settle carries out what is in flight until nothing is.
func (w *world) settle() {
	for range 10_000 {
		if w.deleted {
			w.deleted = false
			w.step(pod.Removed{})
		}
		if len(w.flight) == 0 {
			return
		}
		w.do(0)
	}
	w.breach("it never settles")
}

// observe tells the machine what the runtime has.
func (w *world) observe() { w.step(pod.Observed{Snapshot: w.snapshot()}) }

// pass lets time go by, with its timers.
func (w *world) pass(d time.Duration) {
	end := w.now.Add(d)
	for range 10_000 {
		w.settle()
		at := w.m.Wake()
		if at.IsZero() || at.After(end) {
			w.now = end
			return
		}
		if at.After(w.now) {
			w.now = at
		}
		w.step(pod.Tick{})
	}
	w.breach("timers never end")
}

// die ends the newest container of a name by itself.
func (w *world) die(name string, code int32) {
	if c := w.last(name); c != nil && c.State == pod.Running {
		w.exit(c, code)
		w.observe()
	}
}

// remove asks for the pod's deletion through the API.
func (w *world) remove(grace int64) {
	p := w.p.DeepCopy()
	t := metav1.NewTime(w.now)
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &t, &grace
	w.p = p
	w.step(pod.Updated{Pod: p})
}

func aPod(policy corev1.RestartPolicy, names ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default", UID: "uid"}}
	p.Spec.RestartPolicy = policy
	always := corev1.ContainerRestartPolicyAlways
	for _, n := range names {
		c := corev1.Container{Name: n, Image: "image"}
		switch {
		case strings.HasPrefix(n, "init"):
			p.Spec.InitContainers = append(p.Spec.InitContainers, c)
		case strings.HasPrefix(n, "side"):
			c.RestartPolicy = &always
			p.Spec.InitContainers = append(p.Spec.InitContainers, c)
		default:
			p.Spec.Containers = append(p.Spec.Containers, c)
		}
	}
	return p
}
