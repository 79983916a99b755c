// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"encoding/json"

	corev1 "k8s.io/api/core/v1"
)

// ResourcesAnnotation on a container has the resources that it was made with:
// the CRI reports those of the kernel, in which requests cannot be told.
const ResourcesAnnotation = "kubelet.wasmplane.dev/resources"

// EncodeResources is the value of ResourcesAnnotation.
func EncodeResources(r *corev1.ResourceRequirements) string {
	raw, err := json.Marshal(corev1.ResourceRequirements{Limits: r.Limits, Requests: r.Requests})
	if err != nil {
		return ""
	}
	return string(raw)
}

// DecodeResources reads ResourcesAnnotation; nil if it is not there or not readable.
func DecodeResources(s string) *corev1.ResourceRequirements {
	if s == "" {
		return nil
	}
	r := &corev1.ResourceRequirements{}
	if json.Unmarshal([]byte(s), r) != nil {
		return nil
	}
	return r
}

// LevelAnnotation on a container has the resources that its pod had as a whole when it was made:
// limits that it has not of its own are its pod's.
const LevelAnnotation = "kubelet.wasmplane.dev/pod-resources"
