// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/leftover"
	"github.com/wasmplane/wasmplane/core/kubelet/node"
	"github.com/wasmplane/wasmplane/core/kubelet/spec"
)

// Host is the machine under a node's pods: what they occupy beside containers, and
// what the node says of itself.
type Host interface {
	node.Host
	leftover.Machine
	// Claim makes a pod's directories and cgroup; idempotent.
	Claim(ctx context.Context, p *corev1.Pod) (spec.Place, error)
	// Files makes what a container mounts beside its volumes: its hosts file and
	// the file for its last words.
	Files(ctx context.Context, r spec.FilesRequest) ([]*cri.Mount, error)
	// Started is told of a container that runs, to link its log.
	Started(p *corev1.Pod, container, id, logPath string)
	// LastWords is the termination message of a container that exited.
	LastWords(ctx context.Context, p *corev1.Pod, st *cri.ContainerStatus) string
}

// Volumes are the pods' volumes.
type Volumes interface {
	// Mount sets up all volumes of a pod, and keeps their contents up to date until Unmount; idempotent.
	Mount(ctx context.Context, p *corev1.Pod) error
	// Mounts are what a container mounts of them. env expands subPathExpr.
	Mounts(ctx context.Context, p *corev1.Pod, c *corev1.Container, env map[string]string) ([]*cri.Mount, error)
	// Devices are the block volumes that a container uses.
	Devices(p *corev1.Pod, c *corev1.Container) ([]*cri.Device, error)
	// File is the content of a regular file in a volume of a pod that is set up; fs.ErrNotExist if there is none.
	File(uid types.UID, volume, path string) ([]byte, error)
	// Update tells of a pod's new state: contents that speak of it are rewritten.
	Update(p *corev1.Pod)
	// Unmount takes a pod's volumes down, also those of a pod of which only the UID is known; idempotent.
	Unmount(ctx context.Context, uid types.UID) error
}

// Objects answers the ConfigMaps and Secrets that pods of this node refer to.
type Objects interface {
	// Follow keeps what the pod refers to at hand until Unfollow.
	Follow(p *corev1.Pod)
	Unfollow(uid types.UID)
	spec.Objects
}
