// SPDX-License-Identifier: Apache-2.0

package networkpolicy_test

import (
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/wasmplane/wasmplane/core/networkpolicy"
	"github.com/wasmplane/wasmplane/core/networkpolicy/policytest"
)

// Whatever the order in which objects come, change and go, and however many changes
// are written at once, every packet has the fate that the objects say.
func TestEveryPacketAsTheObjectsSay(t *testing.T) {
	all := policytest.Packets()
	rapid.Check(t, func(rt *rapid.T) {
		w := policytest.NewWorld()
		p, k := networkpolicy.New(), newKernel(t)
		for range rapid.IntRange(1, 25).Draw(rt, "steps") {
			w.Step(rt, p)
			if rapid.Bool().Draw(rt, "write") {
				k.apply(p.Flush())
			}
		}
		k.apply(p.Flush())
		for _, one := range all {
			if got, want := k.allowed(one), w.Allowed(one); got != want {
				rt.Fatalf("%+v is allowed: %t, want %t", one, got, want)
			}
		}
		// What was brought about step by step is what one who begins now would write.
		fresh := newKernel(t)
		again := networkpolicy.New()
		for n, l := range w.Namespaces {
			again.SetNamespace(n, l)
		}
		for _, np := range w.Policies {
			again.SetPolicy(np)
		}
		for _, np := range w.Cluster {
			again.SetClusterPolicy(np)
		}
		for _, pod := range w.Pods {
			again.SetPod(pod)
		}
		for name, n := range w.Nodes {
			again.SetNode(name, n.Labels, n.IPs)
		}
		fresh.apply(again.Whole())
		rewritten := newKernel(t)
		rewritten.apply(p.Whole())
		for _, other := range []*kernel{fresh, rewritten} {
			if !reflect.DeepEqual(k.elements, other.elements) || !reflect.DeepEqual(k.verdicts, other.verdicts) || !reflect.DeepEqual(k.chains,
				other.chains) || !reflect.DeepEqual(k.sets, other.sets) {
				rt.Fatalf("step by step: %+v\nat once: %+v", k, other)
			}
		}
		if c := p.Flush(); !c.Empty() {
			rt.Fatalf("nothing changed, and there is %+v to write", c)
		}
		// Nothing is left once the objects are gone.
		for key := range w.Pods {
			p.RemovePod(key)
		}
		k.apply(p.Flush())
		if len(k.elements)+len(k.verdicts)+len(k.chains) > 0 || len(k.sets) != 2 {
			rt.Fatalf("left behind: %+v", k)
		}
	})
}

func policy(name string, change func(*networkingv1.NetworkPolicySpec)) *networkingv1.NetworkPolicy {
	np := &networkingv1.NetworkPolicy{}
	np.Namespace, np.Name = "x", name
	np.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
	change(&np.Spec)
	return np
}

func here(name, ip string) networkpolicy.Pod {
	return networkpolicy.Pod{
		NamespacedName: types.NamespacedName{Namespace: "x", Name: name}, Here: true, IPs: []netip.Addr{netip.MustParseAddr(ip)},
		Labels: labels.Set{"app": name},
	}
}

// A change of one pod is a change of one element, whatever else there is.
func TestChangesAreSmall(t *testing.T) {
	p := networkpolicy.New()
	p.SetNamespace("x", labels.Set{})
	for n := range 50 {
		p.SetPod(here(fmt.Sprint("pod", n), fmt.Sprint("10.0.0.", n)))
		p.SetPolicy(policy(fmt.Sprint("policy", n), func(s *networkingv1.NetworkPolicySpec) {
			s.Ingress = []networkingv1.NetworkPolicyIngressRule{
				{From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: labels.Set{"app": fmt.Sprint("peer", n)}}}}},
			}
		}))
	}
	p.Flush()
	peer := here("peer7", "10.0.1.7")
	peer.Here = false
	p.SetPod(peer)
	if c := p.Flush(); len(c.Elements) != 1 || len(c.Chains)+len(c.Sets)+len(c.Verdicts)+len(c.RemovedElements) != 0 {
		t.Errorf("one peer came, and this is written: %+v", c)
	}
	peer.IPs = []netip.Addr{netip.MustParseAddr("10.0.1.8")}
	p.SetPod(peer)
	if c := p.Flush(); len(c.Elements) != 1 || len(c.RemovedElements) != 1 || len(c.Chains)+len(c.Sets)+len(c.Verdicts) != 0 {
		t.Errorf("one peer's address changed, and this is written: %+v", c)
	}
	p.SetPod(here("late", "10.0.0.99"))
	if c := p.Flush(); len(c.Verdicts) != 1 || len(c.Elements) != 1 || len(c.Chains)+len(c.Sets)+len(c.RemovedChains) != 0 {
		t.Errorf("a pod of the same kind came, and this is written: %+v", c)
	}
	// Equal policies are one.
	p.SetPolicy(policy("twin", func(s *networkingv1.NetworkPolicySpec) {
		s.Ingress = []networkingv1.NetworkPolicyIngressRule{
			{From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: labels.Set{"app": "peer7"}}}}},
		}
	}))
	if c := p.Flush(); !c.Empty() {
		t.Errorf("a second policy of the same content came, and this is written: %+v", c)
	}
}

