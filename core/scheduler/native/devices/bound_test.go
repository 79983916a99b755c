// SPDX-License-Identifier: Apache-2.0

package devices_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
)

// TestALookForDevicesHasOneEnd: a claim that can be tried in more ways than anybody can try takes the time of one try,
// and not as much again on each node.
func TestALookForDevicesHasOneEnd(t *testing.T) {
	const devices, values = 60, 29
	hard := slice("hard")
	for i := range devices {
		hard.Spec.Devices = append(hard.Spec.Devices, device(fmt.Sprint("d", i), has("kind", fmt.Sprint(i%values))))
	}
	easy := slice("easy")
	for i := range values + 1 {
		easy.Spec.Devices = append(easy.Spec.Devices, device(fmt.Sprint("d", i), has("kind", fmt.Sprint(i))))
	}
	// One more than there are kinds on the first node, of each kind one.
	c := claim("c", exactly("r", "gpu", count(values+1)))
	c.Spec.Devices.Constraints = []resourcev1.DeviceConstraint{{DistinctAttribute: new(resourcev1.FullyQualifiedName(driver + "/kind"))}}

	w := newWorld(t, class("gpu"), hard, easy, c)
	if _, left, why := w.fits(podWith("p", "c"), node("easy")); len(left) != 1 {
		t.Fatalf("the claim does not fit where it should: %s", why)
	}
	w.plugin.SetLongest(50 * time.Millisecond)
	_, left, why := w.fits(podWith("p", "c"), node("hard"), node("easy"))
	if len(left) != 0 || !strings.Contains(why, "node easy: timed out") {
		t.Errorf("after the time of the try was over there was more of it, on %v: %s", left, why)
	}
}
