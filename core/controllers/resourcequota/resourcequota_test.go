// SPDX-License-Identifier: Apache-2.0

package resourcequota_test

import (
	"fmt"
	"testing"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	metadatafake "k8s.io/client-go/metadata/fake"

	"github.com/wasmplane/wasmplane/core/controllers/controllertest"
	"github.com/wasmplane/wasmplane/core/controllers/resourcequota"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func limits(pairs ...string) *corev1.ResourceQuota {
	q := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "q", Namespace: "default"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{}},
	}
	for i := 0; i+1 < len(pairs); i += 2 {
		q.Spec.Hard[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return q
}

func pod(name, cpu string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{
		Name: "c", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse(cpu)}},
	}}}}
}

// start runs the controller on a cluster that serves pods, and Secrets by their metadata.
func start(t *testing.T, secrets []runtime.Object, objects ...runtime.Object) (*controllertest.Cluster, *metadatafake.FakeMetadataClient) {
	t.Helper()
	c := controllertest.New(objects...)
	verbs := metav1.Verbs{"list", "watch"}
	c.Client.Resources = []*metav1.APIResourceList{{GroupVersion: "v1", APIResources: []metav1.APIResource{
		{Name: "pods", Kind: "Pod", Namespaced: true, Verbs: verbs}, {Name: "secrets", Kind: "Secret", Namespaced: true, Verbs: verbs},
	}}}
	meta := metadatafake.NewSimpleMetadataClient(metadataScheme(t), secrets...)
	controller, err := resourcequota.New(c.Env(t), 2, meta)
	if err != nil {
		t.Fatal(err)
	}
	c.Start(t, controller)
	return c, meta
}

func metadataScheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	s := metadatafake.NewTestScheme()
	if err := metav1.AddMetaToScheme(s); err != nil {
		t.Fatal(err)
	}
	return s
}

func secret(name string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
	}
}

// uses waits until the quota says so; "" stands for a name without a number.
func uses(t *testing.T, c *controllertest.Cluster, pairs ...string) {
	t.Helper()
	controllertest.Eventually(t, func() error {
		q, err := c.Client.CoreV1().ResourceQuotas("default").Get(t.Context(), "q", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for i := 0; i+1 < len(pairs); i += 2 {
			n, ok := q.Status.Used[corev1.ResourceName(pairs[i])]
			switch {
			case pairs[i+1] == "" && ok:
				return fmt.Errorf("%s is counted: %s", pairs[i], n.String())
			case pairs[i+1] != "" && (!ok || n.Cmp(resource.MustParse(pairs[i+1])) != 0):
				return fmt.Errorf("%s is %s (%v), want %s", pairs[i], n.String(), ok, pairs[i+1])
			}
		}
		if len(q.Status.Hard) != len(q.Spec.Hard) {
			return fmt.Errorf("status.hard is %v", q.Status.Hard)
		}
		return nil
	})
}

func TestWhatThereIsIsCounted(t *testing.T) {
	c, _ := start(t, []runtime.Object{secret("a"), secret("b")},
		limits("pods", "5", "requests.cpu", "2", "secrets", "9", "count/widgets.example.com", "1"), pod("a", "250m"), pod("b", "500m"))
	uses(t, c, "pods", "2", "requests.cpu", "750m", "secrets", "2", "count/widgets.example.com", "")
}

func TestWhatIsDeletedIsGivenBack(t *testing.T) {
	c, _ := start(t, nil, limits("pods", "5"), pod("a", "1"), pod("b", "1"))
	uses(t, c, "pods", "2")
	if err := c.Client.CoreV1().Pods("default").Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	uses(t, c, "pods", "1")
	// A pod that has ended takes nothing any more.
	b, err := c.Client.CoreV1().Pods("default").Get(t.Context(), "b", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	b = b.DeepCopy()
	b.Status.Phase = corev1.PodSucceeded
	if _, err := c.Client.CoreV1().Pods("default").UpdateStatus(t.Context(), b, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	uses(t, c, "pods", "0")
}

func TestAChangeOfTheLimitsIsTaken(t *testing.T) {
	c, _ := start(t, nil, limits("pods", "5"), pod("a", "1"))
	uses(t, c, "pods", "1")
	q, err := c.Client.CoreV1().ResourceQuotas("default").Get(t.Context(), "q", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	q = q.DeepCopy()
	q.Spec.Hard = corev1.ResourceList{"requests.cpu": resource.MustParse("4")}
	if _, err := c.Client.CoreV1().ResourceQuotas("default").Update(t.Context(), q, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	uses(t, c, "requests.cpu", "1", "pods", "")
}

// A charge of admission that has no object yet is not taken back at once: the
// object may be on its way.
func TestAFreshChargeIsLeftAlone(t *testing.T) {
	c, _ := start(t, nil, limits("pods", "5"), pod("a", "1"))
	uses(t, c, "pods", "1")
	q, err := c.Client.CoreV1().ResourceQuotas("default").Get(t.Context(), "q", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	q = q.DeepCopy()
	q.Status.Used["pods"] = resource.MustParse("2")
	if _, err := c.Client.CoreV1().ResourceQuotas("default").UpdateStatus(t.Context(), q, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Client.CoreV1().Pods("default").Create(t.Context(), pod("b", "1"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	uses(t, c, "pods", "2")
	if err := c.Client.CoreV1().Pods("default").Delete(t.Context(), "b", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	uses(t, c, "pods", "1")
}
