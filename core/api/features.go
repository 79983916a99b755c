// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
)

// EnableFeatures switches upstream's feature gates on or off by their names. It is for
// the whole process, since upstream's strategies, validation and bootstrap roles ask one
// global set: call it before New.
func EnableFeatures(gates map[string]bool) error {
	if err := utilfeature.DefaultMutableFeatureGate.SetFromMap(gates); err != nil {
		return fmt.Errorf("feature gates: %w", err)
	}
	return nil
}
