// SPDX-License-Identifier: Apache-2.0

// Package podlifecycle decides what happens to one pod on its node, and nothing else: a
// Machine is told what was seen (the pod's spec, what the runtime runs, what a
// probe said, how an action ended, that time passed) and answers with the
// actions to take. It calls nobody, reads no clock and starts no goroutine, so
// that a pod's whole life can be replayed, fuzzed and read from a list of events.
//
// Promises:
//   - an action is never asked for again while it is in flight;
//   - a container is created only in a ready sandbox that is complete: its
//     StartSandbox has succeeded, or it was there before the Machine. That the
//     runtime tells of one says nothing of its firewall;
//   - a container is created after the init containers, and only while no other
//     container of that name may be running;
//   - what was found running at start is adopted: nothing is restarted unless
//     its definition changed or it fails its probes;
//   - a pod that ends is killed first, then reported, then forgotten; at each of
//     these steps it may be interrupted and resumed by another Machine that has
//     only the API object and the runtime to look at.
package podlifecycle

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/pod"
)

// Machine is the life of one pod. It is used by one goroutine at a time.
type Machine struct {
	opts  Options
	pod   *corev1.Pod
	stage pod.Stage
	// removed is set once the API no longer has the pod.
	removed bool
	// admitted pods had their place on the node granted, now or before a restart.
	admitted bool
	mounted  bool
	started  time.Time
	end      *pod.End

	sandboxes []sandbox // newest first
	slots     []*slot   // in the order of starting: init and sidecars, regular, ephemeral
	// again bounds how often a sandbox is tried: each attempt that left one behind is another action.
	again   backoff
	againAt time.Time
	// tasks are the actions in flight, and the delays, that belong to no container.
	tasks map[pod.Action]*task
	// tombs are the last IDs removed: a late observation must not bring them back.
	tombs []string

	resizing pod.Resizing
	level    level
	// asked is the generation whose resources were last asked for.
	asked int64

	killing   bool
	killStart time.Time
	killGrace int64
	cancelled bool

	now     time.Time
	actions []pod.Action
	wake    time.Time
}

type task struct {
	flying bool
	delay  backoff
	at     time.Time
}

// backoff doubles.
type backoff struct {
	delay time.Duration
	last  time.Time
}

func (b *backoff) next(now time.Time, initial, limit time.Duration) time.Duration {
	if b.delay == 0 {
		b.delay = initial
	} else {
		b.delay = min(2*b.delay, limit)
	}
	b.last = now
	return b.delay
}

// NewMachine is the life of a pod of which the runtime holds what is in found.
// The pod's own status tells what the runtime has lost.
func NewMachine(p *corev1.Pod, found pod.Snapshot, now time.Time, opts Options) *Machine {
	m := &Machine{opts: opts.withDefaults(), tasks: map[pod.Action]*task{}, now: now, pod: p}
	m.setPod(p)
	m.observe(found)
	for i := range m.sandboxes {
		m.sandboxes[i].complete = true
	}
	if p.Status.StartTime != nil {
		m.started = p.Status.StartTime.Time
		m.admitted = true
	}
	if !m.admitted && len(m.sandboxes) > 0 {
		// Its status was never written: the API was away.
		m.admitted, m.started = true, orElse(m.sandboxes[len(m.sandboxes)-1].Created, now)
	}
	m.adopt(&p.Status)
	m.adoptRestartAll(&p.Status)
	if m.admitted {
		m.stage = pod.Syncing
	}
	if terminal(p) {
		// Its verdict stands, whatever else is found.
		m.stage = pod.Terminating
		m.started = orElse(m.started, now)
	}
	return m
}

func orElse(t, other time.Time) time.Time {
	if t.IsZero() {
		return other
	}
	return t
}

