// SPDX-License-Identifier: Apache-2.0

package localprovision

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/localvolume"
)

// The definitions of snapshots are external-snapshotter's, and not in every cluster.
var (
	snapshotGroup = "snapshot.storage.k8s.io"
	snapshots     = schema.GroupVersionResource{Group: snapshotGroup, Version: "v1", Resource: "volumesnapshots"}
	contents      = schema.GroupVersionResource{Group: snapshotGroup, Version: "v1", Resource: "volumesnapshotcontents"}
)

// snapshotNode is the label by which a distributed snapshot controller says where a snapshot is.
const snapshotNode = "snapshot.storage.kubernetes.io/managed-by"

// source is what a claim's volume is to be a copy of.
type source struct {
	of   string // as a volume's attributes say it; "" = nothing
	node string // the label of the node that has it; "" = not known
	why  string // it cannot be had yet, or not at all
}

// copyOf finds out what a claim's volume is to be a copy of.
func (c *Controller) copyOf(ctx context.Context, claim *corev1.PersistentVolumeClaim) (source, error) {
	ref := claim.Spec.DataSourceRef
	if ref == nil {
		if from := claim.Spec.DataSource; from != nil {
			ref = &corev1.TypedObjectReference{APIGroup: from.APIGroup, Kind: from.Kind, Name: from.Name}
		}
	}
	if ref == nil {
		return source{}, nil
	}
	group := ""
	if ref.APIGroup != nil {
		group = *ref.APIGroup
	}
	switch {
	case ref.Namespace != nil && *ref.Namespace != "" && *ref.Namespace != claim.Namespace:
		return source{why: "a copy is made of what is in the claim's own namespace: leave out spec.dataSourceRef.namespace"}, nil
	case group == "" && ref.Kind == aClaim:
		return c.cloneOf(claim, ref.Name)
	case group == snapshotGroup && ref.Kind == "VolumeSnapshot":
		return c.restoreOf(ctx, claim, ref.Name)
	}
	return source{why: fmt.Sprintf("spec.dataSource may be a PersistentVolumeClaim or a VolumeSnapshot of group %s, found %s %s", snapshotGroup, group, ref.Kind)}, nil
}

// cloneOf is the volume of another claim.
func (c *Controller) cloneOf(claim *corev1.PersistentVolumeClaim, name string) (source, error) {
	from, err := c.claims.PersistentVolumeClaims(claim.Namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return source{why: fmt.Sprintf("claim %s, of which it is to be a clone, does not exist", name)}, nil
	}
	if err != nil {
		return source{}, err
	}
	if from.Status.Phase != corev1.ClaimBound || from.DeletionTimestamp != nil {
		return source{why: fmt.Sprintf("claim %s, of which it is to be a clone, is not bound, or is being deleted", name)}, nil
	}
	pv, err := c.volumes.Get(from.Spec.VolumeName)
	if apierrors.IsNotFound(err) {
		return source{why: fmt.Sprintf("the volume of claim %s, of which it is to be a clone, does not exist", name)}, nil
	}
	if err != nil {
		return source{}, err
	}
	want, err := localvolume.WantedOf(pv)
	if err != nil || pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != from.UID {
		why := fmt.Sprintf("claim %s is not of a volume of driver %s", name, localvolume.Provisioner)
		return source{why: why}, nil //nolint:nilerr // that is the answer
	}
	if why := unlike(claim, want.Block, pv.Spec.Capacity[corev1.ResourceStorage]); why != "" {
		return source{why: why}, nil
	}
	return source{of: localvolume.SourceVolume + want.ID, node: pv.Labels[localvolume.NodeLabel]}, nil
}

