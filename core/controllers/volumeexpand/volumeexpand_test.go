// SPDX-License-Identifier: Apache-2.0

package volumeexpand_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/controllers/controllertest"
	"github.com/wasmplane/wasmplane/core/controllers/volumeexpand"
)

func claim(name, asks, has string) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}}
	c.Spec.VolumeName, c.Status.Phase = "pv-"+name, corev1.ClaimBound
	c.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(asks)}
	c.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(has)}
	return c
}

func volume(name string, source corev1.PersistentVolumeSource) *corev1.PersistentVolume {
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-" + name}}
	pv.Spec.PersistentVolumeSource, pv.Spec.ClaimRef = source, &corev1.ObjectReference{Namespace: "ns", Name: name, UID: types.UID(name)}
	return pv
}

// TestClaimsThatGrowAreTold: who is to let them, once for each size.
func TestClaimsThatGrowAreTold(t *testing.T) {
	disk := corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "disk.example", VolumeHandle: "h"}}
	nfs := corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{Server: "s", Path: "/p"}}
	c := controllertest.New(claim("grows", "2Gi", "1Gi"), volume("grows", disk), claim("fits", "1Gi", "1Gi"), volume("fits", disk),
		claim("fixed", "2Gi", "1Gi"), volume("fixed", nfs))
	ctl, err := volumeexpand.New(c.Env(t), 1)
	if err != nil {
		t.Fatal(err)
	}
	c.Start(t, ctl)
	var got []string
	heard := func(want ...string) {
		t.Helper()
		controllertest.Eventually(t, func() error {
			for len(c.Events.Events) > 0 {
				got = append(got, <-c.Events.Events)
			}
			for _, w := range want {
				if n := strings.Count(strings.Join(got, "\n"), w); n != 1 {
					return fmt.Errorf("%q is there %d times in %q", w, n, got)
				}
			}
			if len(got) != len(want) {
				return fmt.Errorf("%d events, want %d: %q", len(got), len(want), got)
			}
			return nil
		})
	}
	heard("Normal ExternalExpanding waiting for an external controller to expand this PVC: the resizer of CSI driver disk.example",
		"Warning ExternalExpanding volume pv-fixed is of a kind that the control plane does not expand")
	got = nil
	claims := c.Client.CoreV1().PersistentVolumeClaims("ns")
	for _, size := range []string{"2Gi", "3Gi"} { // touched, and then larger
		now, err := claims.Get(t.Context(), "grows", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		now.Labels = map[string]string{"touched": size}
		now.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse(size)
		if _, err := claims.Update(t.Context(), now, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	heard("the resizer of CSI driver disk.example")
}
