// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// machineLock is held while a cluster of the runner is on this machine.
const machineLock = "/run/wasmplane-conformance.lock"

// lockMachine keeps a second run off this machine, also from another network namespace:
// both would have clusters of the same name, and so the same cgroups and mounts. The
// lock goes with the process.
func lockMachine(path string) (release func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock of this machine's runs: %w", err)
	}
	release = func() { _ = f.Close() }
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		release()
		return nil, fmt.Errorf("another run is under way on this machine (it holds %s): wait for its end", path)
	} else if err != nil {
		release()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return release, nil
}

// sharedRoot says whether mounts below / reach other mount namespaces, by the text of /proc/self/mountinfo.
func sharedRoot(mountinfo string) bool {
	shared := false
	for line := range strings.Lines(mountinfo) {
		fields := strings.Fields(line)
		// ID, parent, device, root, mount point, options, then optional fields up to a dash. The last mount there counts.
		if len(fields) < 7 || fields[4] != "/" {
			continue
		}
		end := max(slices.Index(fields, "-"), 6)
		shared = slices.ContainsFunc(fields[6:end], func(s string) bool { return strings.HasPrefix(s, "shared:") })
	}
	return shared
}

// adviseMachine says what this machine lacks for some of the tests.
func adviseMachine() (string, error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	if sharedRoot(string(mounts)) {
		return "", nil
	}
	return "/ is no shared mount, so tests of mount propagation and of CSI drivers will fail: `mount --make-rshared /` makes it one\n", nil
}
