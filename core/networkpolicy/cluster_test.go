// SPDX-License-Identifier: Apache-2.0

package networkpolicy_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
	"sigs.k8s.io/yaml"

	"github.com/wasmplane/wasmplane/core/networkpolicy"
	"github.com/wasmplane/wasmplane/core/networkpolicy/policytest"
)

// spot is a pod of the grid: namespaces w, x and z have pods a, b and c each.
type spot struct{ ns, pod string }

func (s spot) address() string { return fmt.Sprintf("10.1.%d.%d", s.ns[0]-'w'+1, s.pod[0]-'a'+1) }

func (s spot) String() string { return s.ns + "/" + s.pod }

func grid() (all []spot) {
	for _, ns := range []string{"w", "x", "z"} {
		for _, pod := range []string{"a", "b", "c"} {
			all = append(all, spot{ns, pod})
		}
	}
	return all
}

func gridPlan(t *testing.T, cluster, namespaced string) (*networkpolicy.Plan, *kernel) {
	t.Helper()
	p, k := networkpolicy.New(), newKernel(t)
	for _, s := range grid() {
		p.SetNamespace(s.ns, labels.Set{"ns": s.ns, "kubernetes.io/metadata.name": s.ns})
		p.SetPod(networkpolicy.Pod{
			NamespacedName: types.NamespacedName{Namespace: s.ns, Name: s.pod}, Labels: labels.Set{"pod": s.pod}, Here: true,
			IPs: []netip.Addr{netip.MustParseAddr(s.address())}, Ports: []networkpolicy.Port{{Protocol: "udp", Name: "dns", Number: 81}},
		})
	}
	for i, text := range documents(cluster) {
		np := &policyv1alpha2.ClusterNetworkPolicy{}
		parsed(t, text, &np.Spec)
		np.Name = fmt.Sprint("c", i)
		p.SetClusterPolicy(np)
	}
	for i, text := range documents(namespaced) {
		np := &networkingv1.NetworkPolicy{}
		parsed(t, text, &np.Spec)
		np.Namespace, np.Name = "x", fmt.Sprint("p", i)
		p.SetPolicy(np)
	}
	k.apply(p.Flush())
	return p, k
}

func documents(text string) (out []string) {
	for _, d := range strings.Split(text, "---") {
		if strings.TrimSpace(d) != "" {
			out = append(out, d)
		}
	}
	return out
}

func parsed(t *testing.T, text string, into any) {
	t.Helper()
	if err := yaml.UnmarshalStrict([]byte(text), into); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
}

