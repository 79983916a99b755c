// SPDX-License-Identifier: Apache-2.0

package resourcemetrics

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

const (
	// A container that was measured once and started a moment ago is judged by all
	// that it used since its start: not so soon that starting is all that is seen, and
	// not later, when what it did at first says nothing about now.
	youngest, oldest = 10 * time.Second, 2 * time.Minute
	// windowLeast is the shortest time that a rate is made of.
	windowLeast = time.Second
)

// usage is what somebody used within a window.
type usage struct {
	cpu    float64 // cores
	memory float64 // bytes
	at     time.Time
	window time.Duration
}

// rate makes a usage of the last two points; earlier may be nil.
func rate(last, earlier *point) (usage, bool) {
	if !last.whole() {
		return usage{}, false
	}
	u := usage{memory: last.memory, at: last.at}
	restarted := earlier != nil && (last.started.After(earlier.started) && !earlier.started.IsZero() || last.cpu < earlier.cpu)
	if earlier != nil && earlier.whole() && !restarted {
		if u.window = last.at.Sub(earlier.at); u.window < windowLeast {
			return usage{}, false
		}
		u.cpu = (last.cpu - earlier.cpu) / u.window.Seconds()
		return u, true
	}
	if u.window = last.at.Sub(last.started); last.started.IsZero() || u.window < youngest || u.window >= oldest {
		return usage{}, false
	}
	u.cpu = last.cpu / u.window.Seconds()
	return u, true
}

// resources are a usage as objects have it, in the units of metrics-server.
func (u usage) resources() corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewScaledQuantity(int64(u.cpu*1e9), resource.Nano),
		corev1.ResourceMemory: *resource.NewQuantity(int64(u.memory), resource.BinarySI),
	}
}
