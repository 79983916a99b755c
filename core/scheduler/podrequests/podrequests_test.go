// SPDX-License-Identifier: Apache-2.0

package podrequests

import (
	"net/http/httptest"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPodsThatUseSomethingAreServed(t *testing.T) {
	amounts := func(cpu, memory string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
	}
	pod := func(name, node string, phase corev1.PodPhase, need corev1.ResourceRequirements) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
			Spec: corev1.PodSpec{
				NodeName: node, SchedulerName: "default-scheduler", Priority: new(int32),
				Containers: []corev1.Container{{Name: "a", Resources: need}, {Name: "b", Resources: need}},
			},
			Status: corev1.PodStatus{Phase: phase},
		}
	}
	huge := corev1.ResourceList{"hugepages-2Mi": resource.MustParse("4Mi"), "example.org/gpu": resource.MustParse("1")}
	pods := []*corev1.Pod{
		pod("runs", "one", corev1.PodRunning, corev1.ResourceRequirements{Requests: amounts("250m", "1Mi"), Limits: amounts("1", "0")}),
		pod("waits", "", corev1.PodPending, corev1.ResourceRequirements{Limits: huge}),
		pod("ended", "one", corev1.PodSucceeded, corev1.ResourceRequirements{Requests: amounts("1", "1Mi")}),
		pod("failed", "one", corev1.PodFailed, corev1.ResourceRequirements{Requests: amounts("1", "1Mi")}),
	}
	w := httptest.NewRecorder()
	Handler(func() []*corev1.Pod { return pods }).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", Path, nil))
	const of = `{namespace="shop",node="one",pod="runs",priority="0",resource=`
	const waits = `{namespace="shop",node="",pod="waits",priority="0",resource=`
	want := `# HELP kube_pod_resource_limit What a pod may use at most, with its overhead.
# TYPE kube_pod_resource_limit gauge
kube_pod_resource_limit` + waits + `"example.org/gpu",scheduler="default-scheduler",unit=""} 2
kube_pod_resource_limit` + waits + `"hugepages-2Mi",scheduler="default-scheduler",unit="bytes"} 8.388608e+06
kube_pod_resource_limit` + of + `"cpu",scheduler="default-scheduler",unit="cores"} 2
# HELP kube_pod_resource_request What a pod asks for, with its overhead.
# TYPE kube_pod_resource_request gauge
kube_pod_resource_request` + of + `"cpu",scheduler="default-scheduler",unit="cores"} 0.5
kube_pod_resource_request` + of + `"memory",scheduler="default-scheduler",unit="bytes"} 2.097152e+06
`
	if got := w.Body.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
