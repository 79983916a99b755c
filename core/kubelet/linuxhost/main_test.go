// SPDX-License-Identifier: Apache-2.0

package linuxhost

import (
	"os"
	"runtime"
	"testing"
)

// The first goroutine stays on the first thread, for beMember.
func init() {
	if os.Getenv(memberEnv) != "" {
		runtime.LockOSThread()
	}
}

func TestMain(m *testing.M) {
	if cgroup := os.Getenv(memberEnv); cgroup != "" {
		beMember(cgroup)
	}
	if cgroup := os.Getenv(crowdEnv); cgroup != "" {
		beCrowd(cgroup)
	}
	os.Exit(m.Run())
}
