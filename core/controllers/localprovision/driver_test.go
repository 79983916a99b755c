// SPDX-License-Identifier: Apache-2.0

package localprovision_test

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/controllers/controllertest"
	"github.com/wasmplane/wasmplane/core/localvolume"
)

// made is a volume as the controller makes it for a claim.
func made(node string, of *corev1.PersistentVolumeClaim) *corev1.PersistentVolume {
	pv, err := localvolume.New(of, &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: node, Labels: map[string]string{"kubernetes.io/hostname": node},
		Annotations: map[string]string{localvolume.DriverAnnotation: "true"},
	}}, class("local", deletes), "")
	if err != nil {
		panic(err)
	}
	pv.Status.Phase = corev1.VolumeBound
	return pv
}

// bound is a claim with its volume on a node.
func bound(name, node string) (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume) {
	c := claim(name, node)
	pv := made(node, c)
	c.Spec.VolumeName, c.Status.Phase = pv.Name, corev1.ClaimBound
	c.Status.Capacity = corev1.ResourceList{"storage": resource.MustParse("1Gi")}
	return c, pv
}

func volumeOf(ctx context.Context, c *controllertest.Cluster, name string) (*corev1.PersistentVolume, error) {
	return c.Client.CoreV1().PersistentVolumes().Get(ctx, "pvc-uid-of-"+name, metav1.GetOptions{})
}

// TestANodesDriverMakesVolumes: they are of CSI, a block device where one is asked for, and
// never attached.
func TestANodesDriverMakesVolumes(t *testing.T) {
	c := start(t, node("a", withDriver), class("local"), claim("raw", "a", func(c *corev1.PersistentVolumeClaim) {
		c.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
	}))
	var pv *corev1.PersistentVolume
	controllertest.Eventually(t, func() (err error) {
		pv, err = volumeOf(t.Context(), c, "raw")
		return err
	})
	want, err := localvolume.WantedOf(pv)
	if err != nil || *want != (localvolume.Wanted{ID: pv.Name, Bytes: 1 << 30, Block: true}) || !localvolume.On("a", pv) ||
		pv.Spec.Local != nil {
		t.Errorf("wanted is %+v (%v), the volume %+v", want, err, pv.Spec)
	}
	d, err := c.Client.StorageV1().CSIDrivers().Get(t.Context(), localvolume.Provisioner, metav1.GetOptions{})
	if err != nil || d.Spec.AttachRequired == nil || *d.Spec.AttachRequired {
		t.Errorf("the driver is %+v (%v)", d, err)
	}
}

func dataSource(group *string, kind, name string) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) {
		c.Spec.DataSource = &corev1.TypedLocalObjectReference{APIGroup: group, Kind: kind, Name: name}
	}
}

// TestACloneIsMadeWhereItsSourceIs: whichever node was chosen, and nowhere when that node is gone.
func TestACloneIsMadeWhereItsSourceIs(t *testing.T) {
	first, pv := bound("first", "a")
	lost, lostVolume := bound("lost", "gone")
	from, ofLost := dataSource(nil, "PersistentVolumeClaim", "first"), dataSource(nil, "PersistentVolumeClaim", "lost")
	c := start(t, node("a", withDriver), node("b", withDriver), class("local"), first, pv, lost, lostVolume,
		claim("clone", "a", from), claim("away", "b", from), claim("never", "b", ofLost))
	for _, name := range []string{"clone", "away"} {
		controllertest.Eventually(t, func() error {
			clone, err := volumeOf(t.Context(), c, name)
			if err != nil {
				return err
			}
			if want, err := localvolume.WantedOf(clone); err != nil || want.Source != "volumes/pvc-uid-of-first" || !localvolume.On("a", clone) {
				return fmt.Errorf("wanted is %+v of %v (%w)", want, clone.Labels, err)
			}
			return nil
		})
	}
	controllertest.Eventually(t, event(c, "node gone is not there any more"))
	if pv, err := volumeOf(t.Context(), c, "never"); err == nil {
		t.Errorf("a clone was made away from its source: %+v", pv.Spec)
	}
}

const aGroup = "snapshot.storage.k8s.io"

// snapshot and its content; change spoils them.
func snapshot(change func(snapshot, content map[string]any)) []runtime.Object {
	s := map[string]any{
		"apiVersion": aGroup + "/v1", "kind": "VolumeSnapshot",
		"metadata": map[string]any{"namespace": "default", "name": "s", "uid": "uid-of-s"},
		"status":   map[string]any{"readyToUse": true, "boundVolumeSnapshotContentName": "content"},
	}
	c := map[string]any{
		"apiVersion": aGroup + "/v1", "kind": "VolumeSnapshotContent", "metadata": map[string]any{"name": "content"},
		"spec": map[string]any{
			"driver": localvolume.Provisioner, "sourceVolumeMode": "Filesystem", "source": map[string]any{"volumeHandle": "gone"},
			"volumeSnapshotRef": map[string]any{"namespace": "default", "name": "s", "uid": "uid-of-s"},
		},
		"status": map[string]any{"snapshotHandle": "snapshot-1", "restoreSize": int64(1 << 30)},
	}
	if change != nil {
		change(s, c)
	}
	return []runtime.Object{&unstructured.Unstructured{Object: s}, &unstructured.Unstructured{Object: c}}
}