// A policy with too many peers, or a pod with too many policies, is closed, told of,
// and bounded.
func TestBounds(t *testing.T) {
	p := networkpolicy.New()
	p.SetNamespace("x", labels.Set{})
	p.SetPod(here("one", "10.0.0.1"))
	big := policy("big", func(s *networkingv1.NetworkPolicySpec) {
		s.PodSelector.MatchLabels = labels.Set{"app": "one"}
		r := networkingv1.NetworkPolicyIngressRule{}
		for n := range 10_000 {
			r.From = append(r.From, networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{MatchLabels: labels.Set{"n": fmt.Sprint(n)}}})
		}
		s.Ingress = []networkingv1.NetworkPolicyIngressRule{r}
	})
	p.SetPolicy(big)
	key := types.NamespacedName{Namespace: "x", Name: "big"}
	if err := p.Problems()[key]; err == nil || !strings.Contains(err.Error(), "more than 1000 different peers") {
		t.Errorf("the problem of a policy with 10000 peers is %v", err)
	}
	k := newKernel(t)
	k.apply(p.Flush())
	if k.allowed(policytest.Between("10.0.0.9", "10.0.0.1", "tcp", 80)) {
		t.Error("a policy that is not in force leaves its pod open")
	}
	p.RemovePolicy(key)
	for n := range 1500 {
		p.SetPolicy(policy(fmt.Sprint("policy", n), func(s *networkingv1.NetworkPolicySpec) {
			s.Ingress = []networkingv1.NetworkPolicyIngressRule{
				{Ports: []networkingv1.NetworkPolicyPort{{Port: ptr.To(intstr.FromInt32(int32(n + 1)))}}},
			}
		}))
	}
	k.apply(p.Flush())
	if crowded := p.Crowded(); len(crowded) != 1 || crowded[0].Name != "one" {
		t.Errorf("crowded pods: %v", crowded)
	}
	jumps := 0
	for _, c := range k.chains {
		jumps = max(jumps, len(c.Jumps))
	}
	if jumps != networkpolicy.MaxPolicies {
		t.Errorf("a pod's chain has %d jumps", jumps)
	}
}

// What does not parse is closed rather than open, and said.
func TestUnreadable(t *testing.T) {
	for name, change := range map[string]func(*networkingv1.NetworkPolicySpec){
		"spec.podSelector": func(s *networkingv1.NetworkPolicySpec) {
			s.PodSelector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Like"}}
		},
		"spec.ingress[0]: ipBlock": func(s *networkingv1.NetworkPolicySpec) {
			s.Ingress = []networkingv1.NetworkPolicyIngressRule{
				{From: []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: "10.0.0"}}}},
			}
		},
		"ipBlock.except": func(s *networkingv1.NetworkPolicySpec) {
			s.Ingress = []networkingv1.NetworkPolicyIngressRule{
				{From: []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: "10.0.0.0/8", Except: []string{"x"}}}}},
			}
		},
		"peer 0: namespaceSelector": func(s *networkingv1.NetworkPolicySpec) {
			s.Ingress = []networkingv1.NetworkPolicyIngressRule{
				{From: []networkingv1.NetworkPolicyPeer{{NamespaceSelector: &metav1.LabelSelector{MatchLabels: labels.Set{"-": "?"}}}}},
			}
		},
	} {
		p, k := networkpolicy.New(), newKernel(t)
		p.SetNamespace("x", labels.Set{})
		p.SetPod(here("one", "10.0.0.1"))
		p.SetPolicy(policy("odd", change))
		k.apply(p.Flush())
		if err := p.Problems()[types.NamespacedName{Namespace: "x", Name: "odd"}]; err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: the problem is %v", name, err)
		}
		if k.allowed(policytest.Between("10.0.0.9", "10.0.0.1", "tcp", 80)) {
			t.Errorf("%s: the pod is open", name)
		}
	}
}

