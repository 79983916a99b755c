// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/networkpolicy"
	"github.com/wasmplane/wasmplane/core/run"
)

// askAgain is after how long the API is asked again which policies there are: one that
// was listed and has been deleted since is not waited for.
const askAgain = 250 * time.Millisecond

// Guard returns once what policies say of a pod of this node, which was given these
// addresses, is in force. Of the pod, what its sandbox shows is enough: all else is asked
// for. link is the pod's link to our bridge, on the node's side; "" where there is
// none. An error means that it is not, and that the pod must not start.
func (f *Filter) Guard(ctx context.Context, p *corev1.Pod, ips []string, link string) error {
	if p.Spec.HostNetwork {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, f.cfg.Patience)
	defer cancel()
	p, err := f.know(ctx, p)
	if err != nil {
		return err
	}
	mine := f.admit(p, ips, link)
	for {
		f.mu.Lock()
		done, turn, failure := f.inForce >= mine, f.turn, f.failure
		ingress, egress := f.plan.Isolated(keyOf(p))
		f.mu.Unlock()
		if done {
			if !ingress && !egress {
				return nil
			}
			if err := f.cfg.Sees(); err != nil {
				return fmt.Errorf("network policies select the pod and cannot be enforced on this node: %w", err)
			}
			f.endFlows(ctx, parse(ips))
			return nil
		}
		select {
		case <-turn:
		case <-ctx.Done():
			return fmt.Errorf("network policies that select the pod are not in force after %s: %w", f.cfg.Patience, cmp.Or(failure, ctx.Err()))
		}
	}
}

// Follow takes the addresses and the link of a pod of this node that runs already.
func (f *Filter) Follow(p *corev1.Pod, ips []string, link string) { f.admit(p, ips, link) }

// admit takes a pod's addresses from whoever started it, and answers which change that
// is. Whoever had one of them before has it no longer.
func (f *Filter) admit(p *corev1.Pod, ips []string, link string) uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p.Spec.HostNetwork {
		return f.changes
	}
	f.leave(p.UID)
	addresses := parse(ips)
	for _, ip := range addresses {
		f.hosts[ip] = p.UID
	}
	f.guests[p.UID] = addresses
	if link != "" {
		f.linkOf[p.UID] = link
		delete(f.heldLinks, link)
	}
	for uid, other := range f.here {
		if uid != p.UID && slices.ContainsFunc(addresses, func(ip netip.Addr) bool { return slices.Contains(f.addresses(other), ip) }) {
			// A copy: the plan has the old one.
			f.guests[uid] = slices.DeleteFunc(slices.Clone(f.guests[uid]), func(ip netip.Addr) bool { return slices.Contains(addresses, ip) })
			f.setPod(other)
		}
	}
	if known := f.here[p.UID]; known != nil && (p.ResourceVersion == "" || newer(known.ResourceVersion, p.ResourceVersion)) {
		p = known // the watch knows more than whoever starts it
	} else {
		p = slimPod(p)
		p.Spec.NodeName = f.cfg.Node
	}
	f.setPod(p)
	f.changes++
	f.nudge()
	return f.changes
}

// Forget ends what Follow began: nothing of the pod is left on this node.
func (f *Filter) Forget(p *corev1.Pod) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.removePod(p)
	f.changes++
	f.nudge()
}

// state is what the API says of a pod at one moment, as far as its traffic depends on it.
type state struct {
	pod        *corev1.Pod // nil: it has none of this name, as of a static pod
	policies   []networkingv1.NetworkPolicy
	namespaces []corev1.Namespace
	cluster    []unstructured.Unstructured // ClusterNetworkPolicies
	nodes      []corev1.Node
}

