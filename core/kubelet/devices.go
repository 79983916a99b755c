// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"errors"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/deviceplugin"
	"github.com/wasmplane/wasmplane/core/kubelet/fit"
	"github.com/wasmplane/wasmplane/core/kubelet/pod"
)

// Devices are those that device plugins have on this node.
type Devices interface {
	// Resources are how many there are, and how many can be used, by resource.
	Resources() (capacity, allocatable corev1.ResourceList)
	// Has reports whether a pod has devices, of this kubelet or of one before it.
	Has(uid types.UID) bool
	// Allocate gives a pod's containers what they ask for; idempotent. A Refusal ends the pod.
	Allocate(ctx context.Context, p *corev1.Pod) error
	// Equip adds to a container's configuration what comes with its devices.
	Equip(ctx context.Context, uid types.UID, container string, cfg *cri.ContainerConfig) error
	// Release takes a pod's devices back; idempotent.
	Release(uid types.UID)
	// Retain takes back those of all pods that hold nothing any more.
	Retain(holds func(types.UID) bool)
}

// DeviceHealth is how the devices are that pods have, by claims or by the resources of device plugins.
type DeviceHealth interface {
	// Health of a container's, as its status shows it.
	Health(p *corev1.Pod, container string) []corev1.ResourceStatus
	// HealthChanged has an element when Affected has pods.
	HealthChanged() <-chan struct{}
	// Affected are the pods whose devices have changed since it was asked last.
	Affected() []types.UID
}

// followHealth has the pods' status say how their devices are.
func (k *Kubelet) followHealth(ctx context.Context, of DeviceHealth) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-of.HealthChanged():
		}
		for _, uid := range of.Affected() {
			if w := k.worker(uid); w != nil {
				w.send(pod.Tick{})
			}
		}
	}
}

// healthy adds to a pod's status how the devices of its containers are.
func (k *parts) healthy(p *corev1.Pod, st *corev1.PodStatus) {
	for i := range st.ContainerStatuses {
		c := &st.ContainerStatuses[i]
		for _, of := range k.cfg.Health {
			c.AllocatedResourcesStatus = append(c.AllocatedResourcesStatus, of.Health(p, c.Name)...)
		}
	}
}

// withDevices is the node with as many devices as there are now: the API may be behind. A pod that
// was given its own before a restart need not wait for their plugin to come back: all of them count.
func (k *parts) withDevices(node *corev1.Node, p *corev1.Pod) *corev1.Node {
	capacity, allocatable := k.cfg.Devices.Resources()
	if k.cfg.Devices.Has(p.UID) {
		allocatable = capacity
	}
	if len(allocatable) == 0 {
		return node
	}
	next := *node
	next.Status.Allocatable = maps.Clone(node.Status.Allocatable)
	maps.Copy(next.Status.Allocatable, allocatable)
	return &next
}

// giveDevices is the last step of an admission.
func (k *parts) giveDevices(ctx context.Context, p *corev1.Pod) (fit.Verdict, error) {
	err := k.cfg.Devices.Allocate(ctx, p)
	if r, ok := errors.AsType[*deviceplugin.Refusal](err); ok {
		return fit.Verdict{Refused: true, Reason: r.Reason, Message: r.Message}, nil
	}
	if err != nil {
		return fit.Verdict{}, fmt.Errorf("give devices to pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	return fit.Verdict{}, nil
}

// vacate gives a pod's place to others.
func (k *parts) vacate(uid types.UID) {
	k.room.Release(uid)
	k.cfg.Devices.Release(uid)
}
