package wire

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
	spec := corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Name: "main", Image: "i"}}}
	status := corev1.PodStatus{Phase: corev1.PodRunning, ResourceClaimStatuses: []corev1.PodResourceClaimStatus{{Name: "r", ResourceClaimName: &claim}}}
	want := &corev1.Pod{ObjectMeta: *meta.DeepCopy(), Spec: spec, Status: *status.DeepCopy()}

	meta.Annotations["example.com/note"], meta.Annotations["note"], meta.Annotations[corev1.LastAppliedConfigAnnotation] = "y", "z", "{}"
	meta.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "m"}}
	status.Conditions, status.PodIP = []corev1.PodCondition{{Type: corev1.PodReady}}, "10.0.0.1"
	spec = *spec.DeepCopy()
	spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
	spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
	spec.Tolerations = []corev1.Toleration{{Key: "k"}}
	got, err := trim(&corev1.Pod{ObjectMeta: meta, Spec: spec, Status: status})
	if err != nil {
		t.Fatal(err)
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
	out, err := trim(o)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
