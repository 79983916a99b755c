// SPDX-License-Identifier: Apache-2.0

// Package devicetaint says which devices a DeviceTaintRule taints (KEP-5055): the scheduler gives
// tainted devices only to claims that tolerate it, and pods that use them are evicted.
package devicetaint

import resourcev1 "k8s.io/api/resource/v1"

// Tainted is a slice with the taints that rules add to its devices; itself where they add none.
func Tainted(s *resourcev1.ResourceSlice, rules []*resourcev1.DeviceTaintRule) *resourcev1.ResourceSlice {
	out := s
	for _, r := range rules {
		for i := range s.Spec.Devices {
			if !Selects(r.Spec.DeviceSelector, s.Spec.Driver, s.Spec.Pool.Name, s.Spec.Devices[i].Name) {
				continue
			}
			if out == s {
				out = s.DeepCopy()
			}
			out.Spec.Devices[i].Taints = append(out.Spec.Devices[i].Taints, r.Spec.Taint)
		}
	}
	return out
}

// Selects says whether the selector of a rule is about a device. No selector is about none.
func Selects(s *resourcev1.DeviceTaintSelector, driver, pool, device string) bool {
	return s != nil && (s.Driver == nil || *s.Driver == driver) && (s.Pool == nil || *s.Pool == pool) &&
		(s.Device == nil || *s.Device == device)
}