// Between all pods of a grid and for all its ports, policies of several tiers have the effect that a reader expects.
func TestTruthTable(t *testing.T) {
	tcp80 := func(proto string, port uint16) bool { return proto == "tcp" && port == 80 }
	for name, c := range map[string]struct {
		cluster, namespaced string
		allowed             func(from, to spot, proto string, port uint16) bool
	}{
		"nothing": {"", "", func(spot, spot, string, uint16) bool { return true }},
		"deny between namespaces, except one's own": {`
tier: Admin
priority: 10
subject: {namespaces: {matchLabels: {ns: x}}}
ingress:
- {action: Pass, from: [{namespaces: {matchLabels: {ns: x}}}]}
- {action: Deny, from: [{namespaces: {}}]}
`, "", func(from, to spot, _ string, _ uint16) bool { return to.ns != "x" || from.ns == "x" }},
		"one pod's egress to a port": {`
tier: Admin
priority: 0
subject: {pods: {namespaceSelector: {}, podSelector: {matchLabels: {pod: b}}}}
egress:
- action: Accept
  to: [{pods: {namespaceSelector: {matchLabels: {ns: z}}, podSelector: {}}}]
  protocols: [{tcp: {destinationPort: {number: 80}}}]
- {action: Deny, to: [{networks: [0.0.0.0/0]}]}
`, "", func(from, to spot, proto string, port uint16) bool {
			return from.pod != "b" || to.ns == "z" && tcp80(proto, port)
		}},
		"a named port, of any protocol": {`
tier: Admin
priority: 0
subject: {namespaces: {}}
ingress:
- {action: Deny, from: [{namespaces: {}}], protocols: [{destinationNamedPort: dns}]}
`, "", func(_, _ spot, proto string, port uint16) bool { return proto != "udp" || port != 81 }},
		"the lower priority number comes first": {`
tier: Admin
priority: 20
subject: {namespaces: {}}
ingress: [{action: Deny, from: [{namespaces: {}}]}]
---
tier: Admin
priority: 10
subject: {namespaces: {matchLabels: {ns: w}}}
ingress:
- action: Accept
  from: [{namespaces: {matchLabels: {ns: x}}}]
  protocols: [{tcp: {destinationPort: {range: {start: 79, end: 80}}}}]
`, "", func(from, to spot, proto string, port uint16) bool {
			return to.ns == "w" && from.ns == "x" && tcp80(proto, port)
		}},
		"admin accepts what a network policy denies": {`
tier: Admin
priority: 1
subject: {namespaces: {}}
ingress: [{action: Accept, from: [{namespaces: {matchLabels: {ns: z}}}]}]
`, "{podSelector: {}, policyTypes: [Ingress]}", func(from, to spot, _ string, _ uint16) bool { return to.ns != "x" || from.ns == "z" }},
		"admin denies what a network policy allows": {`
tier: Admin
priority: 1
subject: {namespaces: {}}
ingress: [{action: Deny, from: [{namespaces: {matchLabels: {ns: z}}}]}]
`, "{podSelector: {}, policyTypes: [Ingress], ingress: [{}]}", func(from, _ spot, _ string, _ uint16) bool { return from.ns != "z" }},
		"pass leads to network policies, and skips the rest of the tier": {`
tier: Admin
priority: 1
subject: {namespaces: {}}
ingress: [{action: Pass, from: [{namespaces: {}}]}, {action: Deny, from: [{namespaces: {}}]}]
---
tier: Admin
priority: 2
subject: {namespaces: {}}
ingress: [{action: Deny, from: [{namespaces: {}}]}]
`, "{podSelector: {}, policyTypes: [Ingress], ingress: [{from: [{podSelector: {matchLabels: {pod: a}}}]}]}", func(from, to spot, _ string, _ uint16) bool {
			return to.ns != "x" || from.ns == "x" && from.pod == "a"
		}},
		"baseline is for who has no network policy": {`
tier: Baseline
priority: 0
subject: {namespaces: {}}
ingress:
- {action: Accept, from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {pod: c}}}}]}
- {action: Deny, from: [{namespaces: {}}]}
`, "{podSelector: {}, policyTypes: [Ingress], ingress: [{from: [{namespaceSelector: {matchLabels: {ns: w}}}]}]}", func(from, to spot, _ string, _ uint16) bool {
			if to.ns == "x" {
				return from.ns == "w"
			}
			return from.pod == "c"
		}},
		"pass leads to baseline too": {`
tier: Admin
priority: 0
subject: {namespaces: {}}
egress: [{action: Pass, to: [{namespaces: {}}]}]
---
tier: Baseline
priority: 7
subject: {namespaces: {}}
egress: [{action: Pass, to: [{namespaces: {matchLabels: {ns: w}}}]}, {action: Deny, to: [{namespaces: {}}]}]
`, "", func(_, to spot, _ string, _ uint16) bool { return to.ns == "w" }},
		"both ends have to agree": {`
tier: Admin
priority: 0
subject: {namespaces: {matchLabels: {ns: x}}}
egress: [{action: Accept, to: [{namespaces: {}}]}]
---
tier: Admin
priority: 0
subject: {namespaces: {matchLabels: {ns: w}}}
ingress: [{action: Deny, from: [{namespaces: {matchLabels: {ns: x}}}]}]
`, "", func(from, to spot, _ string, _ uint16) bool { return from.ns != "x" || to.ns != "w" }},
	} {
		t.Run(name, func(t *testing.T) {
			p, k := gridPlan(t, c.cluster, c.namespaced)
			if problems := p.Problems(); len(problems) > 0 {
				t.Fatal(problems)
			}
			for _, from := range grid() {
				for _, to := range grid() {
					for _, proto := range []string{"tcp", "udp", "sctp"} {
						for _, port := range []uint16{80, 81} {
							want := from == to || c.allowed(from, to, proto, port)
							if got := k.allowed(policytest.Between(from.address(), to.address(), proto, port)); got != want {
								t.Errorf("%s to %s, %s %d: allowed %t, want %t", from, to, proto, port, got, want)
							}
						}
					}
				}
			}
		})
	}
}

