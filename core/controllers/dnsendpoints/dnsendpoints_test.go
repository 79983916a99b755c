// SPDX-License-Identifier: Apache-2.0

package dnsendpoints

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/controllers/controllertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func node(name string, ready corev1.ConditionStatus) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}},
	}
}

func slice(node string, ready bool) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceSystem, Name: "kube-dns-" + node, Labels: map[string]string{discoveryv1.LabelManagedBy: ManagedBy},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{
			Addresses: []string{"10.1.2.1"}, NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
			Hints: &discoveryv1.EndpointHints{ForNodes: []discoveryv1.ForNode{{Name: node}}},
		}},
	}
}

// unhinted is a slice as versions before hints wrote it.
func unhinted(node string) *discoveryv1.EndpointSlice {
	s := slice(node, true)
	s.Endpoints[0].Hints = nil
	return s
}

func marked(name string, ready corev1.ConditionStatus, podCIDR string) *corev1.Node {
	n := node(name, ready)
	n.Annotations, n.Spec.PodCIDR = map[string]string{"wasmplane.dev/dns": "serves"}, podCIDR
	return n
}

func dual(name string, podCIDRs ...string) *corev1.Node {
	n := marked(name, "True", podCIDRs[0])
	n.Spec.PodCIDRs = podCIDRs
	return n
}

func TestDecide(t *testing.T) {
	for name, c := range map[string]struct {
		slices []*discoveryv1.EndpointSlice
		nodes  []*corev1.Node
		want   string
	}{
		"a worker's":               {nil, []*corev1.Node{marked("a", "True", "10.1.2.0/24")}, "a at 10.1.2.1 true"},
		"a silent worker's":        {nil, []*corev1.Node{marked("a", "Unknown", "10.1.2.0/24")}, "a at 10.1.2.1 false"},
		"a worker's that is there": {[]*discoveryv1.EndpointSlice{slice("a", true)}, []*corev1.Node{marked("a", "True", "10.1.2.0/24")}, ""},
		"a worker's of both":       {[]*discoveryv1.EndpointSlice{slice("a", true)}, []*corev1.Node{dual("a", "10.1.2.0/24", "fd00:1::/64")}, "a at fd00:1::1 true"},
		"a new node of its name":   {[]*discoveryv1.EndpointSlice{slice("a", true)}, []*corev1.Node{marked("a", "True", "10.1.9.0/24")}, "a true at 10.1.9.1"},
		"a worker without a range": {nil, []*corev1.Node{marked("a", "True", "")}, ""},
		"all is well":              {[]*discoveryv1.EndpointSlice{slice("a", true)}, []*corev1.Node{node("a", "True")}, ""},
		"a silent node":            {[]*discoveryv1.EndpointSlice{slice("a", true), slice("b", true)}, []*corev1.Node{node("a", "Unknown"), node("b", "True")}, "a false"},
		"it is back":               {[]*discoveryv1.EndpointSlice{slice("a", false), slice("b", true)}, []*corev1.Node{node("a", "True"), node("b", "True")}, "a true"},
		"a deleted node":           {[]*discoveryv1.EndpointSlice{slice("a", true), slice("b", true)}, []*corev1.Node{node("b", "True")}, "a gone"},
		"the last one, silent":     {[]*discoveryv1.EndpointSlice{slice("a", true)}, []*corev1.Node{node("a", "False")}, ""},
		"all silent, one was told": {[]*discoveryv1.EndpointSlice{slice("a", false), slice("b", true)}, []*corev1.Node{node("a", "False"), node("b", "False")}, "a true"},
		"of an older version":      {[]*discoveryv1.EndpointSlice{unhinted("a")}, []*corev1.Node{node("a", "True")}, "a true"},
		"the only node is unknown": {[]*discoveryv1.EndpointSlice{slice("a", true)}, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			p := decide(c.slices, c.nodes)
			for _, s := range p.update {
				if h := s.Endpoints[0].Hints; h == nil || h.ForNodes[0].Name != nodeOf(s) {
					t.Errorf("the node's DNS is not for the node: %+v", h)
				}
				moved := ""
				if at := s.Endpoints[0].Addresses[0]; at != "10.1.2.1" {
					moved = " at " + at
				}
				got = append(got, fmt.Sprintf("%s %t%s", nodeOf(s), *s.Endpoints[0].Conditions.Ready, moved))
			}
			for _, s := range p.orphans {
				got = append(got, nodeOf(s)+" gone")
			}
			for _, s := range p.create {
				got = append(got, fmt.Sprintf("%s at %s %t", nodeOf(s), s.Endpoints[0].Addresses[0], *s.Endpoints[0].Conditions.Ready))
			}
			slices.Sort(got)
			if strings.Join(got, ", ") != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// A worker's DNS is put behind the Service, and again when its slice was deleted.
func TestAMarkedNodesDNSIsAnnounced(t *testing.T) {
	c := controllertest.New(marked("w", "True", "10.1.2.0/24"))
	ctl, err := New(c.Env(t))
	if err != nil {
		t.Fatal(err)
	}
	c.Start(t, ctl)
	endpoints := c.Client.DiscoveryV1().EndpointSlices(metav1.NamespaceSystem)
	for range 2 {
		controllertest.Eventually(t, func() error {
			s, err := endpoints.Get(t.Context(), "kube-dns-w", metav1.GetOptions{})
			if err == nil && (s.Endpoints[0].Addresses[0] != "10.1.2.1" || s.Labels[discoveryv1.LabelServiceName] != "kube-dns") {
				err = fmt.Errorf("slice %+v", s)
			}
			return err
		})
		if err := endpoints.Delete(t.Context(), "kube-dns-w", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// A node falls silent, comes back, and is removed; its DNS follows.
func TestTheDNSOfANodeFollowsTheNode(t *testing.T) {
	a, b := node("a", "True"), node("b", "True")
	c := controllertest.New(a, b, slice("a", true), slice("b", true))
	ctl, err := New(c.Env(t))
	if err != nil {
		t.Fatal(err)
	}
	c.Start(t, ctl)
	endpoints := c.Client.DiscoveryV1().EndpointSlices(metav1.NamespaceSystem)
	becomes := func(want bool) {
		t.Helper()
		controllertest.Eventually(t, func() error {
			s, err := endpoints.Get(t.Context(), "kube-dns-a", metav1.GetOptions{})
			if err == nil && ptr.Deref(s.Endpoints[0].Conditions.Ready, true) != want {
				return fmt.Errorf("ready is %t", !want)
			}
			return err
		})
	}
	for _, status := range []corev1.ConditionStatus{"Unknown", "True"} {
		changed, err := c.Client.CoreV1().Nodes().Get(t.Context(), "a", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		changed.Status.Conditions[0].Status = status
		if _, err := c.Client.CoreV1().Nodes().UpdateStatus(t.Context(), changed, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		becomes(status == "True")
	}
	if err := c.Client.CoreV1().Nodes().Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	controllertest.Eventually(t, func() error {
		left, err := endpoints.List(t.Context(), metav1.ListOptions{})
		if err == nil && len(left.Items) != 1 {
			return fmt.Errorf("%d slices are left", len(left.Items))
		}
		return err
	})
}
