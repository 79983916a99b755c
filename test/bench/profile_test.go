// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// profile takes profiles of the process while work is done, where they are asked for.
func (c *cluster) profile(work func()) {
	if built.profiles == "" {
		work()
		return
	}
	c.t.Helper()
	if err := syscall.Kill(c.pid(), syscall.SIGUSR1); err != nil {
		c.t.Fatal(err)
	}
	work()
	c.endProfile()
}

// endProfile has the profile written that began with the process, or with profile.
func (c *cluster) endProfile() {
	if built.profiles == "" {
		return
	}
	c.t.Helper()
	if err := syscall.Kill(c.pid(), syscall.SIGUSR2); err != nil {
		c.t.Fatal(err)
	}
	done := filepath.Join(c.profiles, "done")
	for range 200 {
		if os.Remove(done) == nil {
			return
		}
		pause(c.t.Context(), 50*time.Millisecond)
	}
	c.t.Errorf("no profile came in %s", c.profiles)
}
