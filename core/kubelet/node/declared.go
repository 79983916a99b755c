// SPDX-License-Identifier: Apache-2.0

package node

import (
	"k8s.io/apimachinery/pkg/util/version"
	features "k8s.io/component-helpers/nodedeclaredfeatures"
	"k8s.io/component-helpers/nodedeclaredfeatures/types"
)

// done are the features of upstream's kubelet, of those that nodes declare, which this one has as well. What it
// declares is what schedulers and admission trust: none is listed before it is carried out. Of those that
// upstream's kubelet has by default, ExtendWebSocketsToKubelet is missing: containerd refuses the newest subprotocol, the
// API server translates.
var done = types.FeatureGateMap{
	"InPlacePodLevelResourcesVerticalScaling": true, "InPlacePodVerticalScalingInitContainers": true,
	"RestartAllContainersOnContainerExits": true,
}

// declared are the features that the node's status names.
func declared(has features.FeatureGate, kubelet string) []string {
	v, err := version.Parse(kubelet)
	if err != nil {
		v = nil // of whatever version: then nothing is left out
	}
	return features.DefaultFramework.DiscoverNodeFeatures(&features.NodeConfiguration{FeatureGates: has, Version: v})
}