// TestASnapshotIsRestored: one that is ready, of this driver, and the claim's to have.
func TestASnapshotIsRestored(t *testing.T) {
	part := func(m map[string]any, name string) map[string]any { return m[name].(map[string]any) }
	for want, change := range map[string]func(snapshot, content map[string]any){
		"":                                    nil,
		"is not ready":                        func(s, _ map[string]any) { part(s, "status")["readyToUse"] = false },
		"is not of driver local.wasmplane.io": func(_, c map[string]any) { part(c, "spec")["driver"] = "other" },
		"content content is not of VolumeSnapshot s": func(_, c map[string]any) { part(part(c, "spec"), "volumeSnapshotRef")["uid"] = "another" },
		"has the volumeMode of what it is made of":   func(_, c map[string]any) { part(c, "spec")["sourceVolumeMode"] = "Block" },
		"ask for as much": func(_, c map[string]any) { part(c, "status")["restoreSize"] = int64(2 << 30) },
		"node b is not there any more": func(_, c map[string]any) {
			part(c, "metadata")["labels"] = map[string]any{"snapshot.storage.kubernetes.io/managed-by": "b"}
		},
	} {
		t.Run(want, func(t *testing.T) {
			c := startWith(t, snapshot(change), node("a", withDriver), class("local"),
				claim("restored", "a", dataSource(ptr.To(aGroup), "VolumeSnapshot", "s")))
			if want != "" {
				controllertest.Eventually(t, event(c, want))
				return
			}
			controllertest.Eventually(t, func() error {
				pv, err := volumeOf(t.Context(), c, "restored")
				if err != nil {
					return err
				}
				if got, err := localvolume.WantedOf(pv); err != nil || got.Source != "snapshots/snapshot-1" {
					return fmt.Errorf("wanted is %+v (%w)", got, err)
				}
				return nil
			})
		})
	}
}

// TestAClaimGrows: its volume is written larger, and the node has the word; never beyond
// what the disk has left.
func TestAClaimGrows(t *testing.T) {
	larger := func(size string, c *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
		c.Spec.Resources.Requests = corev1.ResourceList{"storage": resource.MustParse(size)}
		return c
	}
	first, firstVolume := bound("first", "a")
	second, secondVolume := bound("second", "a")
	c := start(t, node("a", withDriver), class("local"), larger("2Gi", first), firstVolume, larger("10Gi", second), secondVolume)
	controllertest.Eventually(t, func() error {
		got, err := c.Client.CoreV1().PersistentVolumeClaims("default").Get(t.Context(), "first", metav1.GetOptions{})
		if err == nil && got.Status.AllocatedResourceStatuses["storage"] != corev1.PersistentVolumeClaimNodeResizePending {
			err = fmt.Errorf("status %+v", got.Status)
		}
		return err
	})
	if pv, err := volumeOf(t.Context(), c, "first"); err != nil || pv.Spec.Capacity.Storage().String() != "2Gi" {
		t.Errorf("the volume is %v (%v)", pv, err)
	}
	controllertest.Eventually(t, event(c, "9Gi are asked for, and the disk of node a has 10Gi, of which"))
	if pv, err := volumeOf(t.Context(), c, "second"); err != nil || pv.Spec.Capacity.Storage().String() != "1Gi" {
		t.Errorf("the volume is %v (%v)", pv, err)
	}
}

// TestAVolumeThatIsHeldToItsSize: by the class's parameter, on a node that knows it, and not of a block device, which has
// its size anyhow. The claim's event says nothing of sizes that are not enforced.
func TestAVolumeThatIsHeldToItsSize(t *testing.T) {
	limited := func(value string) func(*storagev1.StorageClass) {
		return func(s *storagev1.StorageClass) { s.Parameters = map[string]string{localvolume.LimitParameter: value} }
	}
	in := func(class string) func(*corev1.PersistentVolumeClaim) {
		return func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = ptr.To(class) }
	}
	c := start(t, node("a", withDriver, func(n *corev1.Node) { n.Annotations[localvolume.LimitsAnnotation] = localvolume.LimitImage }),
		node("older", withDriver), class("limited", limited("image")), class("wrong", limited("quota")))
	add := func(o *corev1.PersistentVolumeClaim) {
		t.Helper()
		if _, err := c.Client.CoreV1().PersistentVolumeClaims("default").Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{"data": localvolume.LimitImage, "raw": ""} {
		add(claim(name, "a", in("limited"), func(c *corev1.PersistentVolumeClaim) {
			if name == "raw" {
				c.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
			}
		}))
		controllertest.Eventually(t, event(c, "Normal ProvisioningSucceeded Successfully provisioned volume pvc-uid-of-"+name))
		pv, err := volumeOf(t.Context(), c, name)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := localvolume.WantedOf(pv); err != nil || got.Limit != want || got.Block != (want == "") {
			t.Errorf("%s is %+v (%v), want the limit %q", name, got, err, want)
		}
	}
	add(claim("early", "older", in("limited")))
	controllertest.Eventually(t, event(c, "Warning ProvisioningFailed node older makes no volumes that are held to their size"))
	add(claim("bad", "a", in("wrong")))
	controllertest.Eventually(t, event(c, `Warning ProvisioningFailed parameter local.wasmplane.io/limit of the class: expected "image"`))
}
