// SPDX-License-Identifier: Apache-2.0

package podlifecycle

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/pod"
	"github.com/wasmplane/wasmplane/core/kubelet/podbounds"
)

// plan asks for all that is to be done in the present state.
func (m *Machine) plan() {
	if m.stage < pod.Terminating && m.ending() {
		m.stage = pod.Terminating
	}
	switch m.stage {
	case pod.New:
		m.do(pod.Admit{})
	case pod.Syncing:
		m.sync()
	default: // its time is over: see below, in the order of the stages
	}
	if m.stage == pod.Terminating {
		m.terminate()
	}
	if m.stage == pod.Ended {
		m.do(pod.Teardown{})
	}
	if m.stage == pod.Finished {
		m.finish()
	}
}

// ending tells whether the pod's time is over.
func (m *Machine) ending() bool {
	return m.removed || m.pod.DeletionTimestamp != nil || m.end != nil || m.overdue() || (m.stage == pod.Syncing && m.finished())
}

// overdue ends a pod past its activeDeadlineSeconds.
func (m *Machine) overdue() bool {
	limit := m.pod.Spec.ActiveDeadlineSeconds
	if limit == nil || m.started.IsZero() {
		return false
	}
	at := m.started.Add(time.Duration(*limit) * time.Second)
	if m.now.Before(at) {
		m.wakeAt(at)
		return false
	}
	m.end = &pod.End{Reason: "DeadlineExceeded", Message: "Pod was active on the node longer than the specified deadline"}
	m.emit(pod.Note{Reason: "DeadlineExceeded", Message: m.end.Message})
	return true
}

// finished tells whether all that was to run has run.
func (m *Machine) finished() bool {
	if m.restartingAll() {
		return false
	}
	left := 0
	for _, s := range m.slots {
		if s.op != nil || s.kill != nil {
			return false
		}
		c := s.cur()
		over := c != nil && c.State == pod.Exited && !s.force && !m.restarts(s, c)
		switch {
		case s.kind == pod.Init && over && c.ExitCode != 0:
			return true
		case s.kind == pod.Regular && !over:
			left++
		}
	}
	return left == 0
}

func (m *Machine) restarts(s *slot, c *container) bool {
	return c.again() || pod.ShouldRestart(s.spec, s.kind, m.pod.Spec.RestartPolicy, c.ExitCode)
}

// mayRestart tells whether a container that we kill for its own sake comes back.
func (m *Machine) mayRestart(s *slot) bool {
	switch {
	case s.kind == pod.Ephemeral:
		return false
	case s.kind == pod.Sidecar:
		return true
	case s.spec.RestartPolicy != nil:
		return *s.spec.RestartPolicy != corev1.ContainerRestartPolicyNever
	}
	return m.pod.Spec.RestartPolicy != corev1.RestartPolicyNever
}

// sync brings the pod towards its spec.
func (m *Machine) sync() {
	m.fillGrants()
	if !m.mounted {
		m.level.mounting = podbounds.Of(m.Granted())
		m.do(pod.Mount{})
		return
	}
	if m.restartingAll() {
		m.clearAll()
		return
	}
	m.resize()
	if m.flying(startsSandbox) {
		return // the runtime may tell of it before it is complete
	}
	sb := m.sandbox()
	if sb == nil {
		m.renew()
		return
	}
	for _, s := range m.slots {
		if s.kind == pod.Ephemeral && (s.cur() == nil || s.cur().State == pod.Created) {
			m.advance(s, sb, true)
		}
	}
	if m.initialized(sb) {
		busy := false
		for _, s := range m.slots {
			if s.kind != pod.Regular {
				continue
			}
			m.check(s)
			m.advance(s, sb, !busy)
			busy = busy || s.op != nil || (s.cur() != nil && s.cur().State == pod.Created)
		}
	}
	m.prune()
}

// sandbox is the newest, if it is ready and complete.
func (m *Machine) sandbox() *sandbox {
	if len(m.sandboxes) == 0 || !m.sandboxes[0].Ready || !m.sandboxes[0].complete {
		return nil
	}
	return &m.sandboxes[0]
}

func startsSandbox(a pod.Action) bool {
	_, ok := a.(pod.StartSandbox)
	return ok
}

// renew replaces a sandbox that died, or makes the first one. Init containers
// run again in it.
func (m *Machine) renew() {
	if len(m.sandboxes) > 0 && !m.cleared(m.spareAll) {
		return
	}
	var attempt uint32
	if len(m.sandboxes) > 0 {
		attempt = m.sandboxes[0].Attempt + 1
	}
	if m.now.Before(m.againAt) {
		m.wakeAt(m.againAt)
		return
	}
	a := pod.StartSandbox{Attempt: attempt}
	if m.again.delay == 0 && attempt > 0 {
		m.emit(pod.Note{Reason: "SandboxChanged", Message: "Pod sandbox changed, it will be killed and re-created."})
	}
	m.do(a)
}

