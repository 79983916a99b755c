// SPDX-License-Identifier: Apache-2.0

// Package status makes a pod's status, in upstream's form and words, from what
// is known of it on the node, and writes it to the API: coalesced, in order,
// retried, and never again once it is written.
//
// Generate is pure. Conditions that others own are left alone.
package status

import (
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/wasmplane/wasmplane/core/kubelet/pod"
)

// Node is what a pod's status takes from its node.
type Node struct {
	// HostIPs of the node, the primary one first.
	HostIPs []string
	// Runtime prefixes container IDs: "containerd".
	Runtime string
}

// Reasons that containers wait for before anything else is known.
const (
	ContainerCreating = "ContainerCreating"
	PodInitializing   = "PodInitializing"
)

// Generate makes the status of a pod from v; prev is the last one made or, at
// first, the API's: times of transition come from it.
func Generate(v pod.View, prev *corev1.PodStatus, node Node, now time.Time) corev1.PodStatus {
	p := v.Pod
	st := corev1.PodStatus{
		QOSClass:                    QOS(p),
		NominatedNodeName:           p.Status.NominatedNodeName,
		Resize:                      p.Status.Resize,
		ObservedGeneration:          p.Generation,
		ResourceClaimStatuses:       p.Status.ResourceClaimStatuses,
		ExtendedResourceClaimStatus: p.Status.ExtendedResourceClaimStatus,
	}
	if v.Resizing.Unanswered {
		// With this generation a reader would take a change of resources, of which the
		// status says nothing yet, for done.
		st.ObservedGeneration = prev.ObservedGeneration
	}
	if !v.Started.IsZero() {
		t := metav1.NewTime(v.Started).Rfc3339Copy()
		st.StartTime = &t
		addresses(&st, v, node)
	}
	if !refused(v) {
		containers(&st, v, node)
	}
	ended := v.Stage >= pod.Ended
	st.Phase = phase(v, &st, ended)
	switch {
	case v.End != nil:
		st.Phase, st.Reason, st.Message = corev1.PodFailed, v.End.Reason, v.End.Message
	case terminal(p.Status.Phase):
		st.Phase = p.Status.Phase
		fallthrough
	default:
		if st.Phase == p.Status.Phase {
			st.Reason, st.Message = p.Status.Reason, p.Status.Message
		}
	}
	// A phase that is final is told once nothing runs any more: who waits for it
	// may then take over what the pod held.
	if terminal(st.Phase) && !ended && !terminal(p.Status.Phase) {
		st.Phase = holdPhase(prev.Phase, p.Status.Phase)
	}
	whole(&st, v)
	conditions(&st, v, prev, now)
	return st
}

// whole tells of the resources of the pod as a whole: those that it is granted, and those that its cgroup has.
func whole(st *corev1.PodStatus, v pod.View) {
	if v.Granted == nil || v.Started.IsZero() {
		return
	}
	opts := resourcehelper.PodResourcesOptions{}
	requests := resourcehelper.PodRequests(v.Granted, opts)
	st.Resources = v.Granted.Spec.Resources.DeepCopy()
	if st.Resources == nil {
		st.Resources = &corev1.ResourceRequirements{}
	}
	if len(requests) > 0 {
		st.AllocatedResources = requests
	}
	if st.Phase != corev1.PodRunning {
		st.Resources.Requests, st.Resources.Limits = requests, resourcehelper.PodLimits(v.Granted, opts)
		return
	}
	has := v.Bounds.Resources()
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		overlay(&st.Resources.Requests, has.Requests, name)
		overlay(&st.Resources.Limits, has.Limits, name)
	}
}

// overlay takes over what is there, in the form that it has if its value is the same.
func overlay(to *corev1.ResourceList, from corev1.ResourceList, name corev1.ResourceName) {
	q, ok := from[name]
	old, had := (*to)[name]
	switch {
	case !ok || had && old.Cmp(q) == 0:
	case *to == nil:
		*to = corev1.ResourceList{name: q}
	default:
		(*to)[name] = q
	}
}

// refused says that the pod was ended before anything of it was made. Its status
// lists no containers then: one that waits would be shown as the pod's state, in
// place of the reason why there will never be any.
func refused(v pod.View) bool {
	if v.End == nil || v.Sandbox != nil {
		return false
	}
	for i := range v.Containers {
		if v.Containers[i].Current != nil {
			return false
		}
	}
	return true
}

