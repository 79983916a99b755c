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
	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/run"
)

// askAgain is after how long the API is asked again which policies there are: one that
// was listed and has been deleted since is not waited for.
const askAgain = 250 * time.Millisecond

// Guard returns once what policies say of a pod of this node, which was given these
// addresses, is in force. Of the pod, what its sandbox shows is enough: all else comes by
// the watch. link is the pod's link to our bridge, on the node's side; "" where there is
// none. An error means that it is not, and that the pod must not start.
func (f *Filter) Guard(ctx context.Context, p *corev1.Pod, ips []string, link string) error {
	if p.Spec.HostNetwork {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, f.cfg.Patience)
	defer cancel()
	if err := f.know(ctx, p); err != nil {
		return err
	}
	mine := f.admit(p, ips, link)
	for {
		f.mu.Lock()
		done, turn, failure := f.inForce >= mine, f.turn, f.failure
		ingress, egress := f.plan.Isolated(types.NamespacedName{Namespace: p.Namespace, Name: p.Name})
		f.mu.Unlock()
		if done {
			if err := f.cfg.Sees(); err != nil && (ingress || egress) {
				return fmt.Errorf("network policies select the pod and cannot be enforced on this node: %w", err)
			}
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
	if known := f.here[p.UID]; known != nil {
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

// know waits until all policies are in the plan that are in the pod's namespace now.
func (f *Filter) know(ctx context.Context, p *corev1.Pod) error {
	for {
		list, err := f.cfg.Client.NetworkingV1().NetworkPolicies(p.Namespace).List(ctx, metav1.ListOptions{})
		switch {
		case err == nil:
			if f.arrived(ctx, list.Items) {
				return nil
			}
			err = errors.New("the watch of policies is behind")
		case p.Status.Phase == corev1.PodRunning:
			// The pod has run before, under the policies that are known.
			f.cfg.Log.WarnContext(ctx, "a pod starts again under the network policies that are known, as the API does not answer",
				"kind", "Pod", "namespace", p.Namespace, "name", p.Name, "error", err)
			return nil
		default:
			run.Sleep(ctx, askAgain)
		}
		if ctx.Err() != nil {
			return fmt.Errorf("the network policies of namespace %s are not known after %s: %w", p.Namespace, f.cfg.Patience, err)
		}
	}
}

// arrived waits for a moment until the plan has all of a list, and reports whether it has.
func (f *Filter) arrived(ctx context.Context, list []networkingv1.NetworkPolicy) bool {
	patience := time.NewTimer(askAgain)
	defer patience.Stop()
	for {
		f.mu.Lock()
		turn := f.turn
		missing := slices.ContainsFunc(list, func(np networkingv1.NetworkPolicy) bool {
			have, ok := f.seen[types.NamespacedName{Namespace: np.Namespace, Name: np.Name}]
			return !ok || !newer(have.ResourceVersion, np.ResourceVersion)
		})
		f.mu.Unlock()
		if !missing {
			return true
		}
		select {
		case <-turn:
		case <-patience.C:
			return false
		case <-ctx.Done():
			return false
		}
	}
}