// know waits until the plan has what the API says now: the pod with its labels, and with it what was written
// of any pod before, all policies of its namespace and of the cluster, and the labels of namespaces, and nodes,
// where policies ask for them. Each is asked for anew, since each watch may be behind, or behind another one.
// It answers the pod as the API has it, or as it was given.
func (f *Filter) know(ctx context.Context, p *corev1.Pod) (*corev1.Pod, error) {
	for {
		now, err := f.ask(ctx, p)
		switch {
		case err == nil:
			behind := f.arrived(ctx, now)
			if behind == "" {
				return cmp.Or(now.pod, p), nil
			}
			err = errors.New("the watch of " + behind + " is behind")
		case p.Status.Phase == corev1.PodRunning:
			// The pod has run before, under the policies that are known.
			f.cfg.Log.WarnContext(ctx, "a pod starts again under the network policies that are known, as the API does not answer",
				"kind", "Pod", "namespace", p.Namespace, "name", p.Name, "error", err)
			return p, nil
		default:
			run.Sleep(ctx, askAgain)
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("the network policies of namespace %s are not known after %s: %w", p.Namespace, f.cfg.Patience, err)
		}
	}
}

// ask reads at the newest revision. The pod comes first: what was there before it is in the answers.
func (f *Filter) ask(ctx context.Context, p *corev1.Pod) (now state, err error) {
	pods, err := f.cfg.Client.CoreV1().Pods(p.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + p.Name})
	if err != nil {
		return now, err
	}
	labelled := p
	for i := range pods.Items {
		if one := &pods.Items[i]; one.Name == p.Name && one.UID == p.UID {
			now.pod = slimPod(one)
			labelled = now.pod
		}
	}
	policies, err := f.cfg.Client.NetworkingV1().NetworkPolicies(p.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return now, err
	}
	now.policies = policies.Items
	if err := f.askCluster(ctx, &now); err != nil {
		return now, err
	}
	// Policies of the cluster select pods by their namespaces, and a Deny rule must know all of its peers.
	if len(now.cluster) == 0 && !slices.ContainsFunc(now.policies, func(np networkingv1.NetworkPolicy) bool {
		return networkpolicy.AsksForNamespaces(&np,
			labelled.Labels)
	}) {
		return now, nil
	}
	namespaces, err := f.cfg.Client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	if err == nil {
		now.namespaces = namespaces.Items
	}
	return now, err
}

// catchUp waits until the plan has all policies that there are: what an earlier process left in the kernel
// may be newer than what a first list from a cache brings, and is not replaced before.
func (f *Filter) catchUp(ctx context.Context) error {
	list, err := f.cfg.Client.NetworkingV1().NetworkPolicies(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("ask which network policies there are: %w", err)
	}
	now := state{policies: list.Items}
	if err := f.askCluster(ctx, &now); err != nil {
		return err
	}
	if behind := f.arrived(ctx, now); behind != "" {
		return errors.New("the watch of " + behind + " is behind what there is")
	}
	return nil
}

// arrived waits for a moment until the plan has all of a state, and answers what it has not; "" = it has all.
func (f *Filter) arrived(ctx context.Context, now state) (behind string) {
	patience := time.NewTimer(askAgain)
	defer patience.Stop()
	for {
		f.mu.Lock()
		turn := f.turn
		behind = f.behind(now)
		f.mu.Unlock()
		if behind == "" {
			return ""
		}
		select {
		case <-turn:
		case <-patience.C:
			return behind
		case <-ctx.Done():
			return behind
		}
	}
}

// behind names the watch that has not brought something. Lock held.
func (f *Filter) behind(now state) string {
	if now.pod != nil {
		if have := f.here[now.pod.UID]; have == nil || !newer(have.ResourceVersion, now.pod.ResourceVersion) {
			return "pods"
		}
	}
	for i := range now.policies {
		np := &now.policies[i]
		if have, ok := f.seen[types.NamespacedName{Namespace: np.Namespace, Name: np.Name}]; !ok ||
			!newer(have.ResourceVersion, np.ResourceVersion) {
			return "policies"
		}
	}
	for i := range now.cluster {
		np := &now.cluster[i]
		if have, ok := f.seen[types.NamespacedName{Name: np.GetName()}]; !ok || !newer(have.ResourceVersion, np.GetResourceVersion()) {
			return "cluster policies"
		}
	}
	for i := range now.nodes {
		n := &now.nodes[i]
		if have, ok := f.seenNodes[n.Name]; !ok || !newer(have, n.ResourceVersion) {
			return "nodes"
		}
	}
	for i := range now.namespaces {
		n := &now.namespaces[i]
		if have, ok := f.seenNamespaces[n.Name]; !ok || !newer(have, n.ResourceVersion) {
			return "namespaces"
		}
	}
	return ""
}
