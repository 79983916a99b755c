// SPDX-License-Identifier: Apache-2.0

// Package netrules says which pods a NetworkPolicy or a ClusterNetworkPolicy is about, and
// which of its rules meet nobody.
//
// It is pure. Of a cluster that was read in part alone it says nothing that what was
// not read could make untrue.
package netrules

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/wasmplane/wasmplane/core/why/facts"
	"github.com/wasmplane/wasmplane/core/why/reply"
)

// Rules of a cluster's network.
type Rules struct{ *facts.Cluster }

// Policy says which pods a policy isolates, and what of it meets nobody.
func (r Rules) Policy(namespace, name string) *reply.Answer {
	np, ok := facts.Find(r.Policies, namespace, name)
	if !ok {
		return nil
	}
	if ev := r.Last("NetworkPolicy", np.Namespace, np.Name, "NotEnforced"); ev != nil {
		return reply.Stuck("it is not enforced as it stands: %s", ev.Message)
	}
	selected := r.podsBy(np.Namespace, nil, &np.Spec.PodSelector)
	onPodNetwork := slices.DeleteFunc(slices.Clone(selected), func(p *corev1.Pod) bool { return p.Spec.HostNetwork })
	switch {
	case len(selected) == 0:
		return reply.Stuck("it selects no pod: none of namespace %s has the labels %s", np.Namespace,
			metav1.FormatLabelSelector(&np.Spec.PodSelector)).
			Or("compare with the labels of the pods", "kubectl get pods -n %s --show-labels", np.Namespace)
	case len(onPodNetwork) == 0:
		return reply.Stuck("the pods that it selects are on their nodes' network (hostNetwork), where no policy applies")
	}
	a := reply.Well("it isolates %d of the namespace's pods (policyTypes %v)", len(onPodNetwork), np.Spec.PolicyTypes)
	for i, rule := range np.Spec.Ingress {
		r.meetsNobody(a, np, fmt.Sprintf("spec.ingress[%d].from", i), rule.From)
	}
	for i, rule := range np.Spec.Egress {
		r.meetsNobody(a, np, fmt.Sprintf("spec.egress[%d].to", i), rule.To)
	}
	return a
}

// meetsNobody says of a rule's peers when no pod is one, and no block of addresses either.
func (r Rules) meetsNobody(a *reply.Answer, np *networkingv1.NetworkPolicy, field string, peers []networkingv1.NetworkPolicyPeer) {
	for _, p := range peers {
		if p.IPBlock != nil || len(r.podsBy(np.Namespace, p.NamespaceSelector, p.PodSelector)) > 0 {
			return
		}
	}
	if len(peers) > 0 && !r.Partial {
		a.More("%s allows nobody: no pod has the labels that it names, in a namespace that it names", field)
	}
}

// podsBy are the pods that selectors select: of one namespace, or of those with labels.
func (r Rules) podsBy(namespace string, namespaces, pods *metav1.LabelSelector) []*corev1.Pod {
	byLabels := func(s *metav1.LabelSelector, l map[string]string) bool {
		sel, err := metav1.LabelSelectorAsSelector(s)
		return s == nil || err == nil && sel.Matches(labels.Set(l))
	}
	var out []*corev1.Pod
	for _, p := range r.Pods {
		in := p.Namespace == namespace
		if namespaces != nil {
			ns, known := facts.Find(r.Namespaces, "", p.Namespace)
			in = known && byLabels(namespaces, ns.Labels)
		}
		if in && byLabels(pods, p.Labels) {
			out = append(out, p)
		}
	}
	return out
}