// What cannot be had as asked is closed, as the API says, and told of with its field.
func TestClosed(t *testing.T) {
	const all = "subject: {namespaces: {}}\ntier: Admin\npriority: 1\n"
	denyAll := all + "egress: [{action: Deny, to: [{namespaces: {}}]}]\n---\n"
	for name, c := range map[string]struct {
		policies, problem string
		allowed           bool
	}{
		"names accepted":   {all + "egress: [{action: Accept, to: [{domainNames: [a.example]}]}]\n", "spec.egress[0]: peer 0: domainNames are not supported", true},
		"names denied":     {all + "egress: [{name: out, action: Deny, to: [{domainNames: [a.example]}]}]\n", `spec.egress[0] ("out"): peer 0: domainNames are not supported`, false},
		"names passed":     {all + "egress: [{action: Pass, to: [{domainNames: [a.example]}]}]\n", "the rule denies all", false},
		"half an accept":   {strings.Replace(denyAll, "priority: 1", "priority: 9", 1) + all + "egress: [{action: Accept, to: [{namespaces: {}}, {domainNames: [a.example]}]}]\n", "the rule matches nothing", false},
		"unknown peer":     {all + "ingress: [{action: Deny, from: [{}]}]\n", "spec.ingress[0]: peer 0: it has none of the fields", false},
		"unknown protocol": {all + "ingress: [{action: Deny, from: [{pods: {namespaceSelector: {matchLabels: {ns: none}}, podSelector: {}}}], protocols: [{}]}]\n", "protocol 0 has none of the fields", false},
		"unknown action":   {all + "ingress: [{action: Log, from: [{namespaces: {}}]}]\n", `the action is "Log"`, false},
		"bad network":      {all + "egress: [{action: Pass, to: [{networks: [10.0.0]}]}]\n", "networks:", false},
		"bad selector":     {all + "egress: [{action: Deny, to: [{namespaces: {matchLabels: {'-': '?'}}}]}]\n", "selector of namespaces", false},
		"bad subject":      {"tier: Admin\npriority: 1\nsubject: {namespaces: {matchLabels: {'-': '?'}}}\negress: [{action: Accept, to: [{namespaces: {}}]}, {action: Deny, to: [{namespaces: {}}]}]\n", "spec.subject: ", false},
		"no subject":       {"tier: Baseline\npriority: 1\nsubject: {}\negress: [{action: Deny, to: [{namespaces: {}}]}]\n", "set namespaces or pods", false},
		"unknown tier":     {"tier: Platform\npriority: 1\nsubject: {namespaces: {}}\negress: [{action: Pass, to: [{namespaces: {}}]}, {action: Deny, to: [{namespaces: {}}]}]\n", `spec.tier is "Platform"`, false},
	} {
		t.Run(name, func(t *testing.T) {
			p, k := gridPlan(t, c.policies, "")
			var said []string
			for key, err := range p.Problems() {
				if key.Namespace != "" {
					t.Errorf("the problem is one of %v", key)
				}
				said = append(said, err.Error())
			}
			if len(said) != 1 || !strings.Contains(said[0], c.problem) {
				t.Errorf("problems: %q, want one with %q", said, c.problem)
			}
			if got := k.allowed(policytest.Between(spot{"x", "a"}.address(), spot{"w", "b"}.address(), "tcp", 80)); got != c.allowed {
				t.Errorf("a packet is allowed: %t, want %t", got, c.allowed)
			}
		})
	}
}

