// SPDX-License-Identifier: Apache-2.0

package podlifecycle

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/pod"
)

// container is one that the runtime has, or had.
type container struct {
	pod.Container
	seen time.Time // when the Machine heard of it first
}

// sandbox is one that the runtime has.
type sandbox struct {
	pod.Sandbox
	seen time.Time // when the Machine heard of it first
	// complete is set once its StartSandbox went through, or where it was there before
	// the Machine. What else is seen is half made, or was refused.
	complete bool
	// stopped is set once StopSandbox went through: a sandbox that is not ready
	// may still hold its network.
	stopped bool
}

// slot is one container of the spec, and what became of it.
type slot struct {
	spec *corev1.Container
	kind pod.Kind
	list []container // newest first
	// op is the Pull, Create, Start, PostStart, RemoveContainer or Resize in flight.
	op pod.Action
	// kill is the Kill in flight; it may overlap a hook.
	kill    *pod.Kill
	killErr backoff
	// stopHook is the preStop hook that is run before a kill whose turn has not come; stopHooked says that it has ended.
	stopHook   *pod.PreStop
	stopHooked bool

	waiting pod.Waiting
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
	// reshaped is the container that was killed to run again with what is granted; "" once the next one runs.
	reshaped string
	// begun is the sandbox in which a sidecar has once been up.
	begun  string
	probes verdicts
}

// verdicts of the probes on one container.
type verdicts struct {
	id                           string
	liveness, readiness, startup *bool
}

func (s *slot) cur() *container {
	if len(s.list) == 0 {
		return nil
	}
	return &s.list[0]
}

func (s *slot) find(id string) *container {
	for i := range s.list {
		if s.list[i].ID == id {
			return &s.list[i]
		}
	}
	return nil
}

func (s *slot) running() bool {
	c := s.cur()
	return c != nil && (c.State == pod.Running || c.State == pod.Unknown)
}

// started tells whether the container is up, in the sense that those after it may start.
func (s *slot) started() bool {
	c := s.cur()
	if c == nil || c.State != pod.Running || s.starting(c) {
		return false
	}
	if s.spec.StartupProbe == nil {
		return true
	}
	return s.probes.id == c.ID && s.probes.startup != nil && *s.probes.startup
}

// starting tells whether the container's start is still in our hands.
func (s *slot) starting(c *container) bool {
	return s.fresh == c.ID && s.hooked != c.ID
}

func (s *slot) ready() bool {
	c := s.cur()
	if c == nil {
		return false
	}
	if s.kind == pod.Init {
		return c.State == pod.Exited && c.ExitCode == 0
	}
	if !s.started() {
		return false
	}
	if s.spec.ReadinessProbe == nil {
		return true
	}
	return s.probes.id == c.ID && s.probes.readiness != nil && *s.probes.readiness
}

func (s *slot) adopt(cs *corev1.ContainerStatus, now time.Time) {
	id := cs.ContainerID
	if _, after, ok := strings.Cut(id, "://"); ok {
		id = after
	}
	if c := s.cur(); c != nil {
		if c.ID == id && c.State == pod.Running {
			ready := cs.Ready
			s.probes = verdicts{id: id, readiness: &ready}
			if cs.Started != nil && *cs.Started {
				s.probes.startup = cs.Started
			}
		}
		if t := cs.LastTerminationState.Terminated; t != nil && c.ID == id && len(s.list) == 1 && c.RestartCount > 0 {
			// The one before is gone from the runtime; its end stays in the status.
			before := container{Container: pod.Container{Name: cs.Name, State: pod.Exited, RestartCount: c.RestartCount - 1}, seen: now}
			before.fromTerminated(t)
			s.list = append(s.list, before)
		}
		return
	}
	lost := container{seen: now, Container: pod.Container{
		Name: cs.Name, State: pod.Exited, RestartCount: cs.RestartCount, Image: cs.Image, ImageID: cs.ImageID,
	}}
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
	s.list = []container{lost}
}

func (c *container) fromTerminated(t *corev1.ContainerStateTerminated) {
	c.ExitCode, c.Reason, c.Message = t.ExitCode, t.Reason, t.Message
	c.Started, c.Finished = t.StartedAt.Time, t.FinishedAt.Time
}

func (c *container) unknownEnd() {
	c.ID, c.State, c.ExitCode = "", pod.Exited, 137
	c.Reason = "ContainerStatusUnknown"
	c.Message = "The container could not be located when the pod was deleted.  The container used to be Running"
}
