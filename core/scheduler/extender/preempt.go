// SPDX-License-Identifier: Apache-2.0

package extender

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

// Vet implements framework.Extender. The extender may leave nodes out, and have other pods of a node go.
func (x *Extender) Vet(ctx context.Context, p *framework.PodInfo, snap *framework.Snapshot, candidates []framework.Candidate,
) ([]framework.Candidate, *framework.Status) {
	var answer extenderv1.ExtenderPreemptionResult
	if err := x.send(ctx, x.s.PreemptVerb, x.victims(p, candidates), &answer); err != nil {
		return nil, framework.AsStatus(err)
	}
	var out []framework.Candidate
	for _, c := range candidates { // in their order, whatever order the answer has
		left, there := answer.NodeNameToMetaVictims[c.Node.Node.Name]
		if !there {
			continue
		}
		delete(answer.NodeNameToMetaVictims, c.Node.Node.Name)
		if left == nil || len(left.Pods) == 0 {
			if x.s.Ignorable {
				continue
			}
			return nil, framework.AsStatus(fmt.Errorf("expected at least one victim pod on node %q", c.Node.Node.Name))
		}
		one, err := agreed(p.Pod, snap, c, left)
		if err != nil {
			return nil, framework.AsStatus(err)
		}
		out = append(out, one)
	}
	for name := range answer.NodeNameToMetaVictims {
		return nil, framework.AsStatus(fmt.Errorf("it names victims on node %q, about which it was not asked", short(name)))
	}
	return out, nil
}

// victims as they are sent.
func (x *Extender) victims(p *framework.PodInfo, candidates []framework.Candidate) *extenderv1.ExtenderPreemptionArgs {
	args := &extenderv1.ExtenderPreemptionArgs{Pod: p.Pod}
	if x.s.NodeCacheCapable {
		args.NodeNameToMetaVictims = make(map[string]*extenderv1.MetaVictims, len(candidates))
	} else {
		args.NodeNameToVictims = make(map[string]*extenderv1.Victims, len(candidates))
	}
	for _, c := range candidates {
		if x.s.NodeCacheCapable {
			meta := &extenderv1.MetaVictims{Pods: []*extenderv1.MetaPod{}, NumPDBViolations: int64(c.Violations)}
			for _, v := range c.Victims {
				meta.Pods = append(meta.Pods, &extenderv1.MetaPod{UID: string(v.Pod.UID)})
			}
			args.NodeNameToMetaVictims[c.Node.Node.Name] = meta
			continue
		}
		whole := &extenderv1.Victims{Pods: []*corev1.Pod{}, NumPDBViolations: int64(c.Violations)}
		for _, v := range c.Victims {
			whole.Pods = append(whole.Pods, v.Pod)
		}
		args.NodeNameToVictims[c.Node.Node.Name] = whole
	}
	return args
}

// agreed is a candidate with the victims of an answer. Upstream would remove any pod of the node for an extender; here only
// pods of a lower priority make room, as for everybody.
func agreed(p *corev1.Pod, snap *framework.Snapshot, c framework.Candidate, left *extenderv1.MetaVictims) (framework.Candidate, error) {
	n := snap.Node(c.Node.Node.Name)
	if n == nil {
		n = c.Node
	}
	on := make(map[string]*framework.PodInfo, len(n.Pods))
	for _, o := range n.Pods {
		on[string(o.Pod.UID)] = o
	}
	one := framework.Candidate{Node: n, Violations: int(left.NumPDBViolations)}
	for _, v := range left.Pods {
		if v == nil || on[v.UID] == nil {
			return one, fmt.Errorf("it has a pod make room on node %q that is not there", n.Node.Name)
		}
		if corev1helpers.PodPriority(on[v.UID].Pod) >= corev1helpers.PodPriority(p) {
			return one, fmt.Errorf("it has pod %s/%s make room, which is not of a lower priority", on[v.UID].Pod.Namespace, on[v.UID].Pod.Name)
		}
		one.Victims = append(one.Victims, on[v.UID])
		delete(on, v.UID) // named twice, it is not there the second time
	}
	return one, nil
}