func holdPhase(prev, api corev1.PodPhase) corev1.PodPhase {
	for _, ph := range []corev1.PodPhase{prev, api} {
		if ph != "" && !terminal(ph) {
			return ph
		}
	}
	return corev1.PodPending
}

func terminal(ph corev1.PodPhase) bool { return ph == corev1.PodSucceeded || ph == corev1.PodFailed }

func addresses(st *corev1.PodStatus, v pod.View, node Node) {
	for _, ip := range node.HostIPs {
		st.HostIPs = append(st.HostIPs, corev1.HostIP{IP: ip})
	}
	var ips []string
	if pod.HostNetwork(v.Pod) {
		ips = node.HostIPs
	} else if v.Sandbox != nil {
		ips = v.Sandbox.IPs
	}
	if len(ips) == 0 && v.Stage >= pod.Terminating {
		// Who ended keeps the address that it had.
		st.PodIPs = v.Pod.Status.PodIPs
	}
	for _, ip := range ips {
		st.PodIPs = append(st.PodIPs, corev1.PodIP{IP: ip})
	}
	if len(st.HostIPs) > 0 {
		st.HostIP = st.HostIPs[0].IP
	}
	if len(st.PodIPs) > 0 {
		st.PodIP = st.PodIPs[0].IP
	}
}

func containers(st *corev1.PodStatus, v pod.View, node Node) {
	initDone := true
	for i := range v.Containers {
		c := &v.Containers[i]
		if c.Kind == pod.Init && !c.Ready {
			initDone = false
		}
	}
	begun := false
	for i := range v.Containers {
		begun = begun || (v.Containers[i].Kind == pod.Regular && v.Containers[i].Current != nil)
	}
	for i := range v.Containers {
		c := &v.Containers[i]
		s := container(c, node, v.Pod.Spec.RestartPolicy)
		if s.State.Waiting != nil && s.State.Waiting.Reason == "" {
			s.State.Waiting.Reason = ContainerCreating
			if len(v.Pod.Spec.InitContainers) > 0 {
				s.State.Waiting.Reason = PodInitializing
			}
		}
		if c.Kind == pod.Init && !initDone && begun && c.Current == nil {
			s.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
				Reason:  "Completed",
				Message: "Unable to get init container status from container runtime and pod has been initialized, treat it as exited normally",
			}}
			s.Ready = true
		}
		switch c.Kind {
		case pod.Init, pod.Sidecar:
			st.InitContainerStatuses = append(st.InitContainerStatuses, s)
		case pod.Regular:
			st.ContainerStatuses = append(st.ContainerStatuses, s)
		case pod.Ephemeral:
			st.EphemeralContainerStatuses = append(st.EphemeralContainerStatuses, s)
		}
	}
	for _, list := range [][]corev1.ContainerStatus{st.ContainerStatuses, st.EphemeralContainerStatuses} {
		sort.Slice(list, func(i, j int) bool { return list[i].Name < list[j].Name })
	}
}

func container(c *pod.ContainerView, node Node, policy corev1.RestartPolicy) corev1.ContainerStatus {
	s := corev1.ContainerStatus{Name: c.Spec.Name, Image: c.Spec.Image, Ready: c.Ready, VolumeMounts: volumeMounts(c.Spec)}
	if c.Kind != pod.Ephemeral || c.Current != nil {
		started := c.Started
		s.Started = &started
	}
	cur := c.Current
	if cur == nil {
		s.State.Waiting = &corev1.ContainerStateWaiting{Reason: c.Waiting.Reason, Message: c.Waiting.Message}
		return s
	}
	s.RestartCount = cur.RestartCount
	if cur.Image != "" {
		s.Image = cur.Image
	}
	s.ImageID = cur.ImageID
	s.ContainerID = containerID(node, cur)
	s.User = cur.User
	s.Resources = c.Granted.DeepCopy()
	if cur.State == pod.Running && c.Applied != nil {
		s.Resources = c.Applied.DeepCopy()
	}
	if c.Granted != nil {
		s.AllocatedResources = c.Granted.Requests
	}
	if cur.StopSignal != "" {
		sig := corev1.Signal(cur.StopSignal)
		s.StopSignal = &sig
	}
	if c.Last != nil {
		s.LastTerminationState.Terminated = terminated(node, c.Last)
	}
	switch {
	case cur.State == pod.Created || c.Starting:
		s.State.Waiting = &corev1.ContainerStateWaiting{Reason: c.Waiting.Reason, Message: c.Waiting.Message}
	case cur.State == pod.Running || cur.State == pod.Unknown:
		s.State.Running = &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(cur.Started).Rfc3339Copy()}
	case c.Restarting && (c.Waiting.Reason != "" || !pod.ShouldRestart(c.Spec, c.Kind, policy, cur.ExitCode)):
		// The API lets no container leave its end that its pod's policy would not start again. One that is killed for a
		// probe that failed, and ends well, is started again all the same: its end is not told as the last of it.
		s.LastTerminationState.Terminated = terminated(node, cur)
		s.State.Waiting = &corev1.ContainerStateWaiting{Reason: c.Waiting.Reason, Message: c.Waiting.Message}
	default:
		s.State.Terminated = terminated(node, cur)
	}
	return s
}

