// SPDX-License-Identifier: Apache-2.0

package netrules

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/wasmplane/wasmplane/core/why/reply"
)

// ClusterPolicy says which pods a policy of the cluster is about, and what of it meets nobody.
func (r Rules) ClusterPolicy(name string) *reply.Answer {
	at := slices.IndexFunc(r.ClusterPolicies, func(np *policyv1alpha2.ClusterNetworkPolicy) bool { return np.Name == name })
	if at < 0 {
		return nil
	}
	np := r.ClusterPolicies[at]
	if ev := r.Last("ClusterNetworkPolicy", "", name, "NotEnforced"); ev != nil {
		return reply.Stuck("it is not enforced as it stands: %s", ev.Message)
	}
	selected := r.inNamespaces(np.Spec.Subject.Namespaces, np.Spec.Subject.Pods)
	onPodNetwork := slices.DeleteFunc(slices.Clone(selected), func(p *corev1.Pod) bool { return p.Spec.HostNetwork })
	switch {
	case len(selected) == 0 && r.Partial:
		return reply.Well("which pods it selects can be told only to who may list those of all namespaces")
	case len(selected) == 0:
		return reply.Stuck("it selects no pod: none has the labels of spec.subject, in a namespace with the labels there").
			Or("compare with the labels of namespaces and pods", "kubectl get namespaces,pods -A --show-labels")
	case len(onPodNetwork) == 0:
		return reply.Stuck("the pods that it selects are on their nodes' network (hostNetwork), where no policy applies")
	}
	a := reply.Well("it is asked about %d pods, in the tier %s with priority %d", len(onPodNetwork), np.Spec.Tier, np.Spec.Priority)
	for i, rule := range np.Spec.Ingress {
		var peers []policyv1alpha2.ClusterNetworkPolicyEgressPeer
		for _, p := range rule.From {
			peers = append(peers, policyv1alpha2.ClusterNetworkPolicyEgressPeer{Namespaces: p.Namespaces, Pods: p.Pods})
		}
		r.matchesNobody(a, fmt.Sprintf("spec.ingress[%d].from", i), peers)
	}
	for i, rule := range np.Spec.Egress {
		r.matchesNobody(a, fmt.Sprintf("spec.egress[%d].to", i), rule.To)
	}
	for _, other := range r.ClusterPolicies {
		if other.Name != name && other.Spec.Tier == np.Spec.Tier && other.Spec.Priority == np.Spec.Priority {
			a.More("policy %s of the same tier has the same priority: which of the two is asked first is left open by the API (here: by name)", other.Name)
		}
	}
	return a
}

// matchesNobody says of a rule's peers when there is none.
func (r Rules) matchesNobody(a *reply.Answer, field string, peers []policyv1alpha2.ClusterNetworkPolicyEgressPeer) {
	for _, p := range peers {
		switch {
		case p.Nodes != nil:
			selector, err := metav1.LabelSelectorAsSelector(p.Nodes)
			if err != nil || slices.ContainsFunc(r.Nodes, func(n *corev1.Node) bool { return selector.Matches(labels.Set(n.Labels)) }) {
				return
			}
		case p.Namespaces == nil && p.Pods == nil, len(r.inNamespaces(p.Namespaces, p.Pods)) > 0:
			return
		}
	}
	if len(peers) > 0 && !r.Partial {
		a.More("%s matches nobody: no pod or node has the labels that it names", field)
	}
}

func (r Rules) inNamespaces(namespaces *metav1.LabelSelector, pods *policyv1alpha2.NamespacedPod) []*corev1.Pod {
	switch {
	case pods != nil:
		return r.podsBy("", &pods.NamespaceSelector, &pods.PodSelector)
	case namespaces != nil:
		return r.podsBy("", namespaces, nil)
	}
	return nil
}
