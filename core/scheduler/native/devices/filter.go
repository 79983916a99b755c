// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

// Upstream's words, by which tools and people know these reasons.
const (
	reasonElsewhere = "resourceclaim not available on the node"
	reasonNone      = "cannot allocate all claims"
)

// Filter implements framework.Filter: it looks for devices that can be used on the node, for
// all claims that have none, and keeps what it has found.
func (d *Plugin) Filter(ctx context.Context, s *framework.State, p *framework.PodInfo, n *framework.NodeInfo) *framework.Status {
	c := cycleOf(s)
	if c == nil {
		return nil
	}
	if c.elsewhere(n, d.timeout, s.Now()) {
		return unresolvable(reasonElsewhere)
	}
	if c.leftover() {
		return unresolvable("cannot schedule extended resource claim")
	}
	at, st := d.find(ctx, c, p, n)
	if st != nil || at == nil {
		return st
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nodes[n.Node.Name] = at
	return nil
}

// elsewhere says whether a claim has devices that cannot be used on the node, or that were not
// attached in time. PostFilter may take them away.
func (c *cycle) elsewhere(n *framework.NodeInfo, timeout time.Duration, now time.Time) bool {
	var not []*wanted
	for _, w := range c.claims {
		if w.nodes != nil && !w.nodes.Match(n.Node) || needsMore(w.claim, n) {
			not = append(not, w)
			continue
		}
		if w.claim.Status.Allocation == nil {
			continue
		}
		if ready, err := attached(w.claim); err != nil || !ready && overdue(w.claim, timeout, now) {
			not = append(not, w)
		}
	}
	if len(not) == 0 {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range not {
		c.unavailable[w] = true
	}
	return true
}

// leftover says whether an earlier try has made a claim for the pod's extended resources: it
// was made for the node of that try. PostFilter has it deleted.
func (c *cycle) leftover() bool {
	last := c.claims[len(c.claims)-1]
	if !last.extended || last.claim.Name == notYet {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unavailable[last] = true
	return true
}

// needsMore says whether a claim has a device for which the node's kubelet has to leave out
// operations, which it doesn't know.
func needsMore(c *resourcev1.ResourceClaim, n *framework.NodeInfo) bool {
	return c.Status.Allocation != nil && !slices.Contains(n.Node.Status.DeclaredFeatures, "DRAOptionalNodeOperations") &&
		slices.ContainsFunc(c.Status.Allocation.Devices.Results, func(r resourcev1.DeviceRequestAllocationResult) bool {
			return len(r.SkipNodeOperations) > 0
		})
}

// find looks for what the pod still needs on a node; nil where it needs nothing.
func (d *Plugin) find(ctx context.Context, c *cycle, p *framework.PodInfo, n *framework.NodeInfo) (*found, *framework.Status) {
	ask := c.ask(d.ledger, p.Pod, n)
	if len(ask.open) == 0 {
		return nil, nil
	}
	taken := c.taken.on(c.offers, n.Node.Name)
	answer, known := ask.kept.of(n.Node, taken)
	if !known {
		var st *framework.Status
		if answer, st = d.search(ctx, c, ask, n.Node); st != nil {
			return nil, st
		}
		answer.taken = taken
		ask.kept.put(answer)
	}
	if answer.refusal != nil {
		return nil, answer.refusal
	}
	at := &found{allocations: map[*wanted]*resourcev1.AllocationResult{}, extended: ask.extended, mappings: ask.mappings}
	for i, w := range ask.open {
		one := answer.results[i] // the ledger tells what was decided for one pod from what was for another by where it is
		at.allocations[w] = &one
	}
	return at, nil
}

// search looks for devices on a node. A status says that it is not known whether there are.
func (d *Plugin) search(ctx context.Context, c *cycle, ask *asked, n *corev1.Node) (*answer, *framework.Status) {
	allocator, err := c.allocator()
	if err != nil {
		return nil, framework.AsStatus(err)
	}
	d.ledger.searches.Add(1)
	ctx, cancel := context.WithDeadline(ctx, c.until)
	defer cancel()
	results, err := allocator.Allocate(ctx, n, ask.claims)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return nil, framework.AsStatus(fmt.Errorf("node %s: timed out trying to allocate devices: one pod's are looked for during %s, on all nodes together", n.Name, d.longest))
	case errors.Is(err, structured.ErrFailedAllocationOnNode):
		return &answer{node: n, refusal: unresolvable("%s", err)}, nil
	case err != nil:
		return nil, framework.AsStatus(err)
	case len(results) != len(ask.open):
		return &answer{node: n, refusal: unresolvable(reasonNone)}, nil
	}
	return &answer{node: n, results: results}, nil
}

// attached says whether all devices of a claim are ready to be used on their node: some have
// to be attached first. An error says that one cannot be.
func attached(c *resourcev1.ResourceClaim) (bool, error) {
	for i := range c.Status.Allocation.Devices.Results {
		r := &c.Status.Allocation.Devices.Results[i]
		if len(r.BindingConditions) == 0 {
			continue
		}
		at := slices.IndexFunc(c.Status.Devices, func(s resourcev1.AllocatedDeviceStatus) bool {
			return s.Driver == r.Driver && s.Pool == r.Pool && s.Device == r.Device
		})
		if at < 0 {
			return false, nil
		}
		conditions := c.Status.Devices[at].Conditions
		for _, kind := range r.BindingFailureConditions {
			if f := meta.FindStatusCondition(conditions, kind); f != nil && f.Status == "True" {
				return false, fmt.Errorf("device binding failed: claim=%s, reason=%s, message=%q", c.Name, f.Reason, f.Message)
			}
		}
		for _, kind := range r.BindingConditions {
			if !meta.IsStatusConditionTrue(conditions, kind) {
				return false, nil
			}
		}
	}
	return true, nil
}

// overdue says whether a claim's devices were not attached in time.
func overdue(c *resourcev1.ResourceClaim, timeout time.Duration, now time.Time) bool {
	since := c.Status.Allocation.AllocationTimestamp
	return since != nil && since.Add(timeout).Before(now)
}

// PostFilter implements framework.PostFilter: it nominates no node, and Free takes devices away.
func (d *Plugin) PostFilter(_ context.Context, s *framework.State, p *framework.PodInfo, _ *framework.Snapshot,
	_ map[string]*framework.Status,
	_ framework.Simulator,
) (*framework.Nomination, *framework.Status) {
	w := hindrance(s, p)
	switch {
	case w == nil:
		return nil, framework.NewStatus(framework.Unschedulable)
	case w.extended:
		cycleOf(s).free = w
		return nil, framework.NewStatus(framework.Unschedulable, "deletion of ResourceClaim completed")
	}
	cycleOf(s).free = w
	return nil, framework.NewStatus(framework.Unschedulable, "deallocation of ResourceClaim completed")
}

// hindrance is a claim that keeps the pod from nodes, and whose devices nobody else uses.
func hindrance(s *framework.State, p *framework.PodInfo) *wanted {
	c := cycleOf(s)
	if c == nil {
		return nil
	}
	for _, w := range c.claims { // one at a time: with others it may do
		users := w.claim.Status.ReservedFor
		if c.unavailable[w] && (w.extended || len(users) == 0 || len(users) == 1 && users[0].UID == p.Pod.UID) {
			return w
		}
	}
	return nil
}

// PreScore implements framework.PreScore: only who has alternatives prefers some nodes.
func (d *Plugin) PreScore(_ context.Context, s *framework.State, _ *framework.PodInfo, _ []*framework.NodeInfo) *framework.Status {
	c := cycleOf(s)
	if c == nil || !slices.ContainsFunc(c.claims, (*wanted).alternatives) {
		return framework.NewStatus(framework.Skip)
	}
	return nil
}

func (w *wanted) alternatives() bool {
	return slices.ContainsFunc(w.claim.Spec.Devices.Requests, func(r resourcev1.DeviceRequest) bool { return len(r.FirstAvailable) > 0 })
}

// Score implements framework.Score: the earlier an alternative stands in its list, the better.
func (d *Plugin) Score(_ context.Context, s *framework.State, _ *framework.PodInfo, n *framework.NodeInfo) (int64, *framework.Status) {
	c := cycleOf(s)
	if c == nil {
		return 0, nil
	}
	c.mu.Lock()
	at := c.nodes[n.Node.Name]
	c.mu.Unlock()
	var score int64
	for _, w := range c.claims {
		a := w.claim.Status.Allocation
		if a == nil {
			a = w.pending
		}
		if a == nil && at != nil {
			a = at.allocations[w]
		}
		if a != nil {
			score += preference(w.claim, a)
		}
	}
	return score, nil
}

func preference(c *resourcev1.ResourceClaim, a *resourcev1.AllocationResult) (score int64) {
	for i := range c.Spec.Devices.Requests {
		r := &c.Spec.Devices.Requests[i]
		for place := range r.FirstAvailable {
			name := resourceclaim.CreateSubRequestRef(r.Name, r.FirstAvailable[place].Name)
			if slices.ContainsFunc(a.Devices.Results, func(got resourcev1.DeviceRequestAllocationResult) bool { return got.Request == name }) {
				score += int64(resourcev1.FirstAvailableDeviceRequestMaxSize - place)
			}
		}
	}
	return score
}

// Normalize implements framework.Normalize.
func (d *Plugin) Normalize(_ context.Context, _ *framework.State, _ *framework.PodInfo, _ []*framework.NodeInfo,
	scores []int64,
) *framework.Status {
	most := slices.Max(scores)
	for i := range scores {
		if most > 0 {
			scores[i] = scores[i] * framework.MaxScore / most
		}
	}
	return nil
}
