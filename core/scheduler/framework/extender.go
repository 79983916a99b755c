// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"

	corev1 "k8s.io/api/core/v1"
)

// Extender is a plugin outside of the process, which is asked over the network: a scheduler extender of
// KubeSchedulerConfiguration. It is asked after all plugins of its profile, and about all nodes that they have left at
// once. One that binds is a Bind too.
type Extender interface {
	Plugin
	// Asked says whether the extender is to be asked about a pod at a point: AtFilter, AtScore, AtPostFilter or AtBind.
	Asked(at Point, p *corev1.Pod) bool
	// Ignorable says that a cycle goes on, where the extender fails, as if it had not been asked.
	Ignorable() bool
	// Narrow says which of the nodes the pod may not run on, and why. It returns one status for each of nodes, in their
	// order, nil = it may.
	Narrow(ctx context.Context, p *PodInfo, nodes []*NodeInfo) ([]*Status, *Status)
	// Rate returns what the extender adds to the score of each of the nodes, in their order: 10 for each point that it
	// gives, times its weight.
	Rate(ctx context.Context, p *PodInfo, nodes []*NodeInfo) ([]int64, *Status)
	// Vet returns those of the candidates that it agrees with, which may have other victims on the same node by then.
	Vet(ctx context.Context, p *PodInfo, snap *Snapshot, candidates []Candidate) ([]Candidate, *Status)
}

// Candidate is a node on which the pod would fit without some of its pods.
type Candidate struct {
	Node *NodeInfo
	// Victims would have to go.
	Victims []*PodInfo
	// Violations is how many of them a disruption budget protects.
	Violations int
}

// Vetter is a Simulator that has the extenders of the profile agree to who makes room.
type Vetter interface {
	// Vet returns the candidates that are left. Where there are none although some were given, the status says who has
	// refused the last ones.
	Vet(ctx context.Context, candidates []Candidate) ([]Candidate, *Status)
}
