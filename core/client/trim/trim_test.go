// SPDX-License-Identifier: Apache-2.0

package trim

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestTrimKeepsWhatTheServerReadsOfPods(t *testing.T) {
	claim := "claim"
	meta := metav1.ObjectMeta{
		Name: "a", Namespace: "b", UID: "c", Labels: map[string]string{"d": "e"},
		Annotations: map[string]string{corev1.MirrorPodAnnotationKey: "x", "container.apparmor.security.beta.kubernetes.io/main": "unconfined"},
	}
	secret := corev1.EnvVar{Name: "S", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{Key: "k"}}}
	config := corev1.EnvVar{Name: "C", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{Key: "k"}}}
	away := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Host: "169.254.169.254"}}}
	container := corev1.Container{
		Name: "main", Env: []corev1.EnvVar{secret, config}, EnvFrom: []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{}}},
		Ports: []corev1.ContainerPort{{HostPort: 80}}, LivenessProbe: away, SecurityContext: &corev1.SecurityContext{Privileged: new(bool)},
	}
	spec := corev1.PodSpec{
		NodeName: "n", ServiceAccountName: "s", HostNetwork: true, Containers: []corev1.Container{container},
		EphemeralContainers: []corev1.EphemeralContainer{{
			TargetContainerName:      "main",
			EphemeralContainerCommon: corev1.EphemeralContainerCommon(*container.DeepCopy()),
		}},
		Volumes:          []corev1.Volume{{VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}}},
		ImagePullSecrets: []corev1.LocalObjectReference{{Name: "pull"}}, ResourceClaims: []corev1.PodResourceClaim{{Name: "r"}},
	}
	status := corev1.PodStatus{
		Phase:                 corev1.PodRunning,
		ResourceClaimStatuses: []corev1.PodResourceClaimStatus{{Name: "r", ResourceClaimName: &claim}},
	}
	want := &corev1.Pod{ObjectMeta: *meta.DeepCopy(), Spec: spec, Status: *status.DeepCopy()}

	meta.Annotations["example.com/note"], meta.Annotations["note"], meta.Annotations[corev1.LastAppliedConfigAnnotation] = "y", "z", "{}"
	meta.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "m"}}
	status.Conditions, status.PodIP = []corev1.PodCondition{{Type: corev1.PodReady}}, "10.0.0.1"
	spec = *spec.DeepCopy()
	for _, c := range []*corev1.Container{&spec.Containers[0], (*corev1.Container)(&spec.EphemeralContainers[0].EphemeralContainerCommon)} {
		c.Image, c.Command = "i", []string{"run"}
		c.Resources.Limits = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
		c.VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
		c.Env = append([]corev1.EnvVar{{Name: "PLAIN", Value: "x"}}, c.Env...)
		c.Ports = append(c.Ports, corev1.ContainerPort{ContainerPort: 8080})
		c.ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/ready"}}}
	}
	spec.NodeSelector, spec.SchedulerName = map[string]string{"disk": "ssd"}, "default-scheduler"
	spec.Tolerations = []corev1.Toleration{{Key: "k"}}
	shared := &corev1.Pod{ObjectMeta: meta, Spec: spec, Status: status}
	before, own := shared.DeepCopy(), *shared
	got, err := Server(&own)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, shared); diff != "" {
		t.Errorf("what the pod shares with others has changed:\n%s", diff)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if other := (&corev1.Node{Status: corev1.NodeStatus{Phase: corev1.NodeRunning}}); other != mustTrim(t, other) || other.Status.Phase == "" {
		t.Error("an object of another kind was changed")
	}
}

func mustTrim(t *testing.T, o any) any {
	t.Helper()
	out, err := Server(o)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
