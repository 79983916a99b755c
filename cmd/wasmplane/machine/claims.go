// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet"
	"github.com/wasmplane/wasmplane/core/kubelet/dra"
	"github.com/wasmplane/wasmplane/core/kubelet/volume"
)

// supplied are the volumes of a node's pods, and with them their claims of devices: both are
// there before containers start, and go when those have ended.
type supplied struct {
	*volume.Manager
	claims *dra.Node
}

// Mount implements kubelet.Volumes.
func (s supplied) Mount(ctx context.Context, p *corev1.Pod) error {
	if err := s.Manager.Mount(ctx, p); err != nil {
		return err
	}
	return s.claims.Prepare(ctx, p)
}

// Unmount implements kubelet.Volumes. A driver that has gone does not keep volumes mounted.
func (s supplied) Unmount(ctx context.Context, uid types.UID) error {
	return errors.Join(s.claims.Unprepare(ctx, uid), s.Manager.Unmount(ctx, uid))
}

// equipped are the devices of device plugins and those of claims.
type equipped struct {
	kubelet.Devices
	claims *dra.Node
}

// Equip implements kubelet.Devices.
func (e equipped) Equip(ctx context.Context, uid types.UID, container string, cfg *cri.ContainerConfig) error {
	if err := e.Devices.Equip(ctx, uid, container, cfg); err != nil {
		return err
	}
	return e.claims.Equip(uid, container, cfg)
}
