// SPDX-License-Identifier: Apache-2.0

package author

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/plugins/abi"
)

// Nodes are what a scheduling plugin chooses among.
type Nodes struct {
	Nodes   []*corev1.Node
	Running []*corev1.Pod // each on the node that its spec names
}

// NodesOf reads nodes and pods from the trees of a file.
func NodesOf(nodes, running []map[string]any) (n Nodes, err error) {
	for _, tree := range nodes {
		var node corev1.Node
		if err := convert(tree, &node); err != nil {
			return n, fmt.Errorf("nodes: %w", err)
		}
		n.Nodes = append(n.Nodes, &node)
	}
	for _, tree := range running {
		var pod corev1.Pod
		if err := convert(tree, &pod); err != nil {
			return n, fmt.Errorf("running: %w", err)
		}
		n.Running = append(n.Running, &pod)
	}
	return n, nil
}

// PodOf reads a pod from the tree of a file.
func PodOf(tree map[string]any) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	if err := convert(tree, pod); err != nil {
		return nil, fmt.Errorf("pod: %w", err)
	}
	return pod, nil
}

func convert(tree map[string]any, into any) error {
	b, err := json.Marshal(tree)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, into)
}

// snapshot is what a scheduler would know of the nodes.
func (n *Nodes) snapshot() (*framework.Snapshot, error) {
	s := &framework.Snapshot{Index: map[string]int{}, ImageNodes: map[string]int{}, Generation: int64(len(n.Nodes)), NodesGeneration: 1}
	for i, node := range n.Nodes {
		info := framework.NewNodeInfo(node)
		for _, p := range n.Running {
			if p.Spec.NodeName == node.Name {
				info = info.WithPod(framework.NewPodInfo(p))
			}
		}
		info.Generation = int64(i + 1)
		for name := range info.ImageSizes {
			s.ImageNodes[name]++
		}
		s.Nodes = append(s.Nodes, info)
		s.Index[node.Name] = i
	}
	for _, p := range n.Running {
		if _, ok := s.Index[p.Spec.NodeName]; !ok {
			return nil, fmt.Errorf("running: pod %s is on node %q, which is none of nodes", p.Name, p.Spec.NodeName)
		}
	}
	return s, nil
}

// Judge has the plugin judge nodes for a pod, in one call, as the scheduler does.
func (p *Plugin) Judge(ctx context.Context, pod *corev1.Pod, n Nodes) (*Decision, error) {
	var judge framework.Judge
	for _, w := range p.loader.SchedulerPlugins() {
		judge, _ = w.Plugin.(framework.Judge)
	}
	if judge == nil || p.plugin.Current().Hook(abi.SchedulingTable) == nil {
		return nil, fmt.Errorf("plugin %q takes no part at %s; it does at %s", p.plugin.Name(), abi.SchedulingTable, p.PointNames())
	}
	snap, err := n.snapshot()
	if err != nil {
		return nil, err
	}
	fuel := p.plugin.Stats.Fuel.Load()
	start := time.Now()
	verdicts, status := judge.Judge(ctx, framework.NewPodInfo(pod), snap)
	d := &Decision{Point: abi.SchedulingTable, Decision: Judged, Verdicts: map[string]any{}}
	d.Usage = Usage{Fuel: p.plugin.Stats.Fuel.Load() - fuel, Microseconds: time.Since(start).Microseconds()}
	if !status.IsSuccess() {
		return &Decision{Point: abi.SchedulingTable, Decision: Failed, Error: failure(errors.Join(status.Err)), Usage: d.Usage}, nil
	}
	for i, v := range verdicts {
		if v.Status.IsSuccess() {
			d.Verdicts[n.Nodes[i].Name] = v.Score
		} else {
			d.Verdicts[n.Nodes[i].Name] = strings.Join(v.Status.Reasons, "; ")
		}
	}
	return d, nil
}
