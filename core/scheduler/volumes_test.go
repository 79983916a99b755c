// SPDX-License-Identifier: Apache-2.0

package scheduler_test

import (
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"

	"github.com/wasmplane/wasmplane/core/scheduler"
	"github.com/wasmplane/wasmplane/core/scheduler/report"
)

// claiming is a pod that uses a claim.
func claiming(name, claim string) *corev1.Pod {
	p := pod(name, "1")
	p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
	}}}
	return p
}

// A claim wakes the pods that use it, through all that happens to it until it is bound; others are not tried.
func TestAClaimWakesThePodsThatUseIt(t *testing.T) {
	others := &atomic.Int32{}
	c := startWith(t, soon, func(api report.Effects) report.Effects { return api }, scheduler.Weighted{Plugin: tries{"other", others}})
	c.node("a", "4")
	c.create(claiming("other", "others"))
	c.await("other", refused)
	c.create(claiming("mine", "data"))
	if got, want := message(c.await("mine", refused)), `0/1 nodes are available: persistentvolumeclaim "data" not found.`; got != want {
		t.Fatalf("message %q, want %q", got, want)
	}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data"}}
	claims := c.client.CoreV1().PersistentVolumeClaims("default")
	if _, err := claims.Create(t.Context(), claim, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.await("mine", func(p *corev1.Pod) bool {
		return message(p) == "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims."
	})
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}}
	if _, err := c.client.CoreV1().PersistentVolumes().Create(t.Context(), pv, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	claim.Spec.VolumeName, claim.Annotations = "pv", map[string]string{volume.AnnBindCompleted: "yes"}
	if _, err := claims.Update(t.Context(), claim, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.await("mine", bound)
	if n := others.Load(); n != 1 {
		t.Errorf("the pod of another claim was tried %d times", n)
	}
}

// A pod whose volume is in no zone of a node is tried again when the volume's zones change, and by no other change of it.
func TestAVolumeThatMovesWakesItsPod(t *testing.T) {
	c := startWith(t, soon, func(api report.Effects) report.Effects { return api })
	c.node("a", "4", func(n *corev1.Node) { n.Labels[corev1.LabelTopologyZone] = "z1" })
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv", Labels: map[string]string{corev1.LabelTopologyZone: "z2"}}}
	volumes := c.client.CoreV1().PersistentVolumes()
	if _, err := volumes.Create(t.Context(), pv, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: "data", Annotations: map[string]string{volume.AnnBindCompleted: "yes"},
	}}
	claim.Spec.VolumeName = "pv"
	if _, err := c.client.CoreV1().PersistentVolumeClaims("default").Create(t.Context(), claim, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.create(claiming("mine", "data"))
	c.await("mine", func(p *corev1.Pod) bool {
		return strings.HasPrefix(message(p), "0/1 nodes are available: 1 node(s) had no available volume zone.")
	})
	pv.Labels[corev1.LabelTopologyZone] = "z1__z2"
	if _, err := volumes.Update(t.Context(), pv, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.await("mine", bound)
}