func volumeMounts(c *corev1.Container) []corev1.VolumeMountStatus {
	var out []corev1.VolumeMountStatus
	for i := range c.VolumeMounts {
		m := &c.VolumeMounts[i]
		st := corev1.VolumeMountStatus{Name: m.Name, MountPath: m.MountPath, ReadOnly: m.ReadOnly}
		if m.ReadOnly {
			mode := corev1.RecursiveReadOnlyDisabled
			st.RecursiveReadOnly = &mode
		}
		out = append(out, st)
	}
	return out
}

func containerID(node Node, c *pod.Container) string {
	if c.ID == "" {
		return ""
	}
	return node.Runtime + "://" + c.ID
}

func terminated(node Node, c *pod.Container) *corev1.ContainerStateTerminated {
	if c.State != pod.Exited {
		return nil
	}
	t := &corev1.ContainerStateTerminated{
		ExitCode: c.ExitCode, Reason: c.Reason, Message: c.Message,
		StartedAt: stamp(c.Started), FinishedAt: stamp(c.Finished), ContainerID: containerID(node, c),
	}
	if t.Reason == "" {
		t.Reason = "Completed"
		if t.ExitCode != 0 {
			t.Reason = "Error"
		}
	}
	return t
}

func stamp(t time.Time) metav1.Time {
	if t.IsZero() {
		return metav1.Time{}
	}
	return metav1.NewTime(t).Rfc3339Copy()
}

// phase in upstream's rules: pending until all regular containers have once
// been started, running while one runs or will again, else the verdict.
func phase(v pod.View, st *corev1.PodStatus, ended bool) corev1.PodPhase {
	initialized := false
	for i := range v.Containers {
		c := &v.Containers[i]
		initialized = initialized || (c.Kind == pod.Regular && c.Current != nil && c.Current.State != pod.Created)
	}
	byName := map[string]*corev1.ContainerStatus{}
	for _, list := range [][]corev1.ContainerStatus{st.InitContainerStatuses, st.ContainerStatuses} {
		for i := range list {
			byName[list[i].Name] = &list[i]
		}
	}
	var pending, waiting, running, stopped, over, succeeded int
	for i := range v.Containers {
		c, s := &v.Containers[i], byName[v.Containers[i].Spec.Name]
		if c.Kind == pod.Ephemeral || s == nil {
			continue
		}
		exit := exitOf(s)
		switch c.Kind {
		case pod.Init:
			switch {
			case exit == nil:
				pending++
			case exit.ExitCode != 0 && !again(v, c, exit):
				return corev1.PodFailed
			case s.State.Terminated == nil && !s.Ready && !initialized:
				pending++
			case exit.ExitCode != 0 && !initialized:
				pending++
			}
		case pod.Sidecar:
			switch {
			case s.State.Running != nil:
				running++
				if !c.Started && !initialized {
					pending++
				}
			case s.State.Waiting != nil && exit == nil:
				waiting++
			}
		case pod.Regular:
			switch {
			case s.State.Running != nil:
				running++
			case exit != nil:
				stopped++
				if !again(v, c, exit) {
					over++
				}
				if exit.ExitCode == 0 {
					succeeded++
				}
			default:
				waiting++
			}
		case pod.Ephemeral: // no part of the verdict
		}
	}
	switch {
	case pending > 0 || waiting > 0:
		if ended && stopped+over == 0 {
			// It never ran and never will.
			return corev1.PodFailed
		}
		return corev1.PodPending
	case running > 0:
		return corev1.PodRunning
	case !ended && stopped != over:
		return corev1.PodRunning
	case stopped == succeeded:
		return corev1.PodSucceeded
	}
	return corev1.PodFailed
}

