// SPDX-License-Identifier: Apache-2.0

package podsize_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/admissiontest"
	"github.com/wasmplane/wasmplane/core/admission/podsize"
)

func pod(spec corev1.PodSpec) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default"}, Spec: spec}
}

func many[T any](n int) []T { return make([]T, n) }

func labels(n int) map[string]string {
	out := map[string]string{}
	for i := range n {
		out[fmt.Sprint(i)] = ""
	}
	return out
}

// TestPartsAreBounded: for each limit a pod that is at it, and one that is beyond.
func TestPartsAreBounded(t *testing.T) {
	amounts := func(n int) corev1.ResourceList {
		out := corev1.ResourceList{}
		for i := range n {
			out[corev1.ResourceName(fmt.Sprintf("example.com/%d", i))] = resource.MustParse("1")
		}
		return out
	}
	expressions := func(n int) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchExpressions: many[metav1.LabelSelectorRequirement](n)}
	}
	var cases []admissiontest.Case
	for _, c := range []struct {
		what string
		most int
		spec func(n int) corev1.PodSpec
	}{
		{"containers", 250, func(n int) corev1.PodSpec {
			return corev1.PodSpec{Containers: many[corev1.Container](n - 2), InitContainers: many[corev1.Container](2)}
		}},
		{"volumes", 1000, func(n int) corev1.PodSpec {
			return corev1.PodSpec{Volumes: append(many[corev1.Volume](n-11), corev1.Volume{
				VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: many[corev1.VolumeProjection](10)}},
			})}
		}},
		{"ports", 5000, func(n int) corev1.PodSpec {
			return corev1.PodSpec{
				Containers:     []corev1.Container{{Ports: many[corev1.ContainerPort](n - 1)}},
				InitContainers: []corev1.Container{{Ports: many[corev1.ContainerPort](1)}},
			}
		}},
		{"kinds of resources", 1000, func(n int) corev1.PodSpec {
			return corev1.PodSpec{
				Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: amounts(2), Limits: amounts(n - 3)}}},
				Resources:  &corev1.ResourceRequirements{Requests: amounts(2)}, Overhead: amounts(1),
			}
		}},
		{"resource claims", 250, func(n int) corev1.PodSpec { return corev1.PodSpec{ResourceClaims: many[corev1.PodResourceClaim](n)} }},
		{"image pull secrets", 100, func(n int) corev1.PodSpec {
			return corev1.PodSpec{ImagePullSecrets: many[corev1.LocalObjectReference](n)}
		}},
		{"labels of its node selector", 500, func(n int) corev1.PodSpec { return corev1.PodSpec{NodeSelector: labels(n)} }},
		{"tolerations", 500, func(n int) corev1.PodSpec { return corev1.PodSpec{Tolerations: many[corev1.Toleration](n)} }},
		{"terms of affinity", 500, func(n int) corev1.PodSpec {
			return corev1.PodSpec{Affinity: &corev1.Affinity{
				NodeAffinity: &corev1.NodeAffinity{
					RequiredDuringSchedulingIgnoredDuringExecution:  &corev1.NodeSelector{NodeSelectorTerms: many[corev1.NodeSelectorTerm](1)},
					PreferredDuringSchedulingIgnoredDuringExecution: many[corev1.PreferredSchedulingTerm](1),
				},
				PodAffinity: &corev1.PodAffinity{
					RequiredDuringSchedulingIgnoredDuringExecution:  many[corev1.PodAffinityTerm](1),
					PreferredDuringSchedulingIgnoredDuringExecution: many[corev1.WeightedPodAffinityTerm](1),
				},
				PodAntiAffinity: &corev1.PodAntiAffinity{
					RequiredDuringSchedulingIgnoredDuringExecution:  many[corev1.PodAffinityTerm](n - 5),
					PreferredDuringSchedulingIgnoredDuringExecution: many[corev1.WeightedPodAffinityTerm](1),
				},
			}}
		}},
		{"requirements", 5000, func(n int) corev1.PodSpec {
			return corev1.PodSpec{Affinity: &corev1.Affinity{
				NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
					NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: many[corev1.NodeSelectorRequirement](1000)}},
				}},
				PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
					LabelSelector: expressions(1000), NamespaceSelector: expressions(1000), Namespaces: many[string](n - 3000),
				}}},
			}}
		}},
		{"topology spread constraints", 50, func(n int) corev1.PodSpec {
			return corev1.PodSpec{TopologySpreadConstraints: many[corev1.TopologySpreadConstraint](n)}
		}},
	} {
		at, beyond := pod(c.spec(c.most)), pod(c.spec(c.most+1))
		refused := fmt.Sprintf("the pod has %d %s", c.most+1, c.what)
		cases = append(cases,
			admissiontest.Case{Name: c.what + " at the limit", Request: func() *admission.Request { return admissiontest.Creating("pods", at) }},
			admissiontest.Case{
				Name: c.what + " beyond", Denied: refused,
				Request: func() *admission.Request { return admissiontest.Creating("pods", beyond) },
			},
			admissiontest.Case{
				Name: c.what + " as many as before", Request: func() *admission.Request { return admissiontest.Updating("pods", beyond, beyond) },
			},
			admissiontest.Case{
				Name: c.what + " more than before", Denied: refused,
				Request: func() *admission.Request { return admissiontest.Updating("pods", at, beyond) },
			})
	}
	before, after := pod(corev1.PodSpec{Containers: many[corev1.Container](250)}), pod(corev1.PodSpec{Containers: many[corev1.Container](250)})
	after.Spec.EphemeralContainers = many[corev1.EphemeralContainer](1)
	cases = append(cases, admissiontest.Case{
		Name: "one container more, for debugging", Denied: "the pod has 251 containers",
		Request: func() *admission.Request {
			return admissiontest.Updating("pods", before, after, admissiontest.Subresource("ephemeralcontainers"))
		},
	})
	admissiontest.Run(t, podsize.Plugin{}, cases...)
}