// cleared kills what runs in old sandboxes and stops these, and tells when that is through.
func (m *Machine) cleared(grace func(*slot) int64) bool {
	done := true
	for _, s := range m.slots {
		if s.running() {
			done = false
			m.kill(s, grace(s), "Stopping container "+s.spec.Name)
		}
		done = done && s.op == nil && s.kill == nil
	}
	return done && m.stopSandboxes()
}

func (m *Machine) stopSandboxes() bool {
	all := true
	for i := range m.sandboxes {
		if sb := &m.sandboxes[i]; !sb.stopped {
			all = false
			m.do(pod.StopSandbox{ID: sb.ID})
		}
	}
	return all
}

// initialized advances the init containers, in order, and tells when the others may start.
func (m *Machine) initialized(sb *sandbox) bool {
	past := m.regularIn(sb)
	for _, s := range m.slots {
		switch s.kind {
		case pod.Init:
			if c := s.cur(); past || (c != nil && c.Sandbox == sb.ID && c.State == pod.Exited && c.ExitCode == 0) {
				continue
			}
			m.check(s)
			m.advance(s, sb, true)
			return false
		case pod.Sidecar:
			m.check(s)
			m.advance(s, sb, true)
			if s.started() {
				s.begun = sb.ID
			}
			if !past && s.begun != sb.ID {
				return false
			}
		case pod.Regular, pod.Ephemeral: // they come after
		}
	}
	return true
}

// regularIn tells whether initialization was once complete in this sandbox.
func (m *Machine) regularIn(sb *sandbox) bool {
	for _, s := range m.slots {
		if s.kind != pod.Regular {
			continue
		}
		for i := range s.list {
			if s.list[i].Sandbox == sb.ID {
				return true
			}
		}
	}
	return false
}

// check kills a container that runs but should not go on.
func (m *Machine) check(s *slot) {
	c := s.cur()
	if c == nil || c.State != pod.Running || s.kill != nil {
		return
	}
	why, grace := "", m.spare(s)
	force := m.mayRestart(s)
	failed := func(v *bool) bool { return s.probes.id == c.ID && v != nil && !*v }
	switch {
	case c.Hash != "" && c.Hash != pod.Hash(s.spec):
		why, force = fmt.Sprintf("Container %s definition changed", s.spec.Name), true
	case s.spec.LivenessProbe != nil && failed(s.probes.liveness):
		why = fmt.Sprintf("Container %s failed liveness probe", s.spec.Name)
		grace = probeGrace(s.spec.LivenessProbe, grace)
	case s.spec.StartupProbe != nil && failed(s.probes.startup):
		why = fmt.Sprintf("Container %s failed startup probe", s.spec.Name)
		grace = probeGrace(s.spec.StartupProbe, grace)
	default:
		return
	}
	if force {
		why += ", will be restarted"
	}
	m.kill(s, grace, why)
	s.force = force
}

func probeGrace(p *corev1.Probe, def int64) int64 {
	if p.TerminationGracePeriodSeconds != nil {
		return *p.TerminationGracePeriodSeconds
	}
	return def
}

// advance takes a container one step towards running.
func (m *Machine) advance(s *slot, sb *sandbox, mayCreate bool) {
	if s.op != nil || s.kill != nil {
		return
	}
	c := s.cur()
	if c != nil && c.again() && !m.gate(s, c) {
		return
	}
	if c != nil && c.Sandbox != sb.ID && s.kind == pod.Init && c.State == pod.Exited {
		c = nil // a new sandbox is a new initialization
	}
	if c != nil {
		switch c.State {
		case pod.Running:
			m.follow(s, c)
			return
		case pod.Unknown:
			// It may run still: never two of a name.
			m.kill(s, minGrace, fmt.Sprintf("Container is in %q state, try killing it before restart", "unknown"))
			return
		case pod.Created:
			m.begin(s, c, sb)
			return
		case pod.Exited:
			if !s.force && !m.restarts(s, c) {
				return
			}
			if !m.gate(s, c) {
				return
			}
		}
	}
	m.make(s, sb, mayCreate)
}

// follow runs the hook of a container that we started.
func (m *Machine) follow(s *slot, c *container) {
	if s.starting(c) {
		s.op = pod.PostStart{Container: s.spec.Name, ID: c.ID}
		m.emit(s.op)
	}
}

// begin starts what we created; what was created before us may be stale and is made anew.
func (m *Machine) begin(s *slot, c *container, sb *sandbox) {
	if m.delayed(s) {
		return
	}
	if s.fresh == c.ID && c.Sandbox == sb.ID {
		s.op = pod.Start{Container: s.spec.Name, ID: c.ID}
	} else {
		s.op = pod.RemoveContainer{Container: s.spec.Name, ID: c.ID}
	}
	m.emit(s.op)
}

