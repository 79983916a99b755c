// SPDX-License-Identifier: Apache-2.0

package author

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/plugins/abi"
)

// Scheduling is the point of decisions that a whole cycle came to.
const Scheduling abi.Point = "scheduling"

// Cycles says whether the plugin takes part in scheduling otherwise than by a node table.
func (p *Plugin) Cycles() bool {
	for _, pt := range p.Points() {
		if pt == abi.SchedulingTable {
			return false
		}
		if strings.HasPrefix(string(pt), "scheduling.") {
			return true
		}
	}
	return false
}

// Cycle leads a pod through the points at which the plugin takes part, up to its scores, as the
// scheduler does. A node's verdict is its score, or why it does not fit.
func (p *Plugin) Cycle(ctx context.Context, pod *corev1.Pod, n Nodes) (*Decision, error) {
	list := p.loader.SchedulerPlugins()
	if len(list) == 0 {
		return nil, fmt.Errorf("plugin %q takes no part in scheduling; it does at %s", p.plugin.Name(), p.PointNames())
	}
	snap, err := n.snapshot()
	if err != nil {
		return nil, err
	}
	if pod.UID == "" {
		pod.UID = types.UID("00000000-0000-0000-0000-000000000000")
	}
	c := &cycle{plugin: list[0].Plugin, state: framework.NewState(), pod: framework.NewPodInfo(pod), verdicts: map[string]any{}}
	before, start := p.loader.Status()[0], time.Now()
	fuel := p.plugin.Stats.Fuel.Load()
	err = c.run(ctx, snap)
	d := &Decision{Point: Scheduling, Decision: Judged, Verdicts: c.verdicts}
	d.Usage = Usage{Fuel: p.plugin.Stats.Fuel.Load() - fuel, Microseconds: time.Since(start).Microseconds()}
	if after := p.loader.Status()[0]; err == nil && after.Failures > before.Failures { // it was passed over, as its failure policy says
		err = errors.New(after.LastFailure)
	}
	if err != nil {
		return &Decision{Point: Scheduling, Decision: Failed, Error: failure(err), Usage: d.Usage}, nil
	}
	return d, nil
}

// cycle is one pod's way to its scores.
type cycle struct {
	plugin   framework.Plugin
	state    *framework.State
	pod      *framework.PodInfo
	verdicts map[string]any
}

// refused says whether a status ends the way of some nodes, and notes why.
func (c *cycle) refused(st *framework.Status, nodes ...*framework.NodeInfo) (bool, error) {
	if st.IsSuccess() || st.Code == framework.Skip {
		return false, nil
	}
	if st.Code == framework.Error {
		return true, errors.Join(st.Err, errors.New(strings.Join(st.Reasons, "; ")))
	}
	for _, n := range nodes {
		c.verdicts[n.Node.Name] = strings.Join(st.Reasons, "; ")
	}
	return true, nil
}

func (c *cycle) run(ctx context.Context, snap *framework.Snapshot) error {
	nodes := snap.Nodes
	if f, ok := c.plugin.(framework.PreFilter); ok && framework.Takes(c.plugin, framework.AtPreFilter) {
		only, st := f.PreFilter(ctx, c.state, c.pod, snap)
		if ended, err := c.refused(st, nodes...); ended || err != nil {
			return err
		}
		nodes = c.narrow(nodes, only)
	}
	nodes, err := c.filter(ctx, nodes)
	if err != nil || len(nodes) == 0 {
		return err
	}
	return c.score(ctx, nodes)
}

// narrow keeps the nodes that PreFilter named; nil names all.
func (c *cycle) narrow(nodes []*framework.NodeInfo, only map[string]bool) (left []*framework.NodeInfo) {
	for _, n := range nodes {
		if only == nil || only[n.Node.Name] {
			left = append(left, n)
		} else {
			c.verdicts[n.Node.Name] = "left out before filtering"
		}
	}
	return left
}

func (c *cycle) filter(ctx context.Context, nodes []*framework.NodeInfo) (left []*framework.NodeInfo, err error) {
	f, ok := c.plugin.(framework.Filter)
	if !ok || !framework.Takes(c.plugin, framework.AtFilter) {
		return nodes, nil
	}
	for _, n := range nodes {
		ended, err := c.refused(f.Filter(ctx, c.state, c.pod, n), n)
		if err != nil {
			return nil, err
		}
		if !ended {
			left = append(left, n)
		}
	}
	return left, nil
}

func (c *cycle) score(ctx context.Context, nodes []*framework.NodeInfo) error {
	if s, ok := c.plugin.(framework.PreScore); ok && framework.Takes(c.plugin, framework.AtPreScore) {
		if ended, err := c.refused(s.PreScore(ctx, c.state, c.pod, nodes), nodes...); ended || err != nil {
			return err
		}
	}
	scores := make([]int64, len(nodes))
	if s, ok := c.plugin.(framework.Score); ok && framework.Takes(c.plugin, framework.AtScore) {
		for i, n := range nodes {
			score, st := s.Score(ctx, c.state, c.pod, n)
			if ended, err := c.refused(st, n); ended || err != nil {
				return err
			}
			scores[i] = score
		}
		if z, ok := c.plugin.(framework.Normalize); ok {
			if ended, err := c.refused(z.Normalize(ctx, c.state, c.pod, nodes, scores), nodes...); ended || err != nil {
				return err
			}
		}
	}
	for i, n := range nodes {
		c.verdicts[n.Node.Name] = scores[i]
	}
	return nil
}
