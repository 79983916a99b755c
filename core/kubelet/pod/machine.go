package pod

import (
	"sort"
	"strings"
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
	// tasks are the actions in flight, and the delays, that belong to no container.
	tasks map[Action]*task
	// tombs are the last IDs removed: a late observation must not bring them back.
	tombs []string

	resizing Resizing
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

// slot is one container of the spec, and what became of it.
type slot struct {
	spec *corev1.Container
	kind Kind
	list []Container // newest first
	// op is the Pull, Create, Start, PostStart, RemoveContainer or Resize in flight.
	op Action
	// kill is the Kill in flight; it may overlap a hook.
	kill    *Kill
	killErr backoff

	waiting Waiting
	// image to create from, once pulled for the next attempt.
	image string
	pull  backoff
	retry backoff
	crash backoff
	// retryAt is when a failed pull or create is tried again.
	retryAt time.Time
	// shown is when a pull error turns into a back-off in the status.
	shown time.Time
	// gated is the exited container whose crash back-off has passed.
	gated string
	// noted is the exited container whose back-off was told of.
	noted string
	// force restarts a container that was killed for a reason of its own.
	force bool
	// fresh is the container that this Machine created: only its hook is still due.
	fresh, hooked string
	// grant are the resources that the node granted; resized are those that a
	// container was given since it was made.
	grant   *corev1.ResourceRequirements
	resized resized
	// begun is the sandbox in which a sidecar has once been up.
	begun  string
	probes verdicts
}

// verdicts of the probes on one container.
type verdicts struct {
	id                           string
	liveness, readiness, startup *bool
}

func (s *slot) cur() *Container {
	if len(s.list) == 0 {
		return nil
	}
	return &s.list[0]
}

func (s *slot) find(id string) *Container {
	for i := range s.list {
		if s.list[i].ID == id {
			return &s.list[i]
		}
	}
	return nil
}

func (s *slot) running() bool {
	c := s.cur()
	return c != nil && (c.State == Running || c.State == Unknown)
}

// started tells whether the container is up, in the sense that those after it may start.
func (s *slot) started() bool {
	c := s.cur()
	if c == nil || c.State != Running || s.starting(c) {
		return false
	}
	if s.spec.StartupProbe == nil {
		return true
	}
	return s.probes.id == c.ID && s.probes.startup != nil && *s.probes.startup
}

// starting tells whether the container's start is still in our hands.
func (s *slot) starting(c *Container) bool {
	return s.fresh == c.ID && s.hooked != c.ID
}

func (s *slot) ready() bool {
	c := s.cur()
	if c == nil {
		return false
	}
	if s.kind == Init {
		return c.State == Exited && c.ExitCode == 0
	}
	if !s.started() {
		return false
	}
	if s.spec.ReadinessProbe == nil {
		return true
	}
	return s.probes.id == c.ID && s.probes.readiness != nil && *s.probes.readiness
}

// NewMachine is the life of a pod of which the runtime holds what is in found.
// The pod's own status tells what the runtime has lost.
func NewMachine(p *corev1.Pod, found Snapshot, now time.Time, opts Options) *Machine {
	m := &Machine{opts: opts.withDefaults(), tasks: map[Action]*task{}, now: now, pod: p}
	m.setPod(p)
	m.observe(found)
	if p.Status.StartTime != nil {
		m.started = p.Status.StartTime.Time
		m.admitted = true
	}
	m.admitted = m.admitted || len(m.sandboxes) > 0
	m.adopt(&p.Status)
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

func (s *slot) adopt(cs *corev1.ContainerStatus, now time.Time) {
	id := cs.ContainerID
	if _, after, ok := strings.Cut(id, "://"); ok {
		id = after
	}
	if c := s.cur(); c != nil {
		if c.ID == id && c.State == Running {
			ready := cs.Ready
			s.probes = verdicts{id: id, readiness: &ready}
			if cs.Started != nil && *cs.Started {
				s.probes.startup = cs.Started
			}
		}
		return
	}
	lost := Container{ID: "", Name: cs.Name, State: Exited, RestartCount: cs.RestartCount, Image: cs.Image, ImageID: cs.ImageID, seen: now}
	switch {
	case cs.State.Terminated != nil:
		lost.fromTerminated(cs.State.Terminated)
	case cs.State.Running != nil:
		lost.unknownEnd()
		lost.Started = cs.State.Running.StartedAt.Time
	case cs.LastTerminationState.Terminated != nil:
		lost.fromTerminated(cs.LastTerminationState.Terminated)
	default:
		return
	}
	s.list = []Container{lost}
}

// Lost containers are known only from the pod's status.
func (c *Container) lost() bool { return c.ID == "" }

func (c *Container) fromTerminated(t *corev1.ContainerStateTerminated) {
	c.ExitCode, c.Reason, c.Message = t.ExitCode, t.Reason, t.Message
	c.Started, c.Finished = t.StartedAt.Time, t.FinishedAt.Time
}

func (c *Container) unknownEnd() {
	c.ID, c.State, c.ExitCode = "", Exited, 137
	c.Reason = "ContainerStatusUnknown"
	c.Message = "The container could not be located when the pod was deleted.  The container used to be Running"
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
			m.end = &End{Reason: ev.Reason, Message: ev.Message, Grace: ev.Grace, Disrupted: true}
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

// observe merges: what is older than what is known changes nothing.
func (m *Machine) observe(snap Snapshot) {
	for _, sb := range snap.Sandboxes {
		m.seeSandbox(sb)
	}
	for _, c := range snap.Containers {
		m.seeContainer(c)
	}
}

func (m *Machine) seeSandbox(sb Sandbox) {
	if m.buried(sb.ID) {
		return
	}
	for i := range m.sandboxes {
		if known := &m.sandboxes[i]; known.ID == sb.ID {
			known.Ready = known.Ready && sb.Ready
			if len(sb.IPs) > 0 {
				known.IPs = sb.IPs
			}
			return
		}
	}
	sb.seen = m.now
	m.sandboxes = append(m.sandboxes, sb)
	sort.SliceStable(m.sandboxes, func(i, j int) bool {
		a, b := &m.sandboxes[i], &m.sandboxes[j]
		if a.Attempt != b.Attempt {
			return a.Attempt > b.Attempt
		}
		return a.Created.After(b.Created)
	})
}

func (m *Machine) seeContainer(c Container) {
	s := m.slot(c.Name)
	if s == nil || c.ID == "" || m.buried(c.ID) {
		return
	}
	if known := s.find(c.ID); known != nil {
		if c.State >= known.State {
			c.seen = known.seen
			if c.Sandbox == "" {
				c.Sandbox = known.Sandbox
			}
			*known = c
		}
		return
	}
	c.seen = m.now
	// What was only inferred from the status gives way to what is really there.
	keep := s.list[:0:0]
	for _, o := range s.list {
		if !o.lost() || o.RestartCount != c.RestartCount {
			keep = append(keep, o)
		}
	}
	s.list = append(keep, c)
	sort.SliceStable(s.list, func(i, j int) bool {
		a, b := &s.list[i], &s.list[j]
		if a.RestartCount != b.RestartCount {
			return a.RestartCount > b.RestartCount
		}
		return a.Created.After(b.Created)
	})
}

// sweep drops what a complete observation no longer has.
func (m *Machine) sweep(ev Observed) {
	there := map[string]bool{}
	for i := range ev.Snapshot.Sandboxes {
		there[ev.Snapshot.Sandboxes[i].ID] = true
	}
	for i := range ev.Snapshot.Containers {
		there[ev.Snapshot.Containers[i].ID] = true
	}
	var gone []string
	for i := range m.sandboxes {
		if sb := &m.sandboxes[i]; !there[sb.ID] && sb.seen.Before(ev.Since) {
			gone = append(gone, sb.ID)
		}
	}
	for _, s := range m.slots {
		for i := range s.list {
			if c := &s.list[i]; !c.lost() && !there[c.ID] && c.seen.Before(ev.Since) {
				gone = append(gone, c.ID)
			}
		}
	}
	for _, id := range gone {
		m.vanish(id)
	}
}

// vanish takes note that the runtime no longer has a container or sandbox.
func (m *Machine) vanish(id string) {
	m.bury(id)
	for i := range m.sandboxes {
		if m.sandboxes[i].ID == id {
			m.sandboxes = append(m.sandboxes[:i:i], m.sandboxes[i+1:]...)
			break
		}
	}
	s, c := m.byID(id)
	if c == nil {
		return
	}
	if c == s.cur() && c.State != Created {
		// The status still needs it.
		if c.State != Exited {
			c.unknownEnd()
			c.Finished = m.now
		}
		c.ID = ""
		return
	}
	for i := range s.list {
		if s.list[i].ID == id {
			s.list = append(s.list[:i:i], s.list[i+1:]...)
			return
		}
	}
}

func (m *Machine) done(ev Done) {
	if ev.Container != nil {
		m.seeContainer(*ev.Container)
	}
	switch a := ev.Action.(type) {
	case Pull:
		m.pulled(a, ev)
	case Create:
		m.created(a, ev)
	case Start:
		m.startedContainer(a, ev)
	case PostStart:
		m.hooked(a, ev)
	case Kill:
		m.killed(a, ev)
	case RemoveContainer:
		if s := m.slot(a.Container); s != nil {
			s.op = nil
			if ev.Err != nil {
				s.retryAt = m.now.Add(s.retry.next(m.now, m.opts.RetryInitial, m.opts.RetryMax))
				return
			}
			m.drop(s, a.ID)
		}
	case Resize:
		m.resizeDone(a, ev)
	default:
		m.taskDone(ev)
	}
}

// drop forgets a container that we removed.
func (m *Machine) drop(s *slot, id string) {
	m.bury(id)
	for i := range s.list {
		if s.list[i].ID == id {
			s.list = append(s.list[:i:i], s.list[i+1:]...)
			return
		}
	}
}

func (m *Machine) taskDone(ev Done) {
	t := m.tasks[ev.Action]
	if t == nil {
		return
	}
	t.flying = false
	if ev.Err != nil {
		t.at = m.now.Add(t.delay.next(m.now, m.opts.RetryInitial, m.opts.RetryMax))
		return
	}
	delete(m.tasks, ev.Action)
	switch a := ev.Action.(type) {
	case Admit:
		m.admit(ev)
	case Mount:
		m.mounted = true
	case Grant:
		m.grantDone(a, ev)
	case StartSandbox:
		if ev.Sandbox != nil {
			m.seeSandbox(*ev.Sandbox)
		}
	case StopSandbox:
		m.stopped(a.ID)
	case RemoveSandbox:
		m.vanish(a.ID)
		m.dropSandbox(a.ID)
	case Teardown:
		m.stage = max(m.stage, Finished)
	case Delete:
		// The API's own word, a Removed, ends it.
		m.tasks[a] = &task{at: m.now.Add(m.opts.RetryMax)}
	case Cleanup:
		m.stage = Gone
		m.emit(Forget{})
	}
}

func (m *Machine) admit(ev Done) {
	m.started = orElse(m.started, m.now)
	m.admitted = true
	m.stage = max(m.stage, Syncing)
	if ev.Refused {
		m.end = &End{Reason: ev.Reason, Message: ev.Message}
	}
}

func (m *Machine) stopped(id string) {
	for i := range m.sandboxes {
		if m.sandboxes[i].ID == id {
			m.sandboxes[i].stopped, m.sandboxes[i].Ready = true, false
		}
	}
	// Stopping a sandbox ends what ran in it, whether or not its end was seen.
	for _, s := range m.slots {
		for i := range s.list {
			if c := &s.list[i]; c.Sandbox == id && (c.State == Running || c.State == Unknown) {
				c.State, c.Finished, c.ExitCode, c.Reason = Exited, m.now, 137, "Error"
			}
		}
	}
}

func (m *Machine) dropSandbox(id string) {
	for _, s := range m.slots {
		keep := s.list[:0:0]
		for _, c := range s.list {
			if c.Sandbox != id {
				keep = append(keep, c)
			}
		}
		s.list = keep
	}
}

func (m *Machine) pulled(a Pull, ev Done) {
	s := m.slot(a.Container)
	if s == nil {
		return
	}
	s.op = nil
	if ev.Err == nil {
		s.image, s.waiting, s.pull = ev.Image, Waiting{}, backoff{}
		return
	}
	s.waiting = Waiting{ev.Reason, ev.Message}
	s.retryAt = m.now.Add(s.pull.next(m.now, m.opts.ImageInitial, m.opts.ImageMax))
	s.shown = m.now.Add(min(2*time.Second, s.pull.delay/2))
}

func (m *Machine) created(a Create, ev Done) {
	s := m.slot(a.Container)
	if s == nil {
		return
	}
	s.op = nil
	if ev.Err != nil {
		m.failed(s, ev)
		return
	}
	s.retry, s.image = backoff{}, ""
	s.force = false
	if ev.Container != nil {
		s.fresh = ev.Container.ID
	}
}

func (m *Machine) failed(s *slot, ev Done) {
	s.waiting = Waiting{ev.Reason, ev.Message}
	s.retryAt = m.now.Add(s.retry.next(m.now, m.opts.RetryInitial, m.opts.RetryMax))
}

func (m *Machine) startedContainer(a Start, ev Done) {
	s := m.slot(a.Container)
	if s == nil {
		return
	}
	s.op = nil
	if ev.Err != nil {
		m.failed(s, ev)
		// Whatever state it is in, it is not ours to start again.
		s.fresh = ""
		return
	}
	s.waiting = Waiting{}
	if c := s.find(a.ID); c != nil && c.State == Created {
		// The runtime's own word comes with an event; until then, ours.
		c.State, c.Started = Running, m.now
	}
	if s.spec.Lifecycle == nil || s.spec.Lifecycle.PostStart == nil {
		s.hooked = a.ID
	}
}

func (m *Machine) hooked(a PostStart, ev Done) {
	s := m.slot(a.Container)
	if s == nil {
		return
	}
	s.op, s.hooked = nil, a.ID
	if ev.Err == nil || m.killing {
		return
	}
	s.waiting = Waiting{ev.Reason, ev.Message}
	if s.running() && s.kill == nil {
		m.kill(s, m.spare(s), "FailedPostStartHook")
		s.force = m.mayRestart(s)
	}
}

func (m *Machine) killed(a Kill, ev Done) {
	s := m.slot(a.Container)
	if s == nil || s.kill == nil || *s.kill != a {
		return
	}
	s.kill = nil
	if ev.Err != nil {
		s.retryAt = m.now.Add(s.killErr.next(m.now, m.opts.RetryInitial, m.opts.RetryMax))
		return
	}
	s.killErr = backoff{}
	if c := s.find(a.ID); c != nil && c.State != Exited {
		c.State, c.Finished, c.ExitCode, c.Reason = Exited, m.now, 137, "Error"
	}
}