func (m *Machine) delayed(s *slot) bool {
	if m.now.Before(s.retryAt) {
		m.wakeAt(s.retryAt)
		return true
	}
	return false
}

// make pulls the image and creates the container.
func (m *Machine) make(s *slot, sb *sandbox, mayCreate bool) {
	if m.delayed(s) {
		m.showPullBackOff(s)
		return
	}
	if s.image == "" {
		s.op = pod.Pull{Container: s.spec.Name}
		m.emit(s.op)
		return
	}
	if !mayCreate || m.level.growing {
		return
	}
	create := pod.Create{
		Container: s.spec.Name, Sandbox: sb.ID, RestartCount: s.nextCount(), Image: s.image,
		Resources: s.granted(), Level: m.level.granted,
	}
	if c := s.cur(); c != nil {
		create.Former = c.ID
	}
	s.op = create
	m.emit(s.op)
}

func (s *slot) nextCount() int32 {
	if c := s.cur(); c != nil {
		return c.RestartCount + 1
	}
	return 0
}

const errImagePull = "ErrImagePull"

// showPullBackOff turns a pull error into a back-off after a moment in which it can be read.
func (m *Machine) showPullBackOff(s *slot) {
	if s.waiting.Reason != errImagePull {
		return
	}
	if m.now.Before(s.shown) {
		m.wakeAt(s.shown)
		return
	}
	msg := fmt.Sprintf("Back-off pulling image %q", s.spec.Image)
	why := errImagePull + ": " + s.waiting.Message
	if s.image != "" { // the container's own is there
		msg, why = "Back-off pulling the image of a volume", s.waiting.Message
	}
	m.emit(pod.Note{Reason: "BackOff", Message: msg, Container: s.spec.Name})
	m.emit(pod.Note{Warning: true, Reason: "Failed", Message: "Error: ImagePullBackOff", Container: s.spec.Name})
	s.waiting = pod.Waiting{Reason: "ImagePullBackOff", Message: msg + ": " + why}
}

func (c *container) gateKey() string { return c.ID + c.Finished.String() }

// gate holds back a container that exited until its back-off has passed.
func (m *Machine) gate(s *slot, c *container) bool {
	key := c.gateKey()
	if s.gated == key {
		return true
	}
	if c.Finished.Sub(s.crash.last) > 2*m.opts.CrashMax {
		s.crash = backoff{}
	}
	at := c.Finished.Add(s.crash.delay)
	if s.crash.delay > 0 && m.now.Before(at) {
		m.wakeAt(at)
		if s.noted != key {
			s.noted = key
			m.emit(pod.Note{
				Warning: true, Reason: "BackOff", Container: s.spec.Name,
				Message: fmt.Sprintf("Back-off restarting failed container %s in pod %s", s.spec.Name, pod.Format(m.pod)),
			})
			s.waiting = pod.Waiting{
				Reason:  "CrashLoopBackOff",
				Message: fmt.Sprintf("back-off %s restarting failed container=%s pod=%s", s.crash.delay, s.spec.Name, pod.Format(m.pod)),
			}
		}
		return false
	}
	s.crash.next(m.now, m.opts.CrashInitial, m.opts.CrashMax)
	s.gated = key
	return true
}

// prune keeps the container and its predecessor, for its logs.
func (m *Machine) prune() {
	const keep = 2
	for _, s := range m.slots {
		if len(s.list) <= keep || s.op != nil || s.kill != nil {
			continue
		}
		oldest := s.list[len(s.list)-1]
		if oldest.Lost() {
			s.list = s.list[:len(s.list)-1]
			continue
		}
		if oldest.State == pod.Exited || oldest.State == pod.Created {
			if m.delayed(s) {
				continue
			}
			s.op = pod.RemoveContainer{Container: s.spec.Name, ID: oldest.ID}
			m.emit(s.op)
		}
	}
}

// kill asks for a container's end, or for a sooner one.
func (m *Machine) kill(s *slot, grace int64, why string) {
	if m.delayedKill(s) {
		return
	}
	k := pod.Kill{Container: s.spec.Name, ID: s.cur().ID, Grace: grace, Message: why}
	if s.kill != nil {
		if s.kill.ID == k.ID && s.kill.Grace <= grace {
			return
		}
		k.NoHook = true
	}
	if s.stopHook != nil && s.stopHook.ID == k.ID {
		k.NoHook = true
	}
	s.kill = &k
	m.emit(k)
}

func (m *Machine) delayedKill(s *slot) bool {
	if s.killErr.delay > 0 && m.now.Before(s.retryAt) {
		m.wakeAt(s.retryAt)
		return true
	}
	return false
}

