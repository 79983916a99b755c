// SPDX-License-Identifier: Apache-2.0

package reservation_test

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/wasmplane/wasmplane/core/kubelet/reservation"
)

func list(pairs ...string) corev1.ResourceList {
	out := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		out[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return out
}

func TestWhatPodsGet(t *testing.T) {
	capacity := list("cpu", "4", "memory", "8Gi", "ephemeral-storage", "100Gi", "pid", "1000", "pods", "110", "hugepages-2Mi", "64Mi")
	evict := list("memory", "100Mi", "ephemeral-storage", "4Gi")
	for name, c := range map[string]struct {
		s            reservation.Settings
		gets, bounds corev1.ResourceList
	}{
		"nothing reserved": {
			reservation.Settings{Enforce: []string{reservation.Pods}},
			list("cpu", "4", "memory", "8092Mi", "ephemeral-storage", "96Gi", "pods", "110"),
			list("cpu", "4", "memory", "8Gi", "pid", "1000"),
		},
		"both": {
			reservation.Settings{
				Kube:   map[string]string{"cpu": "200m", "memory": "500Mi", "ephemeral-storage": "1Gi", "pid": "100"},
				System: map[string]string{"cpu": "300m", "memory": "500Mi", "pid": "50"}, Enforce: []string{reservation.Pods},
			},
			list("cpu", "3500m", "memory", "7092Mi", "ephemeral-storage", "95Gi", "pods", "110"),
			list("cpu", "3500m", "memory", "7192Mi", "pid", "850"),
		},
		"not enforced": {
			reservation.Settings{Kube: map[string]string{"memory": "1Gi"}, Enforce: []string{reservation.None}},
			list("memory", "7068Mi"), list("memory", "8Gi"),
		},
		"CPUs that nobody has alone are the reserved ones": {
			reservation.Settings{Kube: map[string]string{"cpu": "3"}, CPUs: 1}, list("cpu", "3"), nil,
		},
		"memory of NUMA nodes alone": {
			reservation.Settings{NUMA: list("memory", "1Gi", "hugepages-2Mi", "2Mi")}, list("memory", "7068Mi", "hugepages-2Mi", "62Mi"), nil,
		},
		"memory of NUMA nodes as upstream asks for it: the sum of all": {
			reservation.Settings{System: map[string]string{"memory": "924Mi"}, NUMA: list("memory", "1Gi")}, list("memory", "7Gi"), nil,
		},
	} {
		r, err := c.s.Read()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := r.Check(capacity, evict); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		equal(t, name+": allocatable", r.Allocatable(capacity, evict), c.gets)
		equal(t, name+": bound", r.Bound(capacity), c.bounds)
	}
}

func equal(t *testing.T, what string, got, want corev1.ResourceList) {
	t.Helper()
	for name, q := range want {
		if have := got[name]; have.Cmp(q) != 0 {
			t.Errorf("%s: %s is %s, want %s", what, name, have.String(), q.String())
		}
	}
}

// More than there is is refused, together with what evictions keep free.
func TestMoreThanThereIs(t *testing.T) {
	s := reservation.Settings{Kube: map[string]string{"memory": "1Gi"}, System: map[string]string{"memory": "1000Mi"}}
	r, err := s.Read()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Check(list("memory", "2Gi"), list("memory", "24Mi")); err != nil {
		t.Errorf("all that there is: %v", err)
	}
	err = r.Check(list("memory", "2Gi"), list("memory", "100Mi"))
	if err == nil || !strings.Contains(err.Error(), "with the 100Mi of evictionHard, 2124Mi of memory, and the machine has 2Gi; reserve less") {
		t.Errorf("more than there is: %v", err)
	}
	if got := r.Allocatable(list("memory", "1Gi"), nil)["memory"]; !got.IsZero() {
		t.Errorf("pods get %s of a machine that has too little", got.String())
	}
}

func TestWrongSettings(t *testing.T) {
	for _, c := range []struct {
		s             reservation.Settings
		setting, says string
	}{
		{reservation.Settings{Kube: map[string]string{"gpu": "1"}}, "kubeReserved", `unknown resource "gpu": expected one of cpu, ephemeral-storage, memory, pid`},
		{reservation.Settings{Kube: map[string]string{"cpu": "much"}}, "kubeReserved.cpu", `found "much"`},
		{reservation.Settings{System: map[string]string{"memory": "-1Gi"}}, "systemReserved.memory", `found "-1Gi"`},
		{reservation.Settings{Enforce: []string{"kube-reserved"}}, "enforceNodeAllocatable", `found "kube-reserved"`},
		{reservation.Settings{Enforce: []string{"pods", "none"}}, "enforceNodeAllocatable", "expected none alone"},
	} {
		_, err := c.s.Read()
		var wrong *reservation.SettingError
		if !errors.As(err, &wrong) || wrong.Setting != c.setting || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v, want %s: %s", c.s, err, c.setting, c.says)
		}
	}
}