func terminal(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// adopt takes over from the API what the runtime does not know: verdicts of
// probes on containers that still run, and containers that are gone.
func (m *Machine) adopt(st *corev1.PodStatus) {
	for _, list := range [][]corev1.ContainerStatus{st.InitContainerStatuses, st.ContainerStatuses, st.EphemeralContainerStatuses} {
		for i := range list {
			if s := m.slot(list[i].Name); s != nil {
				s.adopt(&list[i], m.now)
			}
		}
	}
}

func (m *Machine) slot(name string) *slot {
	for _, s := range m.slots {
		if s.spec.Name == name {
			return s
		}
	}
	return nil
}

func (m *Machine) byID(id string) (*slot, *container) {
	for _, s := range m.slots {
		if c := s.find(id); c != nil && id != "" {
			return s, c
		}
	}
	return nil, nil
}

// setPod takes the spec, keeping what is known of containers by their names.
func (m *Machine) setPod(p *corev1.Pod) {
	m.pod = p
	var slots []*slot
	add := func(c *corev1.Container, k pod.Kind) {
		s := m.slot(c.Name)
		if s == nil {
			s = &slot{}
		} else if s.spec.Image != c.Image {
			s.image, s.retryAt = "", time.Time{}
		}
		s.spec, s.kind = c, k
		slots = append(slots, s)
	}
	for i := range p.Spec.InitContainers {
		c := &p.Spec.InitContainers[i]
		if pod.IsSidecar(c) {
			add(c, pod.Sidecar)
		} else {
			add(c, pod.Init)
		}
	}
	for i := range p.Spec.Containers {
		add(&p.Spec.Containers[i], pod.Regular)
	}
	for i := range p.Spec.EphemeralContainers {
		c := corev1.Container(p.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		add(&c, pod.Ephemeral)
	}
	m.slots = slots
}

// Step takes one event and answers what is to be done now.
func (m *Machine) Step(now time.Time, ev pod.Event) []pod.Action {
	m.now, m.actions, m.wake = now, nil, time.Time{}
	m.apply(ev)
	m.plan()
	return m.actions
}

// Wake is when the Machine wants a Tick, if nothing else comes; zero is never.
func (m *Machine) Wake() time.Time { return m.wake }

// Stage of the pod.
func (m *Machine) Stage() pod.Stage { return m.stage }

// Pod as it was last seen.
func (m *Machine) Pod() *corev1.Pod { return m.pod }

func (m *Machine) wakeAt(t time.Time) {
	if m.wake.IsZero() || t.Before(m.wake) {
		m.wake = t
	}
}

func (m *Machine) emit(a pod.Action) { m.actions = append(m.actions, a) }

// do asks for an action that belongs to no container, unless it is in flight or delayed.
func (m *Machine) do(a pod.Action) {
	t := m.tasks[a]
	if t == nil {
		t = &task{}
		m.tasks[a] = t
	}
	switch {
	case t.flying:
	case m.now.Before(t.at):
		m.wakeAt(t.at)
	default:
		t.flying = true
		m.emit(a)
	}
}

func (m *Machine) flying(match func(pod.Action) bool) bool {
	for a, t := range m.tasks {
		if t.flying && match(a) {
			return true
		}
	}
	return false
}

func (m *Machine) apply(ev pod.Event) {
	switch ev := ev.(type) {
	case pod.Updated:
		if !m.removed {
			m.setPod(ev.Pod)
		}
	case pod.Removed:
		m.removed = true
		if ev.Pod != nil {
			m.setPod(ev.Pod)
		}
	case pod.Observed:
		m.observe(ev.Snapshot)
		if ev.Complete {
			m.sweep(ev)
		}
	case pod.Deleted:
		m.vanish(ev.ID)
	case pod.Probed:
		m.probed(ev)
	case pod.Evicted:
		if m.end == nil && m.stage < pod.Terminating {
			m.end = &pod.End{Reason: ev.Reason, Message: ev.Message, Grace: ev.Grace, Disrupted: true, Emptied: ev.Empty}
		}
	case pod.Done:
		m.done(ev)
	case pod.Tick:
	}
}

func (m *Machine) probed(ev pod.Probed) {
	s, c := m.byID(ev.Container)
	if s == nil || c != s.cur() {
		return
	}
	if s.probes.id != c.ID {
		s.probes = verdicts{id: c.ID}
	}
	ok := ev.Success
	switch ev.Probe {
	case pod.Liveness:
		s.probes.liveness = &ok
	case pod.Readiness:
		s.probes.readiness = &ok
	case pod.Startup:
		s.probes.startup = &ok
	}
}

func (m *Machine) buried(id string) bool {
	for _, t := range m.tombs {
		if t == id {
			return true
		}
	}
	return false
}

func (m *Machine) bury(id string) {
	const keep = 32
	if len(m.tombs) >= keep {
		m.tombs = m.tombs[1:]
	}
	m.tombs = append(m.tombs, id)
}
