// SPDX-License-Identifier: Apache-2.0

// Package nodefeatures is the NodeDeclaredFeatures plugin (KEP-5328): a pod whose spec needs a feature of the kubelet
// that not every kubelet has goes to nodes that declare it in their status. Which fields need which feature says
// upstream's published library, so that plugin, admission and kubelet agree.
package nodefeatures

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"
	features "k8s.io/component-helpers/nodedeclaredfeatures"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

// Name of the plugin.
const Name = "NodeDeclaredFeatures"

const reason = "node(s) didn't match Pod's required features"

// release is the version of Kubernetes that the scheduler is of: features that all kubelets have which may join it
// need not be declared.
var release = version.MustParse("1.37.0")

// Plugin is the plugin.
type Plugin struct{}

// Name implements framework.Plugin.
func (Plugin) Name() string { return Name }

// Hints implements framework.Hints.
func (Plugin) Hints() framework.ClusterEvent {
	return framework.NodeAdded | framework.NodeFeaturesChanged | framework.PodChanged
}

// Needs are the features that the pod needs of its node, in order.
func Needs(p *corev1.Pod) ([]string, error) {
	set, err := needs(p)
	if err != nil {
		return nil, err
	}
	return features.DefaultFramework.Unmap(set)
}

func needs(p *corev1.Pod) (features.FeatureSet, error) {
	return features.DefaultFramework.InferForPodScheduling(&features.PodInfo{Spec: &p.Spec}, release)
}

type needsKey struct{}

// PreFilter implements framework.PreFilter. Most pods need nothing.
func (Plugin) PreFilter(_ context.Context, s *framework.State, p *framework.PodInfo,
	_ *framework.Snapshot,
) (map[string]bool, *framework.Status) {
	set, err := needs(p.Pod)
	switch {
	case err != nil:
		return nil, framework.AsStatus(err)
	case set.IsEmpty():
		return nil, framework.NewStatus(framework.Skip)
	}
	s.Set(needsKey{}, set)
	return nil, nil
}

// Filter implements framework.Filter.
func (Plugin) Filter(_ context.Context, s *framework.State, p *framework.PodInfo, n *framework.NodeInfo) *framework.Status {
	set, ok := s.Get(needsKey{}).(features.FeatureSet)
	if !ok {
		var err error
		if set, err = needs(p.Pod); err != nil {
			return framework.AsStatus(err)
		}
	}
	all, err := set.IsSubset(features.DefaultFramework.TryMap(n.Node.Status.DeclaredFeatures))
	switch {
	case err != nil:
		return framework.AsStatus(err)
	case !all:
		return framework.NewStatus(framework.Unresolvable, reason)
	}
	return nil
}

// Sign implements framework.Signed.
func (Plugin) Sign(p *framework.PodInfo, s *framework.Signature) bool {
	names, err := Needs(p.Pod)
	s.Number(int64(len(names)))
	s.Text(names...)
	return err == nil
}

// IsLocal implements framework.Local.
func (Plugin) IsLocal() bool { return true }
