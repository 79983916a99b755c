// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/core/scheduler/gang"
	"github.com/wasmplane/wasmplane/core/scheduler/nodecache"
	"github.com/wasmplane/wasmplane/core/scheduler/queue"
)

// standing is a refusal as the queue keeps it, for the pods of a template.
type standing struct {
	profile  *profile
	pod      *framework.PodInfo
	decision *Decision // without what only its own cycle needs
	by       []string
	asks     context.Context //nolint:containedctx // for the filters that are asked who is helped
	gang     gang.Key        // empty = the pod is tried alone
	any      bool            // what helps others of the gang cannot be seen of this pod
}

// template is what a pod has in common with others that are refused alike; "" = nothing. A
// pod that was promised a node is in a case of its own.
func (s *Scheduler) template(prof *profile, p *framework.PodInfo) string {
	if p.Pod.Status.NominatedNodeName != "" || s.nominated.Of(p.Pod.UID) != "" {
		return ""
	}
	return prof.template(p)
}

// template is what the plugins that refuse pods read of one; "" = it is the pod's alone.
func (c *profile) template(p *framework.PodInfo) string {
	if len(c.refusers) == 0 {
		return ""
	}
	var sig framework.Signature
	sig.Text(c.name)
	sig.Number(int64(priorityOf(p.Pod))) // room that was promised to some is not everybody's
	for _, plugin := range c.refusers {
		sig.Text(plugin.Name())
		if !plugin.Sign(p, &sig) {
			return ""
		}
	}
	return sig.String()
}

// refusal is why a pod was refused, for the queue.
func (s *Scheduler) refusal(ctx context.Context, prof *profile, p *framework.PodInfo, d *Decision, template string) queue.Refusal {
	if d.Nomination != nil {
		template = "" // the others have not been promised anything
	}
	by := d.RefusedBy()
	return queue.Refusal{
		Interest: prof.interest(by), Template: template,
		Why: &standing{profile: prof, pod: p, decision: d.Kept(key(p.Pod)), by: by, asks: context.WithoutCancel(ctx)},
	}
}

// helps says who is helped by what has happened to a node.
func (s *Scheduler) helps(e framework.ClusterEvent, node string) func(queue.Refusal) bool {
	n := s.cache.Node(node)
	if n == nil {
		return nil
	}
	return func(r queue.Refusal) bool {
		why, ok := r.Why.(*standing)
		return !ok || why.helped(e, n)
	}
}

// attend has the queue told of an object that matters to plugins: they say which pods it may help.
func (s *Scheduler) attend(e framework.ClusterEvent) cache.ResourceEventHandler {
	return nodecache.Handler(func(old, now k8sruntime.Object) {
		s.queue.Happened(e, func(r queue.Refusal) bool {
			why, ok := r.Why.(*standing)
			return !ok || why.any || len(why.by) == 0 || slices.ContainsFunc(why.by, func(name string) bool {
				a, ok := why.profile.attentive[name]
				return why.profile.hints[name]&e != 0 && (!ok || a.Helped(why.pod, old, now))
			})
		})
	})
}

// helped says whether an event on a node may let the pod in. Where all who refused it look at
// nothing but single nodes, it has to fit on that node as far as they can see: the others
// have not changed. Pods that it could have removed are no hindrance.
func (r *standing) helped(e framework.ClusterEvent, n *framework.NodeInfo) bool {
	if len(r.by) == 0 || r.any {
		return true
	}
	for _, name := range r.by {
		if !r.profile.isLocal[name] && r.profile.hints[name]&e != 0 {
			return true
		}
	}
	for _, other := range n.Pods {
		if priorityOf(other.Pod) < priorityOf(r.pod.Pod) {
			n = n.WithoutPod(other)
		}
	}
	state := framework.NewState()
	for _, f := range r.profile.filters {
		if f.local && !f.plugin.Filter(r.asks, state, r.pod, n).IsSuccess() {
			return false
		}
	}
	return true
}

// unpromise takes back what a pod was promised: the room is anybody's again.
func (s *Scheduler) unpromise(uid types.UID) {
	if node := s.nominated.Drop(uid); node != "" {
		s.happened(framework.PodRemoved, node)
	}
}

func priorityOf(p *corev1.Pod) int32 {
	if p.Spec.Priority != nil {
		return *p.Spec.Priority
	}
	return 0
}
