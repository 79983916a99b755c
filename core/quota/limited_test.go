// SPDX-License-Identifier: Apache-2.0

package quota_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/quota"
)

// What is limited is used only where a quota covers it, by name or by scope.
func TestLimitedResourcesNeedAQuota(t *testing.T) {
	gold := func(class string) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: "c"},
			Spec: corev1.PersistentVolumeClaimSpec{
				StorageClassName: &class,
				Resources:        corev1.VolumeResourceRequirements{Requests: list("storage", "1Gi")},
			},
		}
	}
	important := pod(list("cpu", "1"), nil)
	important.Spec.PriorityClassName = "cluster-services"
	priority := corev1.ScopedResourceSelectorRequirement{
		ScopeName: corev1.ResourceQuotaScopePriorityClass,
		Operator:  corev1.ScopeSelectorOpIn, Values: []string{"cluster-services"},
	}
	covering := limited(list("pods", "5"), list("pods", "0"))
	covering.Spec.ScopeSelector = &corev1.ScopeSelector{MatchExpressions: []corev1.ScopedResourceSelectorRequirement{priority}}
	all := []quota.Limited{
		{Resource: podResource, Scopes: []corev1.ScopedResourceSelectorRequirement{priority}},
		{Resource: claimResource, Contains: []string{"gold.storageclass.storage.k8s.io/requests.storage"}},
	}
	const name = "gold.storageclass.storage.k8s.io/requests.storage"
	for _, c := range []struct {
		name   string
		of     quota.Change
		quotas []*corev1.ResourceQuota
		err    string
	}{
		{"an ordinary pod", quota.Change{Object: pod(nil, nil)}, nil, ""},
		{"an important pod", quota.Change{Object: important}, nil, "insufficient quota to match these scopes: [{PriorityClass In [cluster-services]}]"},
		{"under a quota of something else", quota.Change{Object: important}, []*corev1.ResourceQuota{limited(list("pods", "5"), list("pods", "0"))}, "insufficient quota to match"},
		{"under its quota", quota.Change{Object: important}, []*corev1.ResourceQuota{covering}, ""},
		{"an update that takes no more", quota.Change{Object: important, Old: important}, nil, ""},
		{"silver", quota.Change{Object: gold("silver")}, nil, ""},
		{"gold", quota.Change{Object: gold("gold")}, nil, "insufficient quota to consume: " + name},
		{"gold under its quota", quota.Change{Object: gold("gold")}, []*corev1.ResourceQuota{limited(list(name, "2Gi"), list(name, "0"))}, ""},
		{"gold beyond its quota", quota.Change{Object: gold("gold")}, []*corev1.ResourceQuota{limited(list(name, "2Gi"), list(name, "2Gi"))}, "exceeded quota"},
	} {
		t.Run(c.name, func(t *testing.T) {
			gr := podResource
			if _, claim := c.of.Object.(*corev1.PersistentVolumeClaim); claim {
				gr = claimResource
			}
			c.of.Now = time.Now()
			_, err := quota.For(gr).Charge(c.quotas, all, c.of)
			if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Errorf("error %v, want %q", err, c.err)
			}
			if _, refused := quota.AsRefused(err); err != nil && !refused {
				t.Errorf("%v is no refusal", err)
			}
		})
	}
	if !quota.Limits(all, claimResource) || quota.Limits(all, serviceResource) {
		t.Error("what is limited is not known")
	}
}
