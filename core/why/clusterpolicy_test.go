// SPDX-License-Identifier: Apache-2.0

package why_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
	"sigs.k8s.io/yaml"

	"github.com/wasmplane/wasmplane/core/why"
)

func TestClusterNetworkPolicies(t *testing.T) {
	policy := func(name, spec string) *policyv1alpha2.ClusterNetworkPolicy {
		np := &policyv1alpha2.ClusterNetworkPolicy{}
		np.Name = name
		if err := yaml.UnmarshalStrict([]byte(spec), &np.Spec); err != nil {
			t.Fatal(err)
		}
		return np
	}
	web := pod("web", func(p *corev1.Pod) { p.Labels = map[string]string{"app": "web"} })
	host := pod("host", func(p *corev1.Pod) { p.Labels, p.Spec.HostNetwork = map[string]string{"app": "host"}, true })
	refused := event("ClusterNetworkPolicy", "p", "NotEnforced", "domainNames are not supported")
	refused.InvolvedObject.Namespace = ""
	subject := func(app string) string {
		return "{tier: Admin, priority: 1, subject: {pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: " + app + "}}}}"
	}
	for name, c := range map[string]struct {
		spec, want string
		events     []*corev1.Event
		well       bool
	}{
		"no pod":       {subject("none") + "}", "it selects no pod", nil, false},
		"host network": {subject("host") + "}", "where no policy applies", nil, false},
		"not enforced": {subject("web") + "}", "it is not enforced as it stands: domainNames", []*corev1.Event{refused}, false},
		"nobody":       {subject("web") + ", ingress: [{action: Deny, from: [{namespaces: {matchLabels: {a: b}}}]}]}", "spec.ingress[0].from matches nobody", nil, true},
		"no node":      {subject("web") + ", egress: [{action: Deny, to: [{nodes: {matchLabels: {a: b}}}]}]}", "spec.egress[0].to matches nobody", nil, true},
		"same":         {subject("web") + "}", "policy other of the same tier has the same priority", nil, true},
		"well":         {subject("web") + ", egress: [{action: Deny, to: [{nodes: {}}]}, {action: Accept, to: [{namespaces: {}}]}]}", "it is asked about 1 pods, in the tier Admin with priority 1", nil, true},
	} {
		cluster := &why.Cluster{
			Pods: []*corev1.Pod{web, host}, Namespaces: []*corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}},
			Nodes:           []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n"}}},
			ClusterPolicies: []*policyv1alpha2.ClusterNetworkPolicy{policy("p", c.spec)}, Events: c.events,
		}
		if name == "same" {
			cluster.ClusterPolicies = append(cluster.ClusterPolicies, policy("other", c.spec))
		}
		a := ask(t, cluster, "cnp/p")
		said := a.Cause + " " + strings.Join(a.Because, " ")
		if !strings.Contains(said, c.want) || a.Well != c.well || name == "well" && len(a.Because) > 0 {
			t.Errorf("%s: well %t: %s", name, a.Well, said)
		}
	}
}