// Without policyTypes a policy means what the API server would have filled in.
func TestDirections(t *testing.T) {
	p := networkpolicy.New()
	p.SetPod(here("one", "10.0.0.1"))
	for _, c := range []struct {
		egress          []networkingv1.NetworkPolicyEgressRule
		ingress, leaves bool
	}{{nil, true, false}, {[]networkingv1.NetworkPolicyEgressRule{{}}, true, true}} {
		p.SetPolicy(policy("p", func(s *networkingv1.NetworkPolicySpec) { s.PolicyTypes, s.Egress = nil, c.egress }))
		p.Flush()
		if in, out := p.Isolated(types.NamespacedName{Namespace: "x", Name: "one"}); in != c.ingress || out != c.leaves {
			t.Errorf("%d egress rules: isolated for ingress %t, for egress %t", len(c.egress), in, out)
		}
	}
}

// Two pods of a node may be said to have one address, since what is known of one of them is late. That it goes
// takes nothing from the other, though policies lead both to the same chain.
func TestAnAddressThatTwoPodsAreSaidToHave(t *testing.T) {
	pod := func(name string, ips ...netip.Addr) networkpolicy.Pod {
		return networkpolicy.Pod{
			NamespacedName: types.NamespacedName{Namespace: "x", Name: name}, Labels: labels.Set{"app": name}, IPs: ips,
			Here: true,
		}
	}
	np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "all"}}
	np.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}
	ip := netip.MustParseAddr("10.0.0.1")
	v := networkpolicy.Verdict{Direction: networkpolicy.Egress, Address: ip}
	for what, ends := range map[string]func(*networkpolicy.Plan){
		"gone":      func(p *networkpolicy.Plan) { p.RemovePod(types.NamespacedName{Namespace: "x", Name: "old"}) },
		"elsewhere": func(p *networkpolicy.Plan) { p.SetPod(pod("old", netip.MustParseAddr("10.0.0.2"))) },
		"nowhere":   func(p *networkpolicy.Plan) { p.SetPod(pod("old")) },
	} {
		p, k := networkpolicy.New(), newKernel(t)
		p.SetNamespace("x", labels.Set{})
		p.SetPolicy(np)
		p.SetPod(pod("old", ip))
		p.SetPod(pod("new", ip))
		k.apply(p.Flush())
		ends(p)
		p.SetPod(pod("new", ip)) // which says nothing new
		k.apply(p.Flush())
		if k.verdicts[v] == "" {
			t.Errorf("the old pod is %s, and the new one is open", what)
		}
		p.RemovePod(types.NamespacedName{Namespace: "x", Name: "new"})
		k.apply(p.Flush())
		if k.verdicts[v] != "" {
			t.Errorf("the old pod is %s, the new one is gone, and the address is still cut off", what)
		}
	}
}

// Labels of namespaces count where a policy that selects the pod has peers by more than their names.
func TestAsksForNamespaces(t *testing.T) {
	by := func(s *metav1.LabelSelector) []networkingv1.NetworkPolicyPeer {
		return []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{}}, {NamespaceSelector: s}}
	}
	name := metav1.LabelSelectorRequirement{Key: "kubernetes.io/metadata.name", Operator: metav1.LabelSelectorOpExists}
	tier := metav1.LabelSelectorRequirement{Key: "tier", Operator: metav1.LabelSelectorOpExists}
	for _, c := range []struct {
		selector *metav1.LabelSelector
		pod      string
		want     bool
	}{
		{nil, "a", false},
		{&metav1.LabelSelector{}, "a", false},
		{&metav1.LabelSelector{MatchLabels: map[string]string{name.Key: "y"}, MatchExpressions: []metav1.LabelSelectorRequirement{name}}, "a", false},
		{&metav1.LabelSelector{MatchLabels: map[string]string{"tier": "1"}}, "a", true},
		{&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{name, tier}}, "a", true},
		{&metav1.LabelSelector{MatchLabels: map[string]string{"tier": "1"}}, "b", false},
	} {
		in, out := &networkingv1.NetworkPolicy{}, &networkingv1.NetworkPolicy{}
		in.Spec.PodSelector.MatchLabels = map[string]string{"app": "a"}
		in.Spec.DeepCopyInto(&out.Spec)
		in.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{}, {From: by(c.selector)}}
		out.Spec.Egress = []networkingv1.NetworkPolicyEgressRule{{}, {To: by(c.selector)}}
		for _, np := range []*networkingv1.NetworkPolicy{in, out} {
			if got := networkpolicy.AsksForNamespaces(np, labels.Set{"app": c.pod}); got != c.want {
				t.Errorf("%+v asks for namespaces of pod %s: %t, want %t", np.Spec, c.pod, got, c.want)
			}
		}
	}
}
