// SPDX-License-Identifier: Apache-2.0

// Package pod has what is said of one pod on its node: what the runtime holds of it, what was seen
// (events), what is to be done (actions), and how it stands (View). core/kubelet/podlifecycle decides
// by these, the kubelet and its engines carry out.
package pod

import (
	"encoding/json"
	"hash/fnv"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Annotations that the kubelet puts on containers, in upstream's words, so that
// crictl and a kubelet of another make understand what they find.
const (
	HashAnnotation                     = "io.kubernetes.container.hash"
	RestartCountAnnotation             = "io.kubernetes.container.restartCount"
	TerminationMessagePathAnnotation   = "io.kubernetes.container.terminationMessagePath"
	TerminationMessagePolicyAnnotation = "io.kubernetes.container.terminationMessagePolicy"
	PreStopHandlerAnnotation           = "io.kubernetes.container.preStopHandler"
	PortsAnnotation                    = "io.kubernetes.container.ports"
	DeletionGracePeriodAnnotation      = "io.kubernetes.pod.deletionGracePeriod"
	TerminationGracePeriodAnnotation   = "io.kubernetes.pod.terminationGracePeriod"
	NameLabel                          = "io.kubernetes.pod.name"
	NamespaceLabel                     = "io.kubernetes.pod.namespace"
	UIDLabel                           = "io.kubernetes.pod.uid"
	ContainerNameLabel                 = "io.kubernetes.container.name"
	// KindAnnotation tells what a container is to its pod; the CRI has no word for it.
	KindAnnotation = "kubelet.wasmplane.dev/container-kind"
)

// Kind of a container.
type Kind int

// Kinds of containers, in the order in which they start.
const (
	Init Kind = iota
	Sidecar
	Regular
	Ephemeral
)

func (k Kind) String() string {
	return [...]string{"init", "sidecar", "regular", "ephemeral"}[k]
}

// Stage of a pod on its node.
type Stage int

// Stages, in order; a pod never goes back.
const (
	// New pods wait for admission.
	New Stage = iota
	// Syncing pods run, or try to.
	Syncing
	// Terminating pods have their containers killed.
	Terminating
	// Ended pods run nothing any more; their volumes and cgroups go.
	Ended
	// Finished pods hold nothing but dead containers and logs, kept for their readers.
	Finished
	// Gone pods are to be forgotten.
	Gone
)

func (s Stage) String() string {
	return [...]string{"new", "syncing", "terminating", "ended", "finished", "gone"}[s]
}

// Container is what the runtime said about one container.
type Container struct {
	ID, Name, Sandbox string
	State             State
	RestartCount      int32
	Hash              string
	Created           time.Time
	Started           time.Time
	Finished          time.Time
	ExitCode          int32
	Reason            string
	Message           string
	Image, ImageID    string
	LogPath           string
	User              *corev1.ContainerUser
	Resources, Level  *corev1.ResourceRequirements
	StopSignal        string
}

// Lost tells a container that is known only from its pod's status: the runtime has it no longer.
func (c *Container) Lost() bool { return c.ID == "" }

// State of a container in the runtime. They are ordered: a container never goes back.
type State int

// States of a container.
const (
	Created State = iota
	Running
	Unknown
	Exited
)

// Sandbox is what the runtime said about one sandbox.
type Sandbox struct {
	ID      string
	Attempt uint32
	Ready   bool
	Created time.Time
	IPs     []string
}

// Snapshot is what the runtime holds of one pod.
type Snapshot struct {
	Sandboxes  []Sandbox
	Containers []Container
	// Static tells that its sandbox was made for a pod of a file.
	Static bool
}

// Waiting says why a container does not run.
type Waiting struct{ Reason, Message string }

// Hash of the parts of a container whose change restarts it.
func Hash(c *corev1.Container) string {
	h := fnv.New64a()
	raw, err := json.Marshal([]string{c.Name, c.Image})
	if err != nil {
		return ""
	}
	_, _ = h.Write(raw)
	return strconv.FormatUint(h.Sum64(), 16)
}

// IsSidecar tells init containers that run beside the others.
func IsSidecar(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// HostNetwork tells a pod that shares its node's network.
func HostNetwork(p *corev1.Pod) bool { return p.Spec.HostNetwork }

// OwnUsers tells a pod that asks for a user namespace of its own: its root is not the machine's.
func OwnUsers(p *corev1.Pod) bool { return p.Spec.HostUsers != nil && !*p.Spec.HostUsers }

// ShouldRestart tells whether a container that exited with code is to run again,
// by its own rules, its own policy, or its pod's.
func ShouldRestart(c *corev1.Container, kind Kind, policy corev1.RestartPolicy, code int32) bool {
	switch kind {
	case Ephemeral:
		return false
	case Sidecar:
		return true
	case Regular, Init: // as follows
	}
	if c.RestartPolicy != nil {
		for i := range c.RestartPolicyRules {
			if ruleMatches(&c.RestartPolicyRules[i], code) {
				return true
			}
		}
		switch *c.RestartPolicy {
		case corev1.ContainerRestartPolicyAlways:
			return kind != Init || code != 0
		case corev1.ContainerRestartPolicyOnFailure:
			return code != 0
		case corev1.ContainerRestartPolicyNever:
			return false
		}
	}
	switch {
	case policy == corev1.RestartPolicyNever:
		return false
	case policy == corev1.RestartPolicyOnFailure || kind == Init:
		return code != 0
	}
	return true
}

func ruleMatches(r *corev1.ContainerRestartRule, code int32) bool {
	if r.ExitCodes == nil {
		return false
	}
	in := false
	for _, v := range r.ExitCodes.Values {
		in = in || v == code
	}
	switch r.ExitCodes.Operator {
	case corev1.ContainerRestartRuleOnExitCodesOpIn:
		return in
	case corev1.ContainerRestartRuleOnExitCodesOpNotIn:
		return !in
	}
	return false
}

// Format names a pod in messages as upstream does.
func Format(p *corev1.Pod) string {
	return p.Name + "_" + p.Namespace + "(" + string(p.UID) + ")"
}

// Key identifies a pod and outlives a namesake.
type Key = types.UID
