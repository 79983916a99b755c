// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/informers"
	storagelisters "k8s.io/client-go/listers/storage/v1"

	"github.com/wasmplane/wasmplane/core/run"
)

// asked is when drivers were last asked how many volumes the node may have.
type asked map[string]time.Time

// due are the drivers to ask now: those whose CSIDriver says how often, as long ago. A
// driver that is new has just said it.
func (a asked) due(registered []string, drivers storagelisters.CSIDriverLister, now time.Time) []string {
	for name := range a {
		if !slices.Contains(registered, name) {
			delete(a, name)
		}
	}
	var out []string
	for _, name := range registered {
		last, known := a[name]
		if !known {
			a[name] = now
			continue
		}
		object, err := drivers.Get(name)
		if err != nil || object.Spec.NodeAllocatableUpdatePeriodSeconds == nil {
			continue // a driver need not have one
		}
		if now.Sub(last) >= time.Duration(*object.Spec.NodeAllocatableUpdatePeriodSeconds)*time.Second {
			a[name] = now
			out = append(out, name)
		}
	}
	return out
}

// recount asks drivers again how many volumes this node may have, as often as their
// CSIDrivers say (nodeAllocatableUpdatePeriodSeconds, KEP-4876), until ctx ends.
func (n *Node) recount(ctx context.Context) error {
	factory := informers.NewSharedInformerFactory(n.cfg.Client, 0)
	lister := factory.Storage().V1().CSIDrivers().Lister()
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	a := asked{}
	for run.Sleep(ctx, time.Second) { // periods are 10 s or more
		for _, name := range a.due(n.registry.names(), lister, time.Now()) {
			if err := n.registry.recount(ctx, name); err != nil && ctx.Err() == nil {
				n.cfg.Logger.WarnContext(ctx, "a CSI driver does not say how many volumes the node may have; asking again",
					"driver", name, "error", err)
			}
		}
	}
	return nil
}

// names of the drivers that have registered.
func (r *registry) names() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for name := range r.drivers {
		out = append(out, name)
	}
	return out
}

// recount writes what a driver says now, where the CSINode has the driver.
func (r *registry) recount(ctx context.Context, name string) error {
	d, err := r.driver(name)
	if isMissing(err) {
		return nil // it has gone meanwhile
	}
	if err != nil {
		return err
	}
	info, err := ask(ctx, d, "NodeGetInfo", func(ctx context.Context, c spec.NodeClient) (*spec.NodeGetInfoResponse, error) {
		return c.NodeGetInfo(ctx, &spec.NodeGetInfoRequest{})
	})
	if err != nil {
		return err
	}
	if info.GetMaxVolumesPerNode() < 0 {
		return errors.New("max_volumes_per_node is below zero")
	}
	now := withDriver(nil, name, info)[0].Allocatable
	if err := r.edit(ctx, func(have []storagev1.CSINodeDriver) []storagev1.CSINodeDriver {
		next := slices.Clone(have)
		for i := range next {
			if next[i].Name == name {
				next[i].Allocatable = now
			}
		}
		return next
	}); err != nil {
		return fmt.Errorf("count of driver %s: %w", name, err)
	}
	return nil
}