// unlike says why a claim cannot be of a copy; "" = it can.
func unlike(claim *corev1.PersistentVolumeClaim, block bool, size resource.Quantity) string {
	if (claim.Spec.VolumeMode != nil && *claim.Spec.VolumeMode == corev1.PersistentVolumeBlock) != block {
		return "a copy has the volumeMode of what it is made of"
	}
	if asked := claim.Spec.Resources.Requests[corev1.ResourceStorage]; asked.Cmp(size) < 0 {
		return fmt.Sprintf("%s are asked for, and what it is to be a copy of has %s: ask for as much", asked.String(), size.String())
	}
	return ""
}

// restoreOf is a snapshot that is ready. Snapshot and content have to name each other:
// otherwise somebody could restore what is another's.
func (c *Controller) restoreOf(ctx context.Context, claim *corev1.PersistentVolumeClaim, name string) (source, error) {
	snapshot, err := c.dynamic.Resource(snapshots).Namespace(claim.Namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return source{why: fmt.Sprintf("VolumeSnapshot %s does not exist, or this cluster has no snapshots", name)}, nil
	}
	if err != nil {
		return source{}, fmt.Errorf("read VolumeSnapshot %s/%s: %w", claim.Namespace, name, err)
	}
	ready, _, _ := unstructured.NestedBool(snapshot.Object, "status", "readyToUse")
	bound, _, _ := unstructured.NestedString(snapshot.Object, "status", "boundVolumeSnapshotContentName")
	if !ready || bound == "" || snapshot.GetDeletionTimestamp() != nil {
		return source{why: fmt.Sprintf("VolumeSnapshot %s is not ready", name)}, nil
	}
	content, err := c.dynamic.Resource(contents).Get(ctx, bound, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return source{why: fmt.Sprintf("VolumeSnapshot %s is of content %s, which does not exist", name, bound)}, nil
	}
	if err != nil {
		return source{}, fmt.Errorf("read VolumeSnapshotContent %s: %w", bound, err)
	}
	text := func(fields ...string) string {
		s, _, _ := unstructured.NestedString(content.Object, fields...)
		return s
	}
	handle := text("status", "snapshotHandle")
	switch {
	case text("spec", "driver") != localvolume.Provisioner || handle == "":
		return source{why: fmt.Sprintf("VolumeSnapshot %s is not of driver %s", name, localvolume.Provisioner)}, nil
	case text("spec", "volumeSnapshotRef", "uid") != string(snapshot.GetUID()) ||
		text("spec", "volumeSnapshotRef", "namespace") != claim.Namespace:
		return source{why: fmt.Sprintf("content %s is not of VolumeSnapshot %s", bound, name)}, nil
	}
	size, _, _ := unstructured.NestedInt64(content.Object, "status", "restoreSize")
	if why := unlike(claim, text("spec", "sourceVolumeMode") == string(corev1.PersistentVolumeBlock), *resource.NewQuantity(size, resource.BinarySI)); why != "" {
		return source{why: why}, nil
	}
	return source{of: localvolume.SourceSnapshot + handle, node: c.nodeOf(content)}, nil
}

// nodeOf is the node that has a snapshot: by its label, or by the volume that it is of.
func (c *Controller) nodeOf(content *unstructured.Unstructured) string {
	if label := content.GetLabels()[snapshotNode]; label != "" {
		return localvolume.LabelOf(label)
	}
	handle, _, _ := unstructured.NestedString(content.Object, "spec", "source", "volumeHandle")
	if pv, err := c.volumes.Get(handle); err == nil && localvolume.Ours(pv) {
		return pv.Labels[localvolume.NodeLabel]
	}
	return ""
}

// waiting are the claims whose volumes are to be clones of a claim's.
func (c *Controller) waiting(of *corev1.PersistentVolumeClaim) []item {
	all, err := c.claims.PersistentVolumeClaims(of.Namespace).List(labels.Everything())
	if err != nil {
		return nil
	}
	var out []item
	for _, claim := range all {
		if from := claim.Spec.DataSource; claim.Spec.VolumeName == "" && from != nil && from.Kind == aClaim && from.Name == of.Name {
			out = append(out, item{aClaim, claim.Namespace, claim.Name})
		}
	}
	return out
}
