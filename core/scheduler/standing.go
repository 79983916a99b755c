// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/wasmplane/wasmplane/core/scheduler/decision"
	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/core/scheduler/gang"
	"github.com/wasmplane/wasmplane/core/scheduler/nodecache"
	"github.com/wasmplane/wasmplane/core/scheduler/queue"
)

// standing is a refusal as the queue keeps it, for the pods of a template.
type standing struct {
	profile  *decision.Compiled
	pod      *framework.PodInfo
	decision *Decision       // without what only its own cycle needs
	by       []string        // refused it
	held     []string        // these, those because of which no room could be made, and who has come to refuse it since
	asks     context.Context //nolint:containedctx // for the filters that are asked who is helped
	gang     gang.Key        // empty = the pod is tried alone
	any      bool            // what helps cannot be seen of this pod and the changed node alone
}

// template is what a pod has in common with others that are refused alike; "" = nothing. A
// pod that was promised a node is in a case of its own.
func (s *Scheduler) template(prof *decision.Compiled, p *framework.PodInfo) string {
	if p.Pod.Status.NominatedNodeName != "" || s.nominated.Of(p.Pod.UID) != "" {
		return ""
	}
	return prof.Template(p)
}

// refusal is why a pod was refused, for the queue.
func (s *Scheduler) refusal(ctx context.Context, prof *decision.Compiled, p *framework.PodInfo, d *Decision,
	template string,
) queue.Refusal {
	if d.Nomination != nil || prof.Frees(d) {
		template = "" // the others have not been promised anything
	}
	held := d.HeldBy()
	interest := prof.Interest(held)
	if prof.Reclaims() {
		interest |= framework.PodRemoved // wherever: its group may have room in its share now
	}
	return queue.Refusal{
		Interest: interest, Template: template, Keys: prof.Awaited(p, held),
		Why: &standing{
			profile: prof, pod: p, decision: d.Kept(key(p.Pod)), by: d.RefusedBy(), held: held, asks: context.WithoutCancel(ctx),
			any: prof.Reclaims(),
		},
	}
}

// helps says who is helped by what has happened to a node.
func (s *Scheduler) helps(e framework.ClusterEvent, node string) func(*queue.Refusal) bool {
	n := s.cache.Node(node)
	if n == nil {
		return nil
	}
	return func(r *queue.Refusal) bool {
		why, ok := r.Why.(*standing)
		if !ok || why.any || len(why.held) == 0 {
			return true
		}
		helped, refuser := why.profile.Helped(why.asks, why.pod, why.held, e, n)
		if !helped && !slices.Contains(why.held, refuser) {
			// A node that has got the label which the pod needs may be full: that one ends there is of interest now.
			why.held = append(slices.Clip(why.held), refuser)
			r.Interest |= why.profile.Interest([]string{refuser})
		}
		return helped
	}
}

// helpedByRemoval says who is helped by a node that has gone.
func helpedByRemoval(e framework.ClusterEvent, n *corev1.Node) func(*queue.Refusal) bool {
	return func(r *queue.Refusal) bool {
		why, ok := r.Why.(*standing)
		return !ok || why.any || len(why.held) == 0 || why.profile.HelpedByRemoval(why.pod, why.held, e, n)
	}
}

// attend has the queue told of an object that matters to plugins: they say which pods it may help.
func (s *Scheduler) attend(e framework.ClusterEvent) cache.ResourceEventHandler {
	return nodecache.Handler(func(old, now k8sruntime.Object) {
		s.queue.Happened(e, helpedBy(e, old, now))
	})
}

// helpedBy says who is helped by the change of an object.
func helpedBy(e framework.ClusterEvent, old, now k8sruntime.Object) func(*queue.Refusal) bool {
	return func(r *queue.Refusal) bool {
		why, ok := r.Why.(*standing)
		return !ok || why.any || len(why.held) == 0 || why.profile.HelpedByObject(why.pod, why.held, e, old, now)
	}
}

// volumes has the queue told of an object of volumes: only pods that wait for it, or for any, are looked at.
func (s *Scheduler) volumes(old, now k8sruntime.Object) {
	helps := helpedBy(framework.VolumesChanged, old, now)
	var keys []string
	for _, o := range []k8sruntime.Object{old, now} {
		if o == nil {
			continue
		}
		of := framework.KeysOf(o)
		if of == nil {
			s.queue.Happened(framework.VolumesChanged, helps)
			return
		}
		keys = append(keys, of...)
	}
	s.queue.HappenedTo(framework.VolumesChanged, keys, helps)
}

// unpromise takes back what a pod was promised: the room is anybody's again.
func (s *Scheduler) unpromise(uid types.UID) {
	if node := s.nominated.Drop(uid); node != "" {
		s.happened(framework.PodRemoved, node)
	}
}
