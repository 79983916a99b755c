// SPDX-License-Identifier: Apache-2.0

package decision

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

// Template is what the plugins that refuse pods read of one; "" = it is the pod's alone.
func (c *Compiled) Template(p *framework.PodInfo) string {
	if len(c.refusers) == 0 {
		return ""
	}
	var sig framework.Signature
	sig.Text(c.Name)
	sig.Number(int64(corev1helpers.PodPriority(p.Pod))) // room that was promised to some is not everybody's
	for _, plugin := range c.refusers {
		sig.Text(plugin.Name())
		if !plugin.Sign(p, &sig) {
			return ""
		}
	}
	return sig.String()
}

// Awaited are the keys of the objects of volumes that a pod waits for which these plugins refused; nil = a change
// of any may help it.
func (c *Compiled) Awaited(p *framework.PodInfo, refusedBy []string) []string {
	if len(refusedBy) == 0 {
		return nil
	}
	keys := []string{}
	for _, name := range refusedBy {
		if c.hints[name]&framework.VolumesChanged == 0 {
			continue
		}
		a, ok := c.awaiting[name]
		if !ok {
			return nil
		}
		keys = append(keys, a.Awaited(p)...)
	}
	return keys
}

// HelpedByObject says whether a change of an object may let a pod in that these plugins refused.
func (c *Compiled) HelpedByObject(p *framework.PodInfo, refusedBy []string, e framework.ClusterEvent, old, now k8sruntime.Object) bool {
	return slices.ContainsFunc(refusedBy, func(name string) bool {
		a, ok := c.attentive[name]
		return c.hints[name]&e != 0 && (!ok || a.Helped(p, old, now))
	})
}

// HelpedByRemoval says whether a node that has gone may let a pod in that these plugins refused. It makes no
// room for those that look at single nodes: the others have not changed.
func (c *Compiled) HelpedByRemoval(p *framework.PodInfo, refusedBy []string, e framework.ClusterEvent, n *corev1.Node) bool {
	return slices.ContainsFunc(refusedBy, func(name string) bool {
		if c.isLocal[name] {
			return false
		}
		a, ok := c.attentive[name]
		return c.hints[name]&e&^framework.NodeRemoved != 0 || c.hints[name]&e != 0 && (!ok || a.Helped(p, n, nil))
	})
}

// Helped says whether an event on a node may let a pod in that these plugins refused. Where all
// of them look at nothing but single nodes, it has to fit on that node as far as they can see: the others
// have not changed. Pods that it could have removed are no hindrance. Where it does not fit, refuser is the
// plugin that keeps it from that node now: another one, maybe, than those that did.
func (c *Compiled) Helped(ctx context.Context, p *framework.PodInfo, refusedBy []string, e framework.ClusterEvent,
	n *framework.NodeInfo,
) (helped bool, refuser string) {
	for _, name := range refusedBy {
		if !c.isLocal[name] && c.hints[name]&e != 0 {
			return true, ""
		}
	}
	for _, other := range n.Pods {
		if corev1helpers.PodPriority(other.Pod) < corev1helpers.PodPriority(p.Pod) {
			n = n.WithoutPod(other)
		}
	}
	state := framework.NewState()
	for _, f := range c.filters {
		if f.local && !f.plugin.Filter(ctx, state, p, n).IsSuccess() {
			return false, f.plugin.Name()
		}
	}
	return true, ""
}
