// SPDX-License-Identifier: Apache-2.0

package ephemeralvolume_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/controllers/controllertest"
	"github.com/wasmplane/wasmplane/core/controllers/ephemeralvolume"
)

func pod(name string, volumes ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("pod-" + name)}}
	for _, v := range volumes {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: v, VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{
			VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"for": v}, Annotations: map[string]string{"a": "b"}},
				Spec:       corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}},
			},
		}}})
	}
	return p
}

func start(t *testing.T, c *controllertest.Cluster) {
	t.Helper()
	ctl, err := ephemeralvolume.New(c.Env(t), 2)
	if err != nil {
		t.Fatal(err)
	}
	c.Start(t, ctl)
}

// belongs reports whether a claim is there and a pod's own.
func belongs(t *testing.T, c *controllertest.Cluster, name string, to types.UID) func() error {
	t.Helper()
	return func() error {
		claim, err := c.Client.CoreV1().PersistentVolumeClaims("default").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		owner := metav1.GetControllerOf(claim)
		if owner == nil || owner.UID != to || owner.Kind != "Pod" || owner.BlockOwnerDeletion == nil || !*owner.BlockOwnerDeletion {
			return fmt.Errorf("claim %s is owned by %v", name, owner)
		}
		return nil
	}
}

// TestClaimsAreMade: as the template says, once, and again when one is lost.
func TestClaimsAreMade(t *testing.T) {
	deleted := pod("deleted", "data")
	deleted.DeletionTimestamp, deleted.Finalizers = &metav1.Time{Time: metav1.Now().Time}, []string{"x/y"}
	c := controllertest.New(pod("web", "data", "cache"), pod("plain"), deleted)
	start(t, c)
	controllertest.Eventually(t, belongs(t, c, "web-data", "pod-web"))
	controllertest.Eventually(t, belongs(t, c, "web-cache", "pod-web"))
	claims := c.Client.CoreV1().PersistentVolumeClaims("default")
	claim, err := claims.Get(t.Context(), "web-data", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if claim.Labels["for"] != "data" || claim.Annotations["a"] != "b" || len(claim.Spec.AccessModes) != 1 {
		t.Errorf("the claim is not what the template says: %+v", claim)
	}
	if err := claims.Delete(t.Context(), "web-data", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	controllertest.Eventually(t, belongs(t, c, "web-data", "pod-web"))
	all, err := claims.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(all.Items) != 2 {
		t.Errorf("%d claims (%v), want those of one pod", len(all.Items), err)
	}
}

// TestAForeignClaimIsLeftAlone: the pod is told, and gets its own once the other is gone.
func TestAForeignClaimIsLeftAlone(t *testing.T) {
	c := controllertest.New(pod("web", "data"),
		&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-data", UID: "theirs"}})
	start(t, c)
	controllertest.Eventually(t, func() error {
		select {
		case e := <-c.Events.Events:
			if strings.HasPrefix(e, "Warning FailedBinding ephemeral volume data: ") && strings.Contains(e, "pod is not owner") {
				return nil
			}
			return fmt.Errorf("an event says %q", e)
		default:
			return fmt.Errorf("no event")
		}
	})
	claims := c.Client.CoreV1().PersistentVolumeClaims("default")
	if claim, err := claims.Get(t.Context(), "web-data", metav1.GetOptions{}); err != nil || claim.UID != "theirs" ||
		len(claim.OwnerReferences) != 0 {
		t.Fatalf("the foreign claim became %v (%v)", claim, err)
	}
	if err := claims.Delete(t.Context(), "web-data", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	controllertest.Eventually(t, belongs(t, c, "web-data", "pod-web"))
}
