// SPDX-License-Identifier: Apache-2.0

package why_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/why"
)

func TestNetworkPolicies(t *testing.T) {
	selects := func(l map[string]string) *metav1.LabelSelector { return &metav1.LabelSelector{MatchLabels: l} }
	web := pod("web", func(p *corev1.Pod) { p.Labels = map[string]string{"app": "web"} })
	np := func(app string, from ...networkingv1.NetworkPolicyPeer) *networkingv1.NetworkPolicy {
		return &networkingv1.NetworkPolicy{ObjectMeta: meta("p"), Spec: networkingv1.NetworkPolicySpec{
			PodSelector: *selects(map[string]string{"app": app}), PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
			Ingress: []networkingv1.NetworkPolicyIngressRule{{From: from}},
		}}
	}
	host := pod("host", func(p *corev1.Pod) { p.Labels, p.Spec.HostNetwork = map[string]string{"app": "host"}, true })
	nobody := networkingv1.NetworkPolicyPeer{PodSelector: selects(map[string]string{"app": "nobody"})}
	labelled := networkingv1.NetworkPolicyPeer{NamespaceSelector: selects(map[string]string{"team": "a"})}
	refused := event("NetworkPolicy", "p", "NotEnforced", "spec.ingress[0]: ipBlock")
	for name, c := range map[string]struct {
		policy *networkingv1.NetworkPolicy
		events []*corev1.Event
		want   string
	}{
		"no pod":       {np("none"), nil, "it selects no pod: none of namespace shop has the labels app=none"},
		"host network": {np("host"), nil, "where no policy applies"},
		"not enforced": {np("web"), []*corev1.Event{refused}, "it is not enforced as it stands: spec.ingress[0]: ipBlock"},
		"nobody":       {np("web", nobody, labelled), nil, "spec.ingress[0].from allows nobody"},
		"well":         {np("web", nobody, networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: "10.0.0.0/8"}}), nil, "it isolates 1 of the namespace's pods"},
	} {
		cluster := &why.Cluster{
			Pods: []*corev1.Pod{web, host}, Namespaces: []*corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}},
			Policies: []*networkingv1.NetworkPolicy{c.policy}, Events: c.events,
		}
		a := ask(t, cluster, "networkpolicies/p")
		said := a.Cause + " " + strings.Join(a.Because, " ")
		if !strings.Contains(said, c.want) || a.Well != (name == "well" || name == "nobody") || name == "well" && len(a.Because) > 0 {
			t.Errorf("%s: well %t: %s", name, a.Well, said)
		}
	}
}
