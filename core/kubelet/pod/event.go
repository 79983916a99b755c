// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/podbounds"
)

// Event is something that was seen. Each is one of the types below.
type Event interface{ event() }

// Updated carries the pod as the API has it now.
type Updated struct{ Pod *corev1.Pod }

// Removed says that the API no longer has the pod. Pod, if known, is its last state.
type Removed struct{ Pod *corev1.Pod }

// Tick says that the time asked for has come.
type Tick struct{}

// Observed carries what the runtime holds. It is merged: containers never go
// back in state. Complete observations also tell what is no longer there, of
// what was known before the observation began.
type Observed struct {
	Snapshot Snapshot
	Complete bool
	Since    time.Time
}

// Deleted says that the runtime no longer has a container or sandbox.
type Deleted struct{ ID string }

// Probed carries a probe's new verdict on a container.
type Probed struct {
	Container string // ID
	Probe     Probe
	Success   bool
	Message   string
}

// Probe kinds.
type Probe int

// Probe kinds.
const (
	Liveness Probe = iota
	Readiness
	Startup
)

func (p Probe) String() string { return [...]string{"Liveness", "Readiness", "Startup"}[p] }

// Evicted asks for the pod's end for the node's sake.
type Evicted struct {
	Reason, Message string
	// Grace in seconds; nil is the pod's own.
	Grace *int64
	// Empty has its containers removed as soon as they have ended: their files are to go.
	Empty bool
}

// Done says how an action ended. Action is the one that was asked for.
type Done struct {
	Action Action
	Err    error
	// Reason and Message of the failure to show in the container's status.
	Reason, Message string
	// Sandbox after StartSandbox.
	Sandbox *Sandbox
	// Container after Create, Start and Kill.
	Container *Container
	// Image that Pull found: the reference to create from.
	Image string
	// Refused, with Reason and Message, after Admit, and after a Mount that will never succeed here.
	Refused bool
}

func (Updated) event()  {}
func (Removed) event()  {}
func (Tick) event()     {}
func (Observed) event() {}
func (Deleted) event()  {}
func (Probed) event()   {}
func (Evicted) event()  {}
func (Done) event()     {}

// Action is something to do. Each is one of the types below; all but Cancel,
// Note and Forget are answered by Done.
type Action interface{ action() }

// Admit asks whether the pod may run here.
type Admit struct{}

// Mount makes the pod's directories and volumes ready.
type Mount struct{}

// StartSandbox runs a sandbox.
type StartSandbox struct{ Attempt uint32 }

// StopSandbox stops one, and what runs in it.
type StopSandbox struct{ ID string }

// RemoveSandbox removes one, with its containers.
type RemoveSandbox struct{ ID string }

// Pull makes a container's image present.
type Pull struct{ Container string }

// Create makes a container.
type Create struct {
	Container    string
	Sandbox      string
	RestartCount int32
	Image        string
	// Former is the ID of the container that it replaces; none of its processes may be left.
	Former string
	// Resources that are granted to it, and Level that are to its pod as a whole.
	Resources, Level *corev1.ResourceRequirements
}

// Start starts a container that was created.
type Start struct{ Container, ID string }

// PostStart runs a container's hook.
type PostStart struct{ Container, ID string }

// PreStop runs the hook of a container that has to wait for others before it is killed. It has Grace seconds.
type PreStop struct {
	Container, ID string
	Grace         int64
	// Message for the Killing event.
	Message string
}

// Kill ends a container: its preStop hook, the stop signal, KILL after Grace seconds.
type Kill struct {
	Container, ID string
	Grace         int64
	// Message for the Killing event.
	Message string
	// NoHook leaves out the preStop hook: it has run, or the container is already being killed.
	NoHook bool
}

// RemoveContainer removes a dead container.
type RemoveContainer struct {
	Container, ID string
	// Again where it is removed for its whole pod to start again.
	Again bool
}

// Grant asks whether the pod's changed resources fit on the node. Refused, the
// reason is Deferred or Infeasible.
type Grant struct{ Generation int64 }

// Resize changes the resources of a running container.
type Resize struct {
	Container, ID string
	From, To      *corev1.ResourceRequirements
	// FromLevel and ToLevel are those of its pod as a whole: limits that it has not are these.
	FromLevel, ToLevel *corev1.ResourceRequirements
}

// Bound changes the bounds of the pod's cgroup.
type Bound struct{ From, To podbounds.Bounds }

// Teardown unmounts the volumes and removes cgroups.
type Teardown struct{}

// Delete removes the pod from the API, after its last status was written.
type Delete struct{}

// Cleanup removes logs and directories.
type Cleanup struct{}

// Cancel gives up pulls and hooks that are in flight.
type Cancel struct{}

// Note is an event for the pod's readers.
type Note struct {
	Warning         bool
	Reason, Message string
	// Container that it is about, if any.
	Container string
}

// Forget says that nothing is left of the pod.
type Forget struct{}

func (Admit) action()           {}
func (Mount) action()           {}
func (StartSandbox) action()    {}
func (StopSandbox) action()     {}
func (RemoveSandbox) action()   {}
func (Pull) action()            {}
func (Create) action()          {}
func (Start) action()           {}
func (PostStart) action()       {}
func (PreStop) action()         {}
func (Kill) action()            {}
func (RemoveContainer) action() {}
func (Grant) action()           {}
func (Resize) action()          {}
func (Bound) action()           {}
func (Teardown) action()        {}
func (Delete) action()          {}
func (Cleanup) action()         {}
func (Cancel) action()          {}
func (Note) action()            {}
func (Forget) action()          {}
