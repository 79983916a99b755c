// SPDX-License-Identifier: Apache-2.0

package node

import (
	"slices"
	"testing"

	"k8s.io/component-helpers/nodedeclaredfeatures/types"
)

// A node declares what its kubelet has, in order, and nothing that needs more of the runtime than it has.
func TestANodeDeclaresWhatItsKubeletHas(t *testing.T) {
	const inits, restarts = "InPlacePodVerticalScalingInitContainers", "RestartAllContainersOnContainerExits"
	const whole = "InPlacePodLevelResourcesVerticalScaling"
	for name, r := range map[string]struct {
		has  types.FeatureGateMap
		want []string
	}{
		"this kubelet":           {done, []string{whole, inits, restarts}},
		"one that has two":       {types.FeatureGateMap{restarts: true, inits: true}, []string{inits, restarts}},
		"what the runtime lacks": {types.FeatureGateMap{"UserNamespacesHostNetworkSupport": true, "VolumeBindMountOptions": true}, nil},
		"what nobody knows":      {types.FeatureGateMap{"Newer": true}, nil},
	} {
		for _, version := range []string{"v1.37.1", ""} {
			if got := declared(r.has, version); !slices.Equal(got, r.want) {
				t.Errorf("%s of version %q declares %v, want %v", name, version, got, r.want)
			}
		}
	}
}
