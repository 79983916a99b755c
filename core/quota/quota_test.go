// SPDX-License-Identifier: Apache-2.0

package quota_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	quotav1 "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/quota"
)

func list(pairs ...string) corev1.ResourceList {
	out := corev1.ResourceList{}
	for i := 0; i+1 < len(pairs); i += 2 {
		out[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return out
}

func limited(hard, used corev1.ResourceList, scopes ...corev1.ResourceQuotaScope) *corev1.ResourceQuota {
	return &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "q", Namespace: "default"},
		Spec:       corev1.ResourceQuotaSpec{Hard: hard, Scopes: scopes},
		Status:     corev1.ResourceQuotaStatus{Hard: hard, Used: used},
	}
}

func pod(requests, limits corev1.ResourceList) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default"},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Requests: requests, Limits: limits}}},
		},
	}
}

var (
	podResource     = schema.GroupResource{Resource: "pods"}
	serviceResource = schema.GroupResource{Resource: "services"}
	claimResource   = schema.GroupResource{Resource: "persistentvolumeclaims"}
)

func TestUsage(t *testing.T) {
	now := time.Now()
	ended := pod(list("cpu", "1"), nil)
	ended.Status.Phase = corev1.PodSucceeded
	late := pod(list("cpu", "1"), nil)
	late.DeletionTimestamp, late.DeletionGracePeriodSeconds = ptr.To(metav1.NewTime(now.Add(-time.Minute))), ptr.To(int64(30))
	service := func(kind corev1.ServiceType, ports int) *corev1.Service {
		return &corev1.Service{Spec: corev1.ServiceSpec{Type: kind, Ports: make([]corev1.ServicePort, ports)}}
	}
	claim := &corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{
		StorageClassName: ptr.To("gold"), Resources: corev1.VolumeResourceRequirements{Requests: list("storage", "1500m")},
	}}
	for _, c := range []struct {
		name string
		gr   schema.GroupResource
		o    runtime.Object
		want corev1.ResourceList
	}{
		{
			"a pod with everything", podResource,
			pod(list("cpu", "100m", "memory", "1Gi", "ephemeral-storage", "1Gi", "example.com/gpu", "2", "hugepages-2Mi", "4Mi"), list("cpu", "1")),
			list("count/pods", "1", "pods", "1", "cpu", "100m", "requests.cpu", "100m", "limits.cpu", "1", "memory", "1Gi", "requests.memory", "1Gi",
				"ephemeral-storage", "1Gi", "requests.ephemeral-storage", "1Gi", "requests.example.com/gpu", "2", "hugepages-2Mi", "4Mi",
				"requests.hugepages-2Mi", "4Mi"),
		},
		{"a pod that has ended", podResource, ended, list("count/pods", "1")},
		{"a pod that should be gone", podResource, late, list("count/pods", "1")},
		{
			"a ClusterIP service", serviceResource, service(corev1.ServiceTypeClusterIP, 2),
			list("count/services", "1", "services", "1", "services.nodeports", "0", "services.loadbalancers", "0"),
		},
		{
			"a NodePort service", serviceResource, service(corev1.ServiceTypeNodePort, 2),
			list("count/services", "1", "services", "1", "services.nodeports", "2", "services.loadbalancers", "0"),
		},
		{
			"a LoadBalancer service", serviceResource, service(corev1.ServiceTypeLoadBalancer, 1),
			list("count/services", "1", "services", "1", "services.nodeports", "1", "services.loadbalancers", "1"),
		},
		{
			"a claim, in whole bytes", claimResource, claim,
			list("count/persistentvolumeclaims", "1", "persistentvolumeclaims", "1", "requests.storage", "2",
				"gold.storageclass.storage.k8s.io/persistentvolumeclaims", "1", "gold.storageclass.storage.k8s.io/requests.storage", "2"),
		},
		{"a secret", schema.GroupResource{Resource: "secrets"}, &corev1.Secret{}, list("count/secrets", "1", "secrets", "1")},
		{"a custom resource", schema.GroupResource{Group: "example.com", Resource: "widgets"}, &metav1.PartialObjectMetadata{}, list("count/widgets.example.com", "1")},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := quota.For(c.gr).Usage(c.o, now)
			if err != nil || !quotav1.Equals(got, c.want) {
				t.Errorf("%v (%v), want %v", got, err, c.want)
			}
		})
	}
}

