// SPDX-License-Identifier: Apache-2.0

package simulate

import corev1 "k8s.io/api/core/v1"

// Result of one policy. Shares are of 1.
type Result struct {
	Policy string `json:"policy"`
	Pods   Pods   `json:"pods"`
	// Pending pods by what keeps them, at the end.
	Pending []Reason `json:"pending,omitempty"`
	Waiting Waiting  `json:"waitingSeconds"`
	// Resources that pods asked for, as a share of all nodes'.
	Resources map[corev1.ResourceName]Use `json:"resources"`
	// Stranded is the share of the free cpu that lies on nodes on which the typical pod (the
	// median request of cpu, and that of memory) does not fit: the mean over time.
	Stranded float64 `json:"stranded"`
	Nodes    Nodes   `json:"nodes"`
	// Uneven is the standard deviation of the nodes' cpu shares: the mean over time.
	Uneven float64 `json:"uneven"`
	// Zones: pods by zone, at the end.
	Zones map[string]int `json:"zones,omitempty"`
	// Tries of the scheduler; Preemptions are those that made room for a pod.
	Tries       int         `json:"tries"`
	Preemptions int         `json:"preemptions"`
	Plugins     []PluginUse `json:"plugins"`
	// Groups of pods, by name, where Config.GroupOf tells them apart.
	Groups []Group  `json:"groups,omitempty"`
	Series []Sample `json:"series"`
}

// Group of pods.
type Group struct {
	Name    string  `json:"name"`
	Pods    Pods    `json:"pods"`
	Waiting Waiting `json:"waitingSeconds"`
	// Resources that its pods asked for, as a share of all nodes'.
	Resources map[corev1.ResourceName]Use `json:"resources"`
	// Series is its share of the cpu, at the times of the result's.
	Series []float64 `json:"series"`
}

// Pods by what became of them. Those that came back after they had been preempted count
// again.
type Pods struct {
	Arrived   int `json:"arrived"`
	Placed    int `json:"placed"`
	Finished  int `json:"finished"`
	Preempted int `json:"preempted"`
	Pending   int `json:"pending"`
}

// Reason why pods have no node.
type Reason struct {
	Plugin string `json:"plugin,omitempty"`
	Reason string `json:"reason"`
	Pods   int    `json:"pods"`
}

// Waiting is how long the pods that were placed had waited; Pending is the longest wait
// that was not over at the end.
type Waiting struct {
	P50     float64 `json:"p50"`
	P90     float64 `json:"p90"`
	P99     float64 `json:"p99"`
	Longest float64 `json:"longest"`
	Pending float64 `json:"pending"`
}

// Use of a resource.
type Use struct {
	Mean float64 `json:"mean"`
	Peak float64 `json:"peak"`
}

// Nodes that had pods on them, the hours of these, and what the hours cost.
type Nodes struct {
	Total int     `json:"total"`
	Mean  float64 `json:"mean"`
	Peak  int     `json:"peak"`
	Hours float64 `json:"hours"`
	Cost  float64 `json:"cost"`
}

// PluginUse is what a plugin did: nodes that it refused, tries that found no node and in
// which it refused some, and decisions that would have been others without its scores.
type PluginUse struct {
	Name         string `json:"name"`
	RefusedNodes int    `json:"refusedNodes"`
	RefusedTries int    `json:"refusedTries"`
	Decided      int    `json:"decided"`
}

// Sample is the cluster at one moment.
type Sample struct {
	Hours    float64 `json:"hours"`
	CPU      float64 `json:"cpu"`
	Memory   float64 `json:"memory"`
	Nodes    int     `json:"nodes"`
	Pending  int     `json:"pending"`
	Stranded float64 `json:"stranded"`
	Uneven   float64 `json:"uneven"`
}
