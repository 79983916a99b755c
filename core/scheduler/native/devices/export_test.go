// SPDX-License-Identifier: Apache-2.0

package devices

import "time"

// SetLongest bounds the look for devices in one try.
func (d *Plugin) SetLongest(longest time.Duration) { d.longest = longest }
