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
	done := filepath.Join(c.profiles, "done")
	_ = os.Remove(done)
	pid := c.cmd.Process.Pid
	if err := syscall.Kill(pid, syscall.SIGUSR1); err != nil {
		c.t.Fatal(err)
	}
	work()
	if err := syscall.Kill(pid, syscall.SIGUSR2); err != nil {
		c.t.Fatal(err)
	}
	for range 200 {
		if _, err := os.Stat(done); err == nil {
			return
		}
		pause(c.t.Context(), 50*time.Millisecond)
	}
	c.t.Errorf("no profile came in %s", c.profiles)
}