// spare is the time that a container gets when it is killed for its own sake.
func (m *Machine) spare(s *slot) int64 { return m.spareAll(s) }

func (m *Machine) spareAll(*slot) int64 {
	if g := m.pod.Spec.TerminationGracePeriodSeconds; g != nil {
		return max(*g, 1)
	}
	return 30
}

// grace is the time that the pod gets to end: what its deletion says, else its spec.
func (m *Machine) grace() int64 {
	g := m.spareAll(nil)
	if m.end != nil && m.end.Grace != nil {
		g = *m.end.Grace
	}
	if m.pod.DeletionTimestamp != nil && m.pod.DeletionGracePeriodSeconds != nil {
		g = min(g, *m.pod.DeletionGracePeriodSeconds)
		if m.end == nil {
			g = *m.pod.DeletionGracePeriodSeconds
		}
	}
	return max(g, 1)
}

// terminate kills all, sidecars after the others and in reverse order, and stops the sandboxes.
func (m *Machine) terminate() {
	if !m.killing {
		m.killing, m.killStart, m.killGrace = true, m.now, m.grace()
	}
	m.killGrace = min(m.killGrace, m.grace())
	if !m.cancelled {
		m.cancelled = true
		m.emit(pod.Cancel{})
	}
	busy := m.killOthers()
	busy = m.killSidecars(busy) || busy
	for _, s := range m.slots {
		busy = busy || s.op != nil || s.kill != nil
	}
	busy = busy || m.flying(func(a pod.Action) bool {
		switch a.(type) {
		case pod.StartSandbox, pod.Mount, pod.Admit:
			return true
		}
		return false
	})
	if !busy && m.stopSandboxes() {
		m.stage = pod.Ended
	}
}

func (m *Machine) killOthers() (running bool) {
	for _, s := range m.slots {
		if s.kind != pod.Sidecar && s.running() {
			running = true
			m.kill(s, m.killGrace, "Stopping container "+s.spec.Name)
		}
	}
	return running
}

// killSidecars lets each sidecar live while one before whom it must not go still runs,
// until the pod's time is up. The preStop hooks of those that wait run meanwhile, as upstream's do.
func (m *Machine) killSidecars(blocked bool) (running bool) {
	deadline := m.killStart.Add(time.Duration(m.killGrace) * time.Second)
	for i := len(m.slots) - 1; i >= 0; i-- {
		s := m.slots[i]
		if s.kind != pod.Sidecar || !s.running() {
			continue
		}
		running = true
		left := int64(deadline.Sub(m.now) / time.Second)
		if m.now.Before(deadline) {
			if blocked {
				m.prepareStop(s, left)
			}
			if blocked || s.stopHook != nil && s.stopHook.ID == s.cur().ID && !s.stopHooked {
				blocked = true
				m.wakeAt(deadline)
				continue
			}
		}
		blocked = true
		if s.kill == nil || s.kill.Grace > m.killGrace {
			m.kill(s, max(left, min(minGrace, m.killGrace)), "Stopping container "+s.spec.Name)
		}
	}
	return running
}

// prepareStop runs the preStop hook of a container whose turn to be killed has not come, once.
func (m *Machine) prepareStop(s *slot, left int64) {
	if s.spec.Lifecycle == nil || s.spec.Lifecycle.PreStop == nil || s.kill != nil || left < 1 {
		return
	}
	if s.stopHook != nil && s.stopHook.ID == s.cur().ID {
		return
	}
	s.stopHook = &pod.PreStop{Container: s.spec.Name, ID: s.cur().ID, Grace: left, Message: "Stopping container " + s.spec.Name}
	s.stopHooked = false
	m.emit(*s.stopHook)
}

// finish lets go of what is left, once nobody can ask for it any more.
func (m *Machine) finish() {
	if !m.removed {
		switch {
		case m.pod.DeletionTimestamp != nil:
			m.do(pod.Delete{})
		case m.end != nil && m.end.Emptied:
			m.removeContainers()
		}
		return
	}
	if len(m.sandboxes) == 0 { // They take their containers along; those without one go alone.
		if !m.removeContainers() {
			m.do(pod.Cleanup{})
		}
		return
	}
	for i := range m.sandboxes {
		m.do(pod.RemoveSandbox{ID: m.sandboxes[i].ID})
	}
}

// removeContainers removes the containers that are there, one of each name at a time. It reports whether there are any.
func (m *Machine) removeContainers() (left bool) {
	for _, s := range m.slots {
		left = left || s.op != nil
		for i := range s.list {
			c := &s.list[i]
			if c.Lost() {
				continue
			}
			left = true
			if s.op == nil && !m.delayed(s) {
				s.op = pod.RemoveContainer{Container: s.spec.Name, ID: c.ID}
				m.emit(s.op)
			}
		}
	}
	return left
}
