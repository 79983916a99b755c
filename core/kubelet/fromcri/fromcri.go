// SPDX-License-Identifier: Apache-2.0

// Package fromcri has what the runtime says of sandboxes and containers as podlifecycle.Machine knows them.
package fromcri

import (
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/pod"
)

func nanos(n int64) time.Time {
	if n == 0 {
		return time.Time{}
	}
	return time.Unix(0, n)
}

// UID of the pod that has the labels; "" if none has.
func UID(labels map[string]string) types.UID { return types.UID(labels[pod.UIDLabel]) }

// Sandbox makes what the pod's Machine knows of a sandbox.
func Sandbox(st *cri.PodSandboxStatus) pod.Sandbox {
	sb := pod.Sandbox{
		ID: st.Id, Attempt: st.GetMetadata().GetAttempt(), Created: nanos(st.CreatedAt),
		Ready: st.State == cri.PodSandboxState_SANDBOX_READY,
	}
	if n := st.GetNetwork(); n != nil {
		if n.Ip != "" {
			sb.IPs = append(sb.IPs, n.Ip)
		}
		for _, a := range n.AdditionalIps {
			sb.IPs = append(sb.IPs, a.Ip)
		}
	}
	return sb
}

var states = map[cri.ContainerState]pod.State{
	cri.ContainerState_CONTAINER_CREATED: pod.Created,
	cri.ContainerState_CONTAINER_RUNNING: pod.Running,
	cri.ContainerState_CONTAINER_EXITED:  pod.Exited,
	cri.ContainerState_CONTAINER_UNKNOWN: pod.Unknown,
}

// Container makes what the pod's Machine knows of a container. The CRI's status
// does not say in which sandbox a container is; sandbox is that.
func Container(st *cri.ContainerStatus, sandbox string) pod.Container {
	c := pod.Container{
		ID: st.Id, Name: st.GetMetadata().GetName(), Sandbox: sandbox, State: states[st.State],
		RestartCount: int32(st.GetMetadata().GetAttempt()), Hash: st.Annotations[pod.HashAnnotation],
		Created: nanos(st.CreatedAt), Started: nanos(st.StartedAt), Finished: nanos(st.FinishedAt),
		ExitCode: st.ExitCode, Reason: st.Reason, Message: st.Message,
		Image: st.GetImage().GetUserSpecifiedImage(), ImageID: st.ImageRef, LogPath: st.LogPath,
	}
	c.Resources = pod.DecodeResources(st.Annotations[pod.ResourcesAnnotation])
	c.Level = pod.DecodeResources(st.Annotations[pod.LevelAnnotation])
	if c.Image == "" {
		c.Image = st.GetImage().GetImage()
	}
	if n, err := strconv.ParseInt(st.Annotations[pod.RestartCountAnnotation], 10, 32); err == nil {
		c.RestartCount = int32(n)
	}
	if u := st.GetUser().GetLinux(); u != nil {
		c.User = &corev1.ContainerUser{Linux: &corev1.LinuxContainerUser{UID: u.Uid, GID: u.Gid, SupplementalGroups: u.SupplementalGroups}}
	}
	if s := st.GetStopSignal(); s != cri.Signal_SIGNAL_RUNTIME_DEFAULT {
		c.StopSignal = s.String()
	}
	return c
}

// OwnFamilyFirst sorts a sandbox's addresses by whether they are of the family of the node's own, whatever the runtime prefers.
func OwnFamilyFirst(ips []string, own string) {
	six := strings.Contains(own, ":")
	slices.SortStableFunc(ips, func(a, b string) int {
		switch x, y := strings.Contains(a, ":") == six, strings.Contains(b, ":") == six; {
		case x == y:
			return 0
		case x:
			return -1
		}
		return 1
	})
}
