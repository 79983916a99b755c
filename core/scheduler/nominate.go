package scheduler

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

// nominations are the pods that wait for room on a node which was promised to
// them, because others are being removed from it. Pods of lower priority must not
// take that room. It is safe for concurrent use.
type nominations struct {
	mu   sync.Mutex
	pods map[types.UID]nominated
}

type nominated struct {
	info *framework.PodInfo
	node string
}

func (n *nominations) set(p *framework.PodInfo, node string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.pods == nil {
		n.pods = map[types.UID]nominated{}
	}
	if node == "" {
		delete(n.pods, p.Pod.UID)
		return
	}
	n.pods[p.Pod.UID] = nominated{p, node}
}

func (n *nominations) drop(uid types.UID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.pods, uid)
}

// of is the node that a pod was promised; "" where there is none.
func (n *nominations) of(uid types.UID) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.pods[uid].node
}

// ahead lists, by node, the nominated pods whose room a pod may not take: those of
// its own priority or a higher one.
func (n *nominations) ahead(p *corev1.Pod) map[string][]*framework.PodInfo {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out map[string][]*framework.PodInfo
	for uid, other := range n.pods {
		if uid == p.UID || priorityOf(other.info.Pod) < priorityOf(p) {
			continue
		}
		if out == nil {
			out = map[string][]*framework.PodInfo{}
		}
		out[other.node] = append(out[other.node], other.info)
	}
	return out
}

// behind lists the pods nominated to a node whose priority is lower.
func (n *nominations) behind(node string, priority int32) []*corev1.Pod {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []*corev1.Pod
	for _, other := range n.pods {
		if other.node == node && priorityOf(other.info.Pod) < priority {
			out = append(out, other.info.Pod)
		}
	}
	return out
}

func priorityOf(p *corev1.Pod) int32 {
	if p.Spec.Priority != nil {
		return *p.Spec.Priority
	}
	return 0
}

// makeRoom carries out a nomination: the victims are told why and are deleted,
// and pods of lower priority that were promised the node lose that promise, since
// the room that they waited for is somebody else's now.
func (s *Scheduler) makeRoom(ctx context.Context, prof *profile, p *corev1.Pod, n *framework.Nomination) error {
	for _, v := range n.Victims {
		if err := s.preempt(ctx, prof, p, v.Pod, n.Node); err != nil {
			return fmt.Errorf("remove pod %s for %s: %w", key(v.Pod), key(p), err)
		}
	}
	for _, other := range s.nominated.behind(n.Node, priorityOf(p)) {
		s.nominated.drop(other.UID)
		if err := s.patchStatus(ctx, other, map[string]any{"nominatedNodeName": nil}); err != nil && !apierrors.IsNotFound(err) {
			s.cfg.Logger.Warn("the node that a pod was promised could not be taken off it", "pod", key(other), "node", n.Node, "error", err)
		}
	}
	return nil
}

func (s *Scheduler) preempt(ctx context.Context, prof *profile, p, victim *corev1.Pod, node string) error {
	if s.waiting.refuse(victim.UID, fmt.Sprintf("preempted by pod %s", p.UID)) {
		return nil // it was not bound yet: nothing runs that would have to be deleted
	}
	if victim.DeletionTimestamp != nil {
		return nil
	}
	now := metav1.Now()
	err := s.patchStatus(ctx, victim, map[string]any{"conditions": []corev1.PodCondition{{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, ObservedGeneration: victim.Generation, LastTransitionTime: now,
		Reason: corev1.PodReasonPreemptionByScheduler, Message: prof.name + ": preempting to accommodate a higher priority pod",
	}}})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("write its DisruptionTarget condition: %w", err)
	}
	err = s.cfg.Client.CoreV1().Pods(victim.Namespace).Delete(ctx, victim.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &victim.UID}})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return err
	}
	s.event(prof, victim, corev1.EventTypeNormal, "Preempted", "Preempting", fmt.Sprintf("Preempted by pod %v on node %v", p.UID, node))
	return nil
}

