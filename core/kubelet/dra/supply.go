// SPDX-License-Identifier: Apache-2.0

package dra

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet"
	"github.com/wasmplane/wasmplane/core/kubelet/volume"
)

// Supplied are the volumes of a node's pods, and with them their claims of devices: both are
// there before containers start, and go when those have ended.
type Supplied struct {
	*volume.Manager
	Claims *Node
}

// Mount implements kubelet.Volumes.
func (s Supplied) Mount(ctx context.Context, p *corev1.Pod) error {
	if err := s.Manager.Mount(ctx, p); err != nil {
		return err
	}
	return s.Claims.Prepare(ctx, p)
}

// Unmount implements kubelet.Volumes. A driver that has gone does not keep volumes mounted.
func (s Supplied) Unmount(ctx context.Context, uid types.UID) error {
	return errors.Join(s.Claims.Unprepare(ctx, uid), s.Manager.Unmount(ctx, uid))
}

// Equipped are the devices of device plugins and those of claims.
type Equipped struct {
	kubelet.Devices
	Claims *Node
}

// Equip implements kubelet.Devices.
func (e Equipped) Equip(ctx context.Context, uid types.UID, container string, cfg *cri.ContainerConfig) error {
	if err := e.Devices.Equip(ctx, uid, container, cfg); err != nil {
		return err
	}
	return e.Claims.Equip(uid, container, cfg)
}
