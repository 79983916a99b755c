// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/podbounds"
)

// View is what a pod's status is made of.
type View struct {
	Pod   *corev1.Pod
	Stage Stage
	// End is set when the node ended the pod.
	End *End
	// Started is when the node took the pod on; zero before.
	Started time.Time
	// Sandbox is the newest; nil before the first.
	Sandbox    *Sandbox
	Containers []ContainerView
	Resizing   Resizing
	// Granted is the pod with the resources that the node grants it; Bounds are those of its cgroup.
	Granted *corev1.Pod
	Bounds  podbounds.Bounds
	// RestartingAll while all containers are ended and removed, for the pod to start again in place.
	RestartingAll bool
}

// ContainerView is one container of the spec and what became of it.
type ContainerView struct {
	Spec *corev1.Container
	Kind Kind
	// Current and Last are the newest container of that name and the one before; nil if there are none.
	Current, Last *Container
	// Waiting says what holds the container up, if anything does.
	Waiting Waiting
	// Restarting tells that the container that exited is to run again.
	Restarting bool
	// Starting tells that Current runs but its start is not complete.
	Starting       bool
	Started, Ready bool
	// Granted are the resources that the node grants the container, Applied those that Current runs with.
	Granted, Applied *corev1.ResourceRequirements
}

// Kept tells whether the runtime has the container, or one of its name before it.
func (c ContainerView) Kept() bool {
	return c.Current != nil && !c.Current.Lost() || c.Last != nil && !c.Last.Lost()
}

// Target is a container whose probes are to run.
type Target struct {
	Spec    *corev1.Container
	Kind    Kind
	ID      string
	Started time.Time
	// StartupDone tells that its startup probe, if any, has succeeded.
	StartupDone bool
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

// Resizing says how a change of a running pod's resources stands.
type Resizing struct {
	// Pending is why it cannot begin: Deferred or Infeasible; empty if it can.
	Pending, Message string
	// Active while it is carried out; Failed is why that does not succeed.
	Active bool
	Failed string
	// Unanswered while the node has not said whether it grants what this generation
	// of the pod asks for: nobody may take it for observed.
	Unanswered bool
}
