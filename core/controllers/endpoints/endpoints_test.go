// SPDX-License-Identifier: Apache-2.0

package endpoints

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"

	"github.com/wasmplane/wasmplane/core/controllers/controllertest"
)

func pod(name, ip string, ready bool) *corev1.Pod {
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name), Labels: map[string]string{"app": "web"}},
		Spec: corev1.PodSpec{
			NodeName: "n",
			Containers: []corev1.Container{{
				Name:  "c",
				Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080, Protocol: corev1.ProtocolTCP}},
			}},
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}},
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: status}},
		},
	}
}

func web() *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", Labels: map[string]string{"a": "b"}},
		Spec: corev1.ServiceSpec{
			ClusterIP: "10.0.0.1", Selector: map[string]string{"app": "web"},
			Ports: []corev1.ServicePort{
				{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromString("http")},
				{Name: "metrics", Port: 90, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(9090)},
			},
		},
	}
}

func TestFollowsPods(t *testing.T) {
	c := controllertest.New(web(), pod("a", "10.1.0.1", true), pod("b", "10.1.0.2", false))
	ctl, err := New(c.Env(t), 1)
	if err != nil {
		t.Fatal(err)
	}
	c.Start(t, ctl)
	is := func(want string) func() error {
		return func() error {
			e, err := c.Client.CoreV1().Endpoints("default").Get(t.Context(), "web", metav1.GetOptions{})
			if err != nil {
				return err
			}
			got := ""
			for _, s := range e.Subsets {
				for _, p := range s.Ports {
					got += fmt.Sprintf("%s:%d ", p.Name, p.Port)
				}
				for _, a := range s.Addresses {
					got += "+" + a.IP + " "
				}
				for _, a := range s.NotReadyAddresses {
					got += "-" + a.IP + " "
				}
			}
			if got != want || e.Labels["a"] != "b" || e.Labels[managedByKey] != managedBy {
				return fmt.Errorf("%q, labels %v", got, e.Labels)
			}
			return nil
		}
	}
	controllertest.Eventually(t, is("http:8080 metrics:9090 +10.1.0.1 -10.1.0.2 "))
	b := pod("b", "10.1.0.2", true)
	if _, err := c.Client.CoreV1().Pods("default").UpdateStatus(t.Context(), b, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	controllertest.Eventually(t, is("http:8080 metrics:9090 +10.1.0.1 +10.1.0.2 "))
	if err := c.Client.CoreV1().Pods("default").Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	controllertest.Eventually(t, is("http:8080 metrics:9090 +10.1.0.2 "))
	if err := c.Client.CoreV1().Services("default").Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	controllertest.Eventually(t, func() error {
		list, err := c.Client.CoreV1().Endpoints("default").List(t.Context(), metav1.ListOptions{})
		if err == nil && len(list.Items) > 0 {
			return fmt.Errorf("%d are left", len(list.Items))
		}
		return err
	})
}

// However endpoints are written down, they come out the same; none is lost, none
// is there twice for a port.
func TestCanonical(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type fact struct {
			port int32
			ip   string
		}
		facts := map[fact]bool{}
		var raw []corev1.EndpointSubset
		for range rapid.IntRange(0, 20).Draw(t, "facts") {
			f := fact{rapid.Int32Range(1, 4).Draw(t, "port"), fmt.Sprint("10.0.0.", rapid.IntRange(1, 5).Draw(t, "ip"))}
			ready := rapid.Bool().Draw(t, "ready")
			if was, seen := facts[f]; seen {
				ready = was
			}
			facts[f] = ready
			s := corev1.EndpointSubset{Ports: []corev1.EndpointPort{{Port: f.port}}}
			if ready {
				s.Addresses = []corev1.EndpointAddress{{IP: f.ip}}
			} else {
				s.NotReadyAddresses = []corev1.EndpointAddress{{IP: f.ip}}
			}
			raw = append(raw, s)
		}
		once := canonical(raw)
		slices.Reverse(raw)
		if again := canonical(raw); !equality.Semantic.DeepEqual(once, again) {
			t.Fatalf("in another order: %v and %v", once, again)
		}
		if again := canonical(once); !equality.Semantic.DeepEqual(once, again) {
			t.Fatalf("a second time: %v and %v", once, again)
		}
		got := map[fact]bool{}
		for _, s := range once {
			for _, p := range s.Ports {
				for _, a := range s.Addresses {
					got[fact{p.Port, a.IP}] = true
				}
				for _, a := range s.NotReadyAddresses {
					got[fact{p.Port, a.IP}] = false
				}
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(facts) {
			t.Fatalf("got %v, want %v", got, facts)
		}
	})
}

func TestTruncate(t *testing.T) {
	e := &corev1.Endpoints{Subsets: []corev1.EndpointSubset{
		{Ports: []corev1.EndpointPort{{Port: 1}}},
		{Ports: []corev1.EndpointPort{{Port: 2}}},
	}}
	for i := range 900 {
		e.Subsets[0].Addresses = append(e.Subsets[0].Addresses, corev1.EndpointAddress{IP: fmt.Sprint(i)})
		e.Subsets[1].NotReadyAddresses = append(e.Subsets[1].NotReadyAddresses, corev1.EndpointAddress{IP: fmt.Sprint(i)})
	}
	if !truncate(e) || len(e.Subsets[0].Addresses) != 900 || len(e.Subsets[1].NotReadyAddresses) != 100 {
		t.Errorf("%d ready, %d others", len(e.Subsets[0].Addresses), len(e.Subsets[1].NotReadyAddresses))
	}
	if truncate(e) {
		t.Error("1000 is not too many")
	}
}