// again tells whether a container that ended runs again, by its policy or because all of its pod's do.
func again(v pod.View, c *pod.ContainerView, exit *corev1.ContainerStateTerminated) bool {
	return v.RestartingAll || exit.Reason == pod.RestartingAllContainers || c.Restarting ||
		pod.ShouldRestart(c.Spec, c.Kind, v.Pod.Spec.RestartPolicy, exit.ExitCode)
}

func exitOf(s *corev1.ContainerStatus) *corev1.ContainerStateTerminated {
	switch {
	case s.State.Terminated != nil:
		return s.State.Terminated
	case s.State.Waiting != nil:
		return s.LastTerminationState.Terminated
	}
	return nil
}

func conditions(st *corev1.PodStatus, v pod.View, prev *corev1.PodStatus, now time.Time) {
	for _, c := range v.Pod.Status.Conditions {
		if !owned(c.Type) {
			st.Conditions = append(st.Conditions, c)
		}
	}
	set := func(c corev1.PodCondition) {
		c.ObservedGeneration = st.ObservedGeneration
		c.LastTransitionTime = metav1.NewTime(now).Rfc3339Copy()
		for _, list := range [][]corev1.PodCondition{prev.Conditions, v.Pod.Status.Conditions} {
			if old := find(list, c.Type); old != nil {
				if old.Status == c.Status {
					c.LastTransitionTime = old.LastTransitionTime
				}
				break
			}
		}
		st.Conditions = append(st.Conditions, c)
	}
	if v.Started.IsZero() {
		if c := find(v.Pod.Status.Conditions, corev1.PodScheduled); c != nil {
			set(*c)
		}
		return
	}
	resizing(v, set)
	set(sandboxReady(v))
	set(initialized(v, st, prev))
	ready := containersReady(v, st)
	set(podReady(v, st, ready))
	set(ready)
	set(corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue})
	if pod.MayRestartAll(v.Pod) {
		set(restartingAll(v, st))
	}
	if v.End != nil && v.End.Disrupted && find(st.Conditions, corev1.DisruptionTarget) == nil {
		set(corev1.PodCondition{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonTerminationByKubelet,
			Message: v.End.Message,
		})
	}
	if d := find(prev.Conditions, corev1.DisruptionTarget); d != nil && find(st.Conditions, corev1.DisruptionTarget) == nil {
		st.Conditions = append(st.Conditions, *d)
	}
}

// resizing tells of a change of resources that waits or is under way.
func resizing(v pod.View, set func(corev1.PodCondition)) {
	if r := v.Resizing; r.Pending != "" {
		set(corev1.PodCondition{Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: r.Pending, Message: r.Message})
	}
	if r := v.Resizing; r.Active && v.Stage == pod.Syncing {
		c := corev1.PodCondition{Type: corev1.PodResizeInProgress, Status: corev1.ConditionTrue}
		if r.Failed != "" {
			c.Reason, c.Message = corev1.PodReasonError, r.Failed
		}
		set(c)
	}
}

// restartingAll tells whether all containers are being removed for the pod to start again in place.
func restartingAll(v pod.View, st *corev1.PodStatus) corev1.PodCondition {
	c := corev1.PodCondition{Type: corev1.AllContainersRestarting, Status: corev1.ConditionFalse}
	switch {
	case st.Phase == corev1.PodSucceeded:
		c.Reason = "PodCompleted"
	case st.Phase == corev1.PodFailed:
		c.Reason = "PodFailed"
	case v.RestartingAll:
		c.Status, c.Reason = corev1.ConditionTrue, "RestartAllContainersStarted"
		c.Message = "container exited with restart policy rule"
	}
	return c
}

func owned(t corev1.PodConditionType) bool {
	switch t {
	case corev1.PodReadyToStartContainers, corev1.PodInitialized, corev1.PodReady, corev1.ContainersReady, corev1.PodScheduled,
		corev1.PodResizePending, corev1.PodResizeInProgress, corev1.AllContainersRestarting:
		return true
	default:
		return false
	}
}

func find(list []corev1.PodCondition, t corev1.PodConditionType) *corev1.PodCondition {
	for i := range list {
		if list[i].Type == t {
			return &list[i]
		}
	}
	return nil
}

