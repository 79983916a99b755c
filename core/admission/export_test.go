// SPDX-License-Identifier: Apache-2.0

package admission

import "k8s.io/apimachinery/pkg/runtime"

// PatchText is the patch between two trees, for the tests outside.
func PatchText(from, to map[string]any) string { return patchText(diff(nil, "", from, to)) }

// ChangesText is the patch between two objects, for the tests outside.
func ChangesText(from, to runtime.Object) string { return patchText((&differ{}).changes(from, to)) }
