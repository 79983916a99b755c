// SPDX-License-Identifier: Apache-2.0

package config

import "time"

// LeaderElection says how soon another server takes over from one that no longer schedules or controls.
type LeaderElection struct {
	// LeaseDuration is how long the others wait for a leader of which they hear nothing: whole seconds, 3s
	// to 5m. A leader that cannot renew its lease stops after four fifths of it.
	LeaseDuration Duration `yaml:"leaseDuration"`
	// QuickLeaseDuration is the same while another server waits to take over and renewals are in time.
	// LeaseDuration's value: leases are never shorter.
	QuickLeaseDuration Duration `yaml:"quickLeaseDuration"`
}

// Least and most that a lease may last: a shorter one is lost by a disk that is busy for a second.
const leastLease, mostLease = 3 * time.Second, 5 * time.Minute

func (l LeaderElection) check() error {
	long, quick := time.Duration(l.LeaseDuration), time.Duration(l.QuickLeaseDuration)
	if long < leastLease || long > mostLease || long%time.Second != 0 {
		return field("leaderElection.leaseDuration", "expected whole seconds from %s to %s, found %s", leastLease, mostLease, long)
	}
	if quick < leastLease || quick > long || quick%time.Second != 0 {
		return field("leaderElection.quickLeaseDuration", "expected whole seconds from %s to leaseDuration, %s, found %s", leastLease, long,
			quick)
	}
	return nil
}
