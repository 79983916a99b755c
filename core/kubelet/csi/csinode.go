// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	storagev1 "k8s.io/api/storage/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/run"
)

// nodeIDs is upstream's annotation of a Node: the driver's own name of the node, by driver.
const nodeIDs = "csi.volume.kubernetes.io/nodeid"

// withDriver is the list of a CSINode with what a driver says of itself.
func withDriver(have []storagev1.CSINodeDriver, name string, info *spec.NodeGetInfoResponse) []storagev1.CSINodeDriver {
	entry := storagev1.CSINodeDriver{Name: name, NodeID: info.GetNodeId()}
	entry.TopologyKeys = slices.Sorted(maps.Keys(info.GetAccessibleTopology().GetSegments()))
	if most := info.GetMaxVolumesPerNode(); most > 0 {
		entry.Allocatable = &storagev1.VolumeNodeResources{Count: ptr.To(int32(min(most, 1<<31-1)))}
	}
	return append(withoutDriver(have, name), entry)
}

func withoutDriver(have []storagev1.CSINodeDriver, name string) []storagev1.CSINodeDriver {
	out := []storagev1.CSINodeDriver{}
	for _, d := range have {
		if d.Name != name {
			out = append(out, d)
		}
	}
	return out
}

// announce makes the CSINode, as upstream without drivers: the scheduler then knows that
// none is there. It returns when ctx ends.
func (r *registry) announce(ctx context.Context) error {
	again := run.Backoff{First: 100 * time.Millisecond, Longest: 30 * time.Second}
	for {
		err := r.edit(ctx, func(have []storagev1.CSINodeDriver) []storagev1.CSINodeDriver { return have })
		if err == nil {
			close(r.announced)
			<-ctx.Done()
			return nil
		}
		wait := again.Next()
		if !apierrors.IsNotFound(err) && ctx.Err() == nil { // before the Node is registered there is none
			r.cfg.Logger.WarnContext(ctx, "the CSINode cannot be made; trying again", "error", err, "retryIn", wait)
		}
		if !run.Sleep(ctx, wait) {
			return nil
		}
	}
}

// edit changes the drivers of the CSINode.
func (r *registry) edit(ctx context.Context, change func([]storagev1.CSINodeDriver) []storagev1.CSINodeDriver) error {
	nodes := r.cfg.Client.StorageV1().CSINodes()
	return retry.OnError(retry.DefaultBackoff, again, func() error {
		have, err := nodes.Get(ctx, r.cfg.NodeName, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return r.create(ctx, change)
		}
		if err != nil {
			return fmt.Errorf("read CSINode %s: %w", r.cfg.NodeName, err)
		}
		next := have.DeepCopy()
		next.Spec.Drivers = change(have.Spec.Drivers)
		if apiequality.Semantic.DeepEqual(have.Spec, next.Spec) {
			return nil
		}
		if _, err = nodes.Update(ctx, next, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("write CSINode %s: %w", r.cfg.NodeName, err)
		}
		return nil
	})
}

func again(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }

// create makes the CSINode; it goes with its Node.
func (r *registry) create(ctx context.Context, change func([]storagev1.CSINodeDriver) []storagev1.CSINodeDriver) error {
	node, err := r.cfg.Client.CoreV1().Nodes().Get(ctx, r.cfg.NodeName, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read node %s for its CSINode: %w", r.cfg.NodeName, err)
	}
	made := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: r.cfg.NodeName, OwnerReferences: []metav1.OwnerReference{
		{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID},
	}}}
	made.Spec.Drivers = change(nil)
	if made.Spec.Drivers == nil {
		made.Spec.Drivers = []storagev1.CSINodeDriver{}
	}
	if _, err := r.cfg.Client.StorageV1().CSINodes().Create(ctx, made, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("make CSINode %s: %w", r.cfg.NodeName, err)
	}
	return nil
}

// publish makes known what a driver is on this node: its ID and topology on the Node
// first, for from the CSINode on the scheduler counts with them.
func (r *registry) publish(ctx context.Context, name string, info *spec.NodeGetInfoResponse) error {
	if err := r.label(ctx, name, info); err != nil {
		return err
	}
	return r.edit(ctx, func(have []storagev1.CSINodeDriver) []storagev1.CSINodeDriver {
		for _, d := range have {
			if next := withDriver(nil, name, info)[0]; d.Name == name && apiequality.Semantic.DeepEqual(d, next) {
				return have
			}
		}
		return withDriver(have, name, info)
	})
}

// retract takes a driver off again. Labels of its topology stay, as upstream: volumes
// that exist say by them where they are.
func (r *registry) retract(ctx context.Context, name string) error {
	if err := r.edit(ctx, func(have []storagev1.CSINodeDriver) []storagev1.CSINodeDriver { return withoutDriver(have, name) }); err != nil {
		return err
	}
	return r.label(ctx, name, nil)
}

// label writes a driver's ID and topology on the Node; info nil takes its ID off.
func (r *registry) label(ctx context.Context, name string, info *spec.NodeGetInfoResponse) error {
	nodes := r.cfg.Client.CoreV1().Nodes()
	return retry.OnError(retry.DefaultBackoff, again, func() error {
		node, err := nodes.Get(ctx, r.cfg.NodeName, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("read node %s: %w", r.cfg.NodeName, err)
		}
		labels := map[string]string{}
		for key, value := range info.GetAccessibleTopology().GetSegments() {
			switch old, ok := node.Labels[key]; {
			case !ok:
				labels[key] = value
			case old != value:
				return fmt.Errorf("driver %s says that its topology is %s=%s, and the node has the label %s=%s: take the label off, or correct the driver's configuration", name, key, value, key, old)
			}
		}
		ids, err := withID(node.Annotations[nodeIDs], name, info.GetNodeId())
		if err != nil {
			return err
		}
		if len(labels) == 0 && ids == node.Annotations[nodeIDs] {
			return nil
		}
		var annotation any = ids
		if ids == "" {
			annotation = nil
		}
		body, err := json.Marshal(map[string]any{"metadata": map[string]any{
			"labels": labels, "annotations": map[string]any{nodeIDs: annotation}, "resourceVersion": node.ResourceVersion,
		}})
		if err != nil {
			return fmt.Errorf("encode a driver's labels: %w", err)
		}
		if _, err := nodes.Patch(ctx, r.cfg.NodeName, types.MergePatchType, body, metav1.PatchOptions{}); err != nil {
			return fmt.Errorf("write a driver's labels on node %s: %w", r.cfg.NodeName, err)
		}
		return nil
	})
}

// withID is the annotation's value with a driver's ID, or without it where id is empty.
func withID(value, name, id string) (string, error) {
	ids := map[string]string{}
	if value != "" {
		if err := json.Unmarshal([]byte(value), &ids); err != nil {
			ids = map[string]string{} // nobody can have read it
		}
	}
	if id == "" {
		delete(ids, name)
	} else {
		ids[name] = id
	}
	if len(ids) == 0 {
		return "", nil
	}
	out, err := json.Marshal(ids)
	if err != nil {
		return "", fmt.Errorf("encode the node's IDs: %w", err)
	}
	return string(out), nil
}
