// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"maps"
	"slices"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
)

// EnableFeatures switches upstream's feature gates on or off by their names. It is for
// the whole process, since upstream's strategies, validation and bootstrap roles ask one
// global set: call it before New.
func EnableFeatures(gates map[string]bool) error {
	known := utilfeature.DefaultMutableFeatureGate.GetAll()
	for _, name := range slices.Sorted(maps.Keys(gates)) {
		// Upstream's set keeps a name that it does not know, and refuses every later change for it.
		if _, ok := known[featuregate.Feature(name)]; !ok {
			return fmt.Errorf("feature gates: nobody has %q", name)
		}
	}
	if err := utilfeature.DefaultMutableFeatureGate.SetFromMap(gates); err != nil {
		return fmt.Errorf("feature gates: %w", err)
	}
	return nil
}