func sandboxReady(v pod.View) corev1.PodCondition {
	c := corev1.PodCondition{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionFalse}
	if v.Sandbox != nil && v.Sandbox.Ready && v.Stage < pod.Ended {
		c.Status = corev1.ConditionTrue
	}
	return c
}

func initialized(v pod.View, st, prev *corev1.PodStatus) corev1.PodCondition {
	c := corev1.PodCondition{Type: corev1.PodInitialized, Status: corev1.ConditionTrue}
	if st.Phase == corev1.PodSucceeded {
		c.Reason = "PodCompleted"
		return c
	}
	var incomplete []string
	for i := range v.Containers {
		cv := &v.Containers[i]
		switch cv.Kind {
		case pod.Init:
			if !cv.Ready {
				incomplete = append(incomplete, cv.Spec.Name)
			}
		case pod.Sidecar:
			if !cv.Started {
				incomplete = append(incomplete, cv.Spec.Name)
			}
		case pod.Regular:
			if cv.Current != nil && cv.Current.State != pod.Created {
				return c
			}
		case pod.Ephemeral: // it comes when somebody looks in, and tells nothing
		}
	}
	if old := find(prev.Conditions, corev1.PodInitialized); len(incomplete) > 0 && old != nil && old.Status == corev1.ConditionTrue &&
		pod.MayRestartAll(v.Pod) {
		return c // a pod that starts again in place was initialized once, and stays so
	}
	if len(incomplete) > 0 {
		c.Status, c.Reason = corev1.ConditionFalse, "ContainersNotInitialized"
		c.Message = fmt.Sprintf("containers with incomplete status: %s", incomplete)
	}
	return c
}

func containersReady(v pod.View, st *corev1.PodStatus) corev1.PodCondition {
	c := corev1.PodCondition{Type: corev1.ContainersReady, Status: corev1.ConditionFalse}
	switch st.Phase {
	case corev1.PodFailed:
		c.Reason = "PodFailed"
		return c
	case corev1.PodSucceeded:
		c.Reason = "PodCompleted"
		return c
	default: // its containers tell
	}
	var unready []string
	for i := range v.Containers {
		if cv := &v.Containers[i]; (cv.Kind == pod.Regular || cv.Kind == pod.Sidecar) && !cv.Ready {
			unready = append(unready, cv.Spec.Name)
		}
	}
	if len(unready) > 0 {
		c.Reason = "ContainersNotReady"
		c.Message = fmt.Sprintf("containers with unready status: %s", unready)
		return c
	}
	c.Status = corev1.ConditionTrue
	return c
}

func podReady(v pod.View, st *corev1.PodStatus, containers corev1.PodCondition) corev1.PodCondition {
	c := containers
	c.Type = corev1.PodReady
	if c.Status != corev1.ConditionTrue {
		return c
	}
	var missing []string
	for _, g := range v.Pod.Spec.ReadinessGates {
		switch got := find(st.Conditions, g.ConditionType); {
		case got == nil:
			missing = append(missing, fmt.Sprintf("corresponding condition of pod readiness gate %q does not exist.", string(g.ConditionType)))
		case got.Status != corev1.ConditionTrue:
			missing = append(missing, fmt.Sprintf("the status of pod readiness gate %q is not \"True\", but %v", string(g.ConditionType),
				got.Status))
		}
	}
	if len(missing) > 0 {
		c.Status, c.Reason = corev1.ConditionFalse, "ReadinessGatesNotReady"
		c.Message = strings.Join(missing, ", ")
	}
	return c
}

// QOS class of a pod: Guaranteed if every container limits cpu and memory to
// what it requests, BestEffort if none asks for either, else Burstable.
func QOS(p *corev1.Pod) corev1.PodQOSClass {
	if p.Status.QOSClass != "" {
		return p.Status.QOSClass
	}
	guaranteed, requested := true, false
	judge := func(r *corev1.ResourceRequirements) {
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			req, lim := r.Requests[name], r.Limits[name]
			requested = requested || !req.IsZero() || !lim.IsZero()
			if lim.IsZero() || (!req.IsZero() && req.Cmp(lim) != 0) {
				guaranteed = false
			}
		}
	}
	if p.Spec.Resources != nil {
		judge(p.Spec.Resources)
	} else {
		for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
			judge(&c.Resources)
		}
	}
	switch {
	case !requested:
		return corev1.PodQOSBestEffort
	case guaranteed:
		return corev1.PodQOSGuaranteed
	}
	return corev1.PodQOSBurstable
}
