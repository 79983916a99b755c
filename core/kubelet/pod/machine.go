// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Machine is the life of one pod. It is used by one goroutine at a time.
type Machine struct {
	opts  Options
	pod   *corev1.Pod
	stage Stage
	// removed is set once the API no longer has the pod.
	removed bool
	// admitted pods had their place on the node granted, now or before a restart.
	admitted bool
	mounted  bool
	started  time.Time
	end      *End

	sandboxes []Sandbox // newest first
	slots     []*slot   // in the order of starting: init and sidecars, regular, ephemeral
	// again bounds how often a sandbox is tried: each attempt that left one behind is another action.
	again   backoff
	againAt time.Time
	// tasks are the actions in flight, and the delays, that belong to no container.
	tasks map[Action]*task
	// tombs are the last IDs removed: a late observation must not bring them back.
	tombs []string

	resizing Resizing
	level    level
	// asked is the generation whose resources were last asked for.
	asked int64

	killing   bool
	killStart time.Time
	killGrace int64
	cancelled bool

	now     time.Time
	actions []Action
	wake    time.Time
}

// End says why a pod was ended by its node, in its status' words.
type End struct {
	Reason, Message string
	Grace           *int64
	// Disrupted tells that it was for the node's sake, not the pod's own doing.
	Disrupted bool
	// Emptied tells that nothing of its containers stays on the node either.
	Emptied bool
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
func NewMachine(p *corev1.Pod, found Snapshot, now time.Time, opts Options) *Machine {
	m := &Machine{opts: opts.withDefaults(), tasks: map[Action]*task{}, now: now, pod: p}
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
		m.stage = Syncing
	}
	if terminal(p) {
		// Its verdict stands, whatever else is found.
		m.stage = Terminating
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

func (m *Machine) byID(id string) (*slot, *Container) {
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
	add := func(c *corev1.Container, k Kind) {
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
		if IsSidecar(c) {
			add(c, Sidecar)
		} else {
			add(c, Init)
		}
	}
	for i := range p.Spec.Containers {
		add(&p.Spec.Containers[i], Regular)
	}
	for i := range p.Spec.EphemeralContainers {
		c := corev1.Container(p.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		add(&c, Ephemeral)
	}
	m.slots = slots
}

// Step takes one event and answers what is to be done now.
func (m *Machine) Step(now time.Time, ev Event) []Action {
	m.now, m.actions, m.wake = now, nil, time.Time{}
	m.apply(ev)
	m.plan()
	return m.actions
}

// Wake is when the Machine wants a Tick, if nothing else comes; zero is never.
func (m *Machine) Wake() time.Time { return m.wake }

// Stage of the pod.
func (m *Machine) Stage() Stage { return m.stage }

// Pod as it was last seen.
func (m *Machine) Pod() *corev1.Pod { return m.pod }

func (m *Machine) wakeAt(t time.Time) {
	if m.wake.IsZero() || t.Before(m.wake) {
		m.wake = t
	}
}

func (m *Machine) emit(a Action) { m.actions = append(m.actions, a) }

// do asks for an action that belongs to no container, unless it is in flight or delayed.
func (m *Machine) do(a Action) {
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

func (m *Machine) flying(match func(Action) bool) bool {
	for a, t := range m.tasks {
		if t.flying && match(a) {
			return true
		}
	}
	return false
}

func (m *Machine) apply(ev Event) {
	switch ev := ev.(type) {
	case Updated:
		if !m.removed {
			m.setPod(ev.Pod)
		}
	case Removed:
		m.removed = true
		if ev.Pod != nil {
			m.setPod(ev.Pod)
		}
	case Observed:
		m.observe(ev.Snapshot)
		if ev.Complete {
			m.sweep(ev)
		}
	case Deleted:
		m.vanish(ev.ID)
	case Probed:
		m.probed(ev)
	case Evicted:
		if m.end == nil && m.stage < Terminating {
			m.end = &End{Reason: ev.Reason, Message: ev.Message, Grace: ev.Grace, Disrupted: true, Emptied: ev.Empty}
		}
	case Done:
		m.done(ev)
	case Tick:
	}
}

func (m *Machine) probed(ev Probed) {
	s, c := m.byID(ev.Container)
	if s == nil || c != s.cur() {
		return
	}
	if s.probes.id != c.ID {
		s.probes = verdicts{id: c.ID}
	}
	ok := ev.Success
	switch ev.Probe {
	case Liveness:
		s.probes.liveness = &ok
	case Readiness:
		s.probes.readiness = &ok
	case Startup:
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