// Bounds hold for policies of the cluster, and what is beyond them is closed.
func TestClusterBounds(t *testing.T) {
	peers := func(n int) (out []policyv1alpha2.ClusterNetworkPolicyIngressPeer) {
		for i := range n {
			out = append(
				out,
				policyv1alpha2.ClusterNetworkPolicyIngressPeer{Namespaces: &metav1.LabelSelector{MatchLabels: labels.Set{"n": fmt.Sprint(i)}}},
			)
		}
		return out
	}
	deny := func(name string, priority int32, from []policyv1alpha2.ClusterNetworkPolicyIngressPeer) *policyv1alpha2.ClusterNetworkPolicy {
		np := &policyv1alpha2.ClusterNetworkPolicy{}
		np.Name, np.Spec.Tier, np.Spec.Priority = name, policyv1alpha2.AdminTier, priority
		np.Spec.Subject.Namespaces = &metav1.LabelSelector{}
		np.Spec.Ingress = []policyv1alpha2.ClusterNetworkPolicyIngressRule{
			{Action: policyv1alpha2.ClusterNetworkPolicyRuleActionDeny, From: from},
		}
		return np
	}
	packet := policytest.Between(spot{"x", "a"}.address(), spot{"w", "b"}.address(), "tcp", 80)
	p, k := gridPlan(t, "", "")
	p.SetClusterPolicy(deny("big", 0, peers(networkpolicy.MaxPeers+1)))
	k.apply(p.Flush())
	if err := p.Problems()[types.NamespacedName{Name: "big"}]; err == nil || !strings.Contains(err.Error(), "more than 1000 different peers") {
		t.Errorf("the problem is %v", err)
	}
	if k.allowed(packet) {
		t.Error("a Deny rule with too many peers lets everything pass")
	}
	p.RemoveClusterPolicy("big")
	for n := range networkpolicy.MaxPolicies {
		p.SetClusterPolicy(deny(fmt.Sprint("many", n), 1, peers(n + 1)[n:]))
	}
	k.apply(p.Flush())
	if len(p.Crowded()) > 0 || !k.allowed(packet) {
		t.Errorf("as many policies as there may be: %d pods have too many, and a packet is allowed: %t", len(p.Crowded()), k.allowed(packet))
	}
	p.SetClusterPolicy(deny("last", 9, peers(2000)[1999:]))
	k.apply(p.Flush())
	if len(p.Crowded()) != len(grid()) || k.allowed(packet) {
		t.Errorf(
			"one policy too many: %d pods have too many, and what none of the first decided on is allowed: %t",
			len(p.Crowded()),
			k.allowed(packet),
		)
	}
}

// A new peer of policies of the cluster is an element, and a policy is a chain however many pods it selects.
func TestClusterChangesAreSmall(t *testing.T) {
	p, k := gridPlan(
		t,
		"{tier: Admin, priority: 1, subject: {namespaces: {}}, ingress: [{action: Deny, from: [{namespaces: {matchLabels: {ns: z}}}]}]}",
		"",
	)
	p.SetPod(
		networkpolicy.Pod{NamespacedName: types.NamespacedName{Namespace: "z", Name: "new"}, IPs: []netip.Addr{netip.MustParseAddr("10.9.9.9")}},
	)
	c := p.Flush()
	if len(c.Elements) != 1 || len(c.Chains)+len(c.Sets)+len(c.Verdicts)+len(c.RemovedElements) != 0 {
		t.Errorf("one peer came, and this is written: %+v", c)
	}
	k.apply(c)
	np := &policyv1alpha2.ClusterNetworkPolicy{}
	parsed(
		t,
		"{tier: Admin, priority: 2, subject: {namespaces: {}}, ingress: [{action: Accept, from: [{namespaces: {matchLabels: {ns: z}}}]}]}",
		&np.Spec,
	)
	np.Name = "second"
	p.SetClusterPolicy(np)
	c = p.Flush()
	if len(c.Chains) != 2 || len(c.Sets) != 0 || len(c.Elements) != 0 {
		t.Errorf("one policy of the same peers came for all pods, and this is written: %+v", c)
	}
	k.apply(c)
	// The labels of a namespace decide who is a subject.
	np.Spec.Subject.Namespaces.MatchLabels = labels.Set{"ns": "x"}
	p.SetClusterPolicy(np)
	p.RemoveClusterPolicy("c0")
	k.apply(p.Flush())
	if in, _ := p.Isolated(types.NamespacedName{Namespace: "w", Name: "a"}); in {
		t.Error("a pod of w is a subject of a policy for x")
	}
	p.SetNamespace("w", labels.Set{"ns": "x"})
	k.apply(p.Flush())
	if in, _ := p.Isolated(types.NamespacedName{Namespace: "w", Name: "a"}); !in {
		t.Error("namespace w got the labels of a policy's subject, and its pods are none")
	}
}