func (s *Scheduler) patchStatus(ctx context.Context, p *corev1.Pod, status map[string]any) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": p.UID}, "status": status})
	if err != nil {
		return fmt.Errorf("encode a pod's status: %w", err)
	}
	_, err = s.cfg.Client.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}

// waiters are the pods that Permit plugins hold back.
type waiters struct {
	mu   sync.Mutex
	pods map[types.UID]chan string
}

// add announces a waiting pod; what comes from the channel is why it must not wait any longer.
func (w *waiters) add(uid types.UID) <-chan string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pods == nil {
		w.pods = map[types.UID]chan string{}
	}
	c := make(chan string, 1)
	w.pods[uid] = c
	return c
}

func (w *waiters) remove(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.pods, uid)
}

// refuse ends the wait of a pod; it says whether the pod waited.
func (w *waiters) refuse(uid types.UID, why string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	c, ok := w.pods[uid]
	if !ok {
		return false
	}
	select {
	case c <- why:
	default: // told already
	}
	return true
}

// simulator is framework.Simulator over one cycle.
type simulator struct {
	profile *profile
	search  *search
	state   *framework.State
	pod     *framework.PodInfo
	snap    *framework.Snapshot
	made    int64 // simulated nodes so far
}

// Fits implements framework.Simulator.
func (m *simulator) Fits(ctx context.Context, n *framework.NodeInfo, removed []*framework.PodInfo) *framework.Status {
	state, node := m.state.Clone(), n
	for _, r := range removed {
		node = node.WithoutPod(r)
		for _, e := range m.profile.extensions {
			if st := e.RemovePod(ctx, state, m.pod, r, node); !st.IsSuccess() {
				return by(asError(st), e)
			}
		}
	}
	state, node, st := m.profile.withPods(ctx, state, m.pod, node, m.search.ahead[n.Node.Name])
	if !st.IsSuccess() {
		return st
	}
	return m.ask(ctx, state, node)
}

// ask has every filter and judge look at a node that may be another than the snapshot's.
func (m *simulator) ask(ctx context.Context, state *framework.State, node *framework.NodeInfo) *framework.Status {
	if st := m.search.filter(ctx, state, m.pod, node); !st.IsSuccess() {
		return st
	}
	at, ok := m.snap.Index[node.Node.Name]
	if !ok || len(m.profile.judges) == 0 {
		return nil
	}
	// Whoever keeps a table of the nodes goes by generations: a simulated node has
	// one that no real node ever has.
	m.made++
	changed := *node
	changed.Generation = -m.made
	snap := *m.snap
	snap.Nodes, snap.Generation = slices.Clone(m.snap.Nodes), -m.made
	snap.Nodes[at] = &changed
	for _, j := range m.profile.judges {
		verdicts, st := j.plugin.Judge(ctx, m.pod, &snap)
		switch {
		case st != nil && st.Code == framework.Skip:
		case !st.IsSuccess():
			return by(st, j.plugin)
		case len(verdicts) != len(snap.Nodes):
			return by(framework.AsStatus(fmt.Errorf("answered for %d nodes instead of %d", len(verdicts), len(snap.Nodes))), j.plugin)
		case !verdicts[at].Status.IsSuccess():
			return by(verdicts[at].Status, j.plugin)
		}
	}
	return nil
}

// withPods puts further pods onto a node, for a simulation.
func (c *profile) withPods(ctx context.Context, state *framework.State, p *framework.PodInfo, n *framework.NodeInfo, pods []*framework.PodInfo) (*framework.State, *framework.NodeInfo, *framework.Status) {
	for _, other := range pods {
		n = n.WithPod(other)
		for _, e := range c.extensions {
			if st := e.AddPod(ctx, state, p, other, n); !st.IsSuccess() {
				return nil, nil, by(asError(st), e)
			}
		}
	}
	return state, n, nil
}

// failedNodes copies the statuses for a PostFilter, which may keep them.
func (d *Decision) failedNodes() map[string]*framework.Status { return maps.Clone(d.Statuses) }
