// SPDX-License-Identifier: Apache-2.0

package attachdetach

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/wasmplane/wasmplane/core/attachment"
	"github.com/wasmplane/wasmplane/core/controllers/controllertest"
)

func aClaim() *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "data", UID: "claim"}}
	c.Spec.VolumeName = "pv"
	return c
}

func start(t *testing.T, objects ...runtime.Object) *controllertest.Cluster {
	t.Helper()
	c := controllertest.New(objects...)
	ctl, err := New(c.Env(t), 2)
	if err != nil {
		t.Fatal(err)
	}
	c.Start(t, ctl)
	return c
}

func onNode(node string) string { return attachment.Name("disk.example", "h", node) }

// event waits for an event that begins so.
func event(t *testing.T, c *controllertest.Cluster, want string) {
	t.Helper()
	seen := []string{}
	controllertest.Eventually(t, func() error {
		for {
			select {
			case e := <-c.Events.Events:
				if strings.HasPrefix(e, want) {
					return nil
				}
				seen = append(seen, e)
			default:
				return fmt.Errorf("no event %q in %q", want, seen)
			}
		}
	})
}

// TestAVolumeFollowsItsPod: attached where the pod is, listed in the node's status, kept
// while the node has it mounted, and only then attached elsewhere.
func TestAVolumeFollowsItsPod(t *testing.T) {
	c := start(t, aPV(corev1.ReadWriteOnce), aClaim(), aNodeWith("a", true), aNodeWith("b", true), aPod("one", "a", corev1.PodPending))
	attachments, nodes := c.Client.StorageV1().VolumeAttachments(), c.Client.CoreV1().Nodes()
	there := func(node string, want bool) {
		t.Helper()
		controllertest.Eventually(t, func() error {
			a, err := attachments.Get(t.Context(), onNode(node), metav1.GetOptions{})
			if (err == nil) != want {
				return fmt.Errorf("attached to %s is %v, and not %v", node, err == nil, want)
			}
			if err == nil && (a.Spec.Attacher != "disk.example" || a.Spec.NodeName != node || *a.Spec.Source.PersistentVolumeName != "pv") {
				return fmt.Errorf("the attachment is %+v", a.Spec)
			}
			return nil
		})
	}
	there("a", true)
	answer := func(node string, status storagev1.VolumeAttachmentStatus) {
		t.Helper()
		a, err := attachments.Get(t.Context(), onNode(node), metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		a.Status = status
		if _, err := attachments.UpdateStatus(t.Context(), a, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	answer("a", storagev1.VolumeAttachmentStatus{AttachError: &storagev1.VolumeError{Message: "no cable"}})
	event(t, c, `Warning FailedAttachVolume AttachVolume.Attach failed for volume "pv" : no cable`)
	answer("a", storagev1.VolumeAttachmentStatus{Attached: true})
	event(t, c, `Normal SuccessfulAttachVolume AttachVolume.Attach succeeded for volume "pv"`)
	listed := func(node string, want int) {
		t.Helper()
		controllertest.Eventually(t, func() error {
			n, err := nodes.Get(t.Context(), node, metav1.GetOptions{})
			if err != nil || len(n.Status.VolumesAttached) != want || want == 1 && n.Status.VolumesAttached[0].Name != theVolume {
				return fmt.Errorf("node %s lists %v: %w", node, n.Status.VolumesAttached, err)
			}
			return nil
		})
	}
	listed("a", 1)
	inUse := func(volumes ...corev1.UniqueVolumeName) {
		t.Helper()
		n, err := nodes.Get(t.Context(), "a", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		n.Status.VolumesInUse = volumes
		if _, err := nodes.UpdateStatus(t.Context(), n, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	inUse(theVolume)
	pods := c.Client.CoreV1().Pods("ns")
	if _, err := pods.Create(t.Context(), aPod("two", "b", corev1.PodPending), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	event(t, c, `Warning FailedAttachVolume Multi-Attach error for volume "pv" Volume is already used by pod(s) ns/one`)
	if err := pods.Delete(t.Context(), "one", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	event(t, c, `Warning FailedAttachVolume Multi-Attach error for volume "pv" Volume is already exclusively attached`)
	there("a", true)
	inUse()
	there("a", false)
	listed("a", 0)
	there("b", true)
}

// TestVolumesOfANodeOutOfService: are let go, against its word.
func TestVolumesOfANodeOutOfService(t *testing.T) {
	pv := aPV(corev1.ReadWriteOnce)
	n := aNodeWith("a", true, theVolume)
	c := start(t, pv, aClaim(), n, attachmentOf(pv, "a"))
	attachments := c.Client.StorageV1().VolumeAttachments()
	off := n.DeepCopy()
	off.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute}}
	if _, err := c.Client.CoreV1().Nodes().Update(t.Context(), off, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	controllertest.Eventually(t, func() error {
		if _, err := attachments.Get(t.Context(), onNode("a"), metav1.GetOptions{}); err == nil {
			return fmt.Errorf("still attached")
		}
		return nil
	})
}

// TestAnotherClaimsPodsDoNotCount: the claim has to be the one that the volume names.
func TestAnotherClaimsPodsDoNotCount(t *testing.T) {
	stranger := aClaim()
	stranger.UID = "another"
	pv := aPV(corev1.ReadWriteOnce)
	c := start(t, pv, stranger, aNodeWith("a", true), aPod("one", "a", corev1.PodPending), attachmentOf(pv, "a"))
	controllertest.Eventually(t, func() error {
		list, err := c.Client.StorageV1().VolumeAttachments().List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) > 0 {
			return fmt.Errorf("attached are %v: %w", list, err)
		}
		return nil
	})
}