func TestCharges(t *testing.T) {
	small := pod(list("cpu", "500m", "memory", "1Gi"), nil)
	deadline := small.DeepCopy()
	deadline.Spec.ActiveDeadlineSeconds = ptr.To(int64(5))
	important := small.DeepCopy()
	important.Spec.PriorityClassName = "high"
	idle := pod(nil, nil)
	high := limited(list("pods", "1"), list("pods", "0"))
	high.Spec.ScopeSelector = &corev1.ScopeSelector{MatchExpressions: []corev1.ScopedResourceSelectorRequirement{
		{ScopeName: corev1.ResourceQuotaScopePriorityClass, Operator: corev1.ScopeSelectorOpIn, Values: []string{"high"}},
	}}
	none := list("pods", "0")
	for _, c := range []struct {
		name   string
		q      *corev1.ResourceQuota
		change quota.Change
		used   corev1.ResourceList
		err    string
	}{
		{"what fits", limited(list("pods", "2", "cpu", "1"), list("pods", "1", "cpu", "500m")), quota.Change{Object: small}, list("pods", "2", "cpu", "1"), ""},
		{
			"what does not", limited(list("pods", "1", "requests.cpu", "600m"), list("pods", "0", "requests.cpu", "200m")),
			quota.Change{Object: small},
			nil,
			"exceeded quota: q, requested: requests.cpu=500m, used: requests.cpu=200m, limited: requests.cpu=600m",
		},
		{
			"several that do not, sorted", limited(list("pods", "1", "cpu", "100m"), list("pods", "1", "cpu", "0")),
			quota.Change{Object: small},
			nil,
			"exceeded quota: q, requested: cpu=500m,pods=1, used: cpu=0,pods=1, limited: cpu=100m,pods=1",
		},
		{
			"a pod that says too little", limited(list("limits.cpu", "1", "limits.memory", "1Gi"), list("limits.cpu", "0", "limits.memory", "0")),
			quota.Change{Object: small},
			nil,
			"failed quota: q: must specify limits.cpu for: c; limits.memory for: c",
		},
		{"a quota that nobody has counted yet", limited(list("pods", "1"), nil), quota.Change{Object: small}, nil, "status unknown for quota: q, resources: pods"},
		{"a quota of others", limited(list("services", "0"), list("services", "0")), quota.Change{Object: small}, list("services", "0"), ""},
		{"best effort, in scope", limited(none, none, corev1.ResourceQuotaScopeBestEffort), quota.Change{Object: idle}, nil, "exceeded quota"},
		{"best effort, out of scope", limited(none, none, corev1.ResourceQuotaScopeBestEffort), quota.Change{Object: small}, none, ""},
		{"terminating, in scope", limited(none, none, corev1.ResourceQuotaScopeTerminating), quota.Change{Object: deadline}, nil, "exceeded quota"},
		{"not terminating, out of scope", limited(none, none, corev1.ResourceQuotaScopeNotTerminating), quota.Change{Object: deadline}, none, ""},
		{"priority, in scope", high, quota.Change{Object: important}, list("pods", "1"), ""},
		{"priority, out of scope", high, quota.Change{Object: small}, none, ""},
		{"a pod that changes its scope", limited(list("pods", "1"), none, corev1.ResourceQuotaScopeTerminating), quota.Change{Object: deadline, Old: small}, list("pods", "1"), ""},
		{
			"a resize pays the difference", limited(list("cpu", "1"), list("cpu", "500m")),
			quota.Change{Object: pod(list("cpu", "900m"), nil), Old: small, Subresource: "resize"},
			list("cpu", "900m"), "",
		},
		{
			"a smaller one pays nothing", limited(list("cpu", "1"), list("cpu", "1")),
			quota.Change{Object: pod(list("cpu", "100m"), nil), Old: small, Subresource: "resize"},
			list("cpu", "1"), "",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.change.Now = time.Now()
			before := c.q.DeepCopy()
			got, err := quota.For(podResource).Charge([]*corev1.ResourceQuota{c.q}, nil, c.change)
			if c.err != "" {
				if _, refused := quota.AsRefused(err); !refused || !strings.Contains(err.Error(), c.err) {
					t.Errorf("error %v, want %s", err, c.err)
				}
				return
			}
			if err != nil || !quotav1.Equals(got[0].Status.Used, c.used) {
				t.Errorf("used %v (%v), want %v", got, err, c.used)
			}
			if !quotav1.Equals(before.Status.Used, c.q.Status.Used) {
				t.Error("the quota that was given was changed")
			}
		})
	}
}

func TestTrackedIsWhatTheNamesNeed(t *testing.T) {
	got := map[schema.GroupResource]bool{}
	for _, m := range quota.Tracked([]corev1.ResourceName{
		"requests.example.com/gpu", "count/widgets.example.com", "secrets", "count/events",
		"nonsense", "x.storageclass.storage.k8s.io/requests.storage",
	}) {
		got[m.Resource] = true
	}
	want := []schema.GroupResource{podResource, {Group: "example.com", Resource: "widgets"}, {Resource: "secrets"}, claimResource}
	if len(got) != len(want) {
		t.Errorf("tracked %v, want %v", got, want)
	}
	for _, gr := range want {
		if !got[gr] {
			t.Errorf("%v is not tracked", gr)
		}
	}
}
