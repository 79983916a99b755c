// SPDX-License-Identifier: Apache-2.0

package endpointslice

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/wasmplane/wasmplane/core/controllers/controllertest"
)

// behind is what slices say: every address, marked where it isn't ready, in order.
func behind(t *testing.T, c *controllertest.Cluster, want string) func() error {
	return func() error {
		list, err := c.Client.DiscoveryV1().EndpointSlices("default").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		var got []string
		for _, s := range list.Items {
			if s.Labels[discoveryv1.LabelServiceName] != "web" {
				return fmt.Errorf("slice %s: labels %v", s.Name, s.Labels)
			}
			for _, e := range s.Endpoints {
				mark := ""
				if e.Conditions.Ready != nil && !*e.Conditions.Ready {
					mark = "-"
				}
				got = append(got, fmt.Sprintf("%s%s:%d", mark, e.Addresses[0], *s.Ports[0].Port))
			}
		}
		slices.Sort(got)
		if s := strings.Join(got, " "); s != want {
			return fmt.Errorf("%q, want %q", s, want)
		}
		return nil
	}
}

func TestFollowsPods(t *testing.T) {
	pod := func(name, ip string, ready corev1.ConditionStatus) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name), Labels: map[string]string{"app": "web"}},
			Spec:       corev1.PodSpec{NodeName: "n"},
			Status: corev1.PodStatus{
				Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}},
				Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}},
			},
		}
	}
	c := controllertest.New(
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}},
		&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "web"},
			Spec: corev1.ServiceSpec{
				ClusterIP: "10.0.0.1", ClusterIPs: []string{"10.0.0.1"}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, Selector: map[string]string{"app": "web"},
				Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(8080)}},
			},
		},
		pod("a", "10.1.0.1", corev1.ConditionTrue), pod("b", "10.1.0.2", corev1.ConditionFalse))
	ctl, err := New(c.Env(t), 1)
	if err != nil {
		t.Fatal(err)
	}
	c.Start(t, ctl)
	controllertest.Eventually(t, behind(t, c, "-10.1.0.2:8080 10.1.0.1:8080"))
	if _, err := c.Client.CoreV1().Pods("default").UpdateStatus(t.Context(), pod("b", "10.1.0.2", corev1.ConditionTrue),
		metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	controllertest.Eventually(t, behind(t, c, "10.1.0.1:8080 10.1.0.2:8080"))
	if err := c.Client.CoreV1().Pods("default").Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	controllertest.Eventually(t, behind(t, c, "10.1.0.2:8080"))
}

func TestMirrors(t *testing.T) {
	endpoints := &corev1.Endpoints{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "web", Labels: map[string]string{"a": "b"}},
		Subsets: []corev1.EndpointSubset{{
			Addresses:         []corev1.EndpointAddress{{IP: "192.0.2.2"}, {IP: "192.0.2.1"}},
			NotReadyAddresses: []corev1.EndpointAddress{{IP: "2001:db8::1"}},
			Ports:             []corev1.EndpointPort{{Port: 443, Protocol: corev1.ProtocolTCP}},
		}},
	}
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"}}
	c := controllertest.New(endpoints, service)
	ctl, err := NewMirror(c.Env(t), 1)
	if err != nil {
		t.Fatal(err)
	}
	c.Start(t, ctl)
	controllertest.Eventually(t, behind(t, c, "-2001:db8::1:443 192.0.2.1:443 192.0.2.2:443"))
	next := endpoints.DeepCopy()
	next.ResourceVersion = ""
	next.Subsets[0].Addresses, next.Subsets[0].NotReadyAddresses = next.Subsets[0].Addresses[:1], nil
	if _, err := c.Client.CoreV1().Endpoints("default").Update(t.Context(), next, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	controllertest.Eventually(t, behind(t, c, "192.0.2.2:443"))
	// With a selector the Service's slices are another controller's.
	service.ResourceVersion, service.Spec.Selector = "", map[string]string{"app": "web"}
	if _, err := c.Client.CoreV1().Services("default").Update(t.Context(), service, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	controllertest.Eventually(t, behind(t, c, ""))
}

// TestEndpointsAreMeantForTheirZoneAndNode as the Service's trafficDistribution asks, also when it changes.
func TestEndpointsAreMeantForTheirZoneAndNode(t *testing.T) {
	var objects []runtime.Object
	for i, zone := range []string{"a", "b"} {
		name, ip := "n"+zone, fmt.Sprintf("10.1.0.%d", i+1)
		labels := map[string]string{corev1.LabelTopologyZone: zone}
		objects = append(objects, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}},
			&corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: "p" + zone, Namespace: "default", UID: types.UID(name), Labels: map[string]string{"app": "web"}},
				Spec:       corev1.PodSpec{NodeName: name},
				Status: corev1.PodStatus{
					Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}},
					Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
				},
			})
	}
	web := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "web"},
		Spec: corev1.ServiceSpec{
			ClusterIP: "10.0.0.1", ClusterIPs: []string{"10.0.0.1"}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, Selector: map[string]string{"app": "web"},
			Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(8080)}},
		},
	}
	c := controllertest.New(append(objects, web)...)
	ctl, err := New(c.Env(t), 1)
	if err != nil {
		t.Fatal(err)
	}
	c.Start(t, ctl)
	for _, step := range []struct{ asks, want string }{
		{"", "none none"},
		{"PreferClose", "zone:a zone:b"},
		{"PreferSameNode", "zone:a,node:na zone:b,node:nb"},
		{"PreferSameZone", "zone:a zone:b"},
		{"", "none none"},
	} {
		web.ResourceVersion = "" // whatever it is
		if web.Spec.TrafficDistribution = &step.asks; step.asks == "" {
			web.Spec.TrafficDistribution = nil
		}
		if _, err := c.Client.CoreV1().Services("default").Update(t.Context(), web, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		controllertest.Eventually(t, func() error {
			if got, err := hints(t, c); err != nil || got != step.want {
				return fmt.Errorf("%q: hints %q, want %q: %w", step.asks, got, step.want, err)
			}
			return nil
		})
	}
}

// hints of all endpoints, in order.
func hints(t *testing.T, c *controllertest.Cluster) (string, error) {
	t.Helper()
	list, err := c.Client.DiscoveryV1().EndpointSlices("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	var all []string
	for _, s := range list.Items {
		for _, e := range s.Endpoints {
			var of []string
			if e.Hints != nil {
				for _, z := range e.Hints.ForZones {
					of = append(of, "zone:"+z.Name)
				}
				for _, n := range e.Hints.ForNodes {
					of = append(of, "node:"+n.Name)
				}
			}
			all = append(all, cmp.Or(strings.Join(of, ","), "none"))
		}
	}
	slices.Sort(all)
	return strings.Join(all, " "), nil
}

// A node that moves right after the zones were read has its turn too early: the zones are read again later, whatever else happens.
func TestZonesAreReadAgain(t *testing.T) {
	c := controllertest.New() // of no node, whose turn would be this one's
	ctl, err := New(c.Env(t), 1)
	if err != nil {
		t.Fatal(err)
	}
	c.Start(t, ctl)
	ctl.mu.Lock()
	ctl.moved, ctl.read = true, time.Now()
	ctl.mu.Unlock()
	ctl.loop.Add(zones)
	controllertest.Eventually(t, func() error {
		ctl.mu.Lock()
		defer ctl.mu.Unlock()
		if ctl.moved {
			return errors.New("the zones are still to be read")
		}
		return nil
	})
}
