// SPDX-License-Identifier: Apache-2.0

package linuxhost

import (
	"fmt"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/wasmplane/wasmplane/core/run"
)

// checkRoot wants a root folder that runc can pivot from. The kernel's pivot_root
// refuses where the current root is no mount point (a plain chroot) or the initial
// ramdisk itself. In a chroot into a mount point containers start, but what is
// executed in them later joins their mount namespace and finds itself outside of the
// chroot, with all files of the machine.
func checkRoot(asRoot bool) *Problem {
	if asRoot {
		outside, err := chrooted()
		if err != nil {
			return &Problem{
				What: "whether this process runs in a chroot cannot be found out: " + err.Error(),
				Fix:  "start it with CAP_SYS_ADMIN and CAP_SYS_CHROOT; " + simulated,
			}
		}
		if outside {
			return inChroot()
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return &Problem{What: "mounts cannot be read: " + err.Error(), Fix: "mount -t proc proc /proc"}
	}
	return judgeRoot(string(mounts))
}

func judgeRoot(mountinfo string) *Problem {
	kind := "" // of what is mounted at the root last
	for line := range strings.Lines(mountinfo) {
		// 22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
		before, after, ok := strings.Cut(line, " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if ok && len(left) > 4 && len(right) > 0 && left[4] == "/" {
			kind = right[0]
		}
	}
	switch kind {
	case "":
		return inChroot()
	case "rootfs":
		return &Problem{
			What: "the root folder of this machine is the initial ramdisk, so runc cannot give containers a root of their own (pivot_root)",
			Fix:  "boot into a mounted root (switch_root); " + simulated,
		}
	}
	return nil
}

func inChroot() *Problem {
	return &Problem{
		What: "this process runs in a chroot, where runc cannot keep containers inside of their own root",
		Fix:  "enter the folder by pivot_root instead (systemd-nspawn -D FOLDER does); " + simulated,
	}
}

// chrooted reports whether the root folder of this process is another than that of
// its mount namespace.
func chrooted() (bool, error) {
	var chrooted bool
	err := <-run.Go("look at the root folder", func() (err error) {
		// Never unlocked: the thread is spoilt and ends with the goroutine.
		runtime.LockOSThread()
		chrooted, err = leavesChroot()
		return err
	})
	return chrooted, err
}

// leavesChroot joins this thread's own mount namespace, which leads to the
// namespace's root folder, and reports whether that is another one.
func leavesChroot() (bool, error) {
	own, err := os.Open("/proc/thread-self/ns/mnt")
	if err != nil {
		return false, err
	}
	defer func() { _ = own.Close() }()
	var before, after unix.Stat_t
	if err := unix.Stat("/", &before); err != nil {
		return false, fmt.Errorf("stat /: %w", err)
	}
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return false, fmt.Errorf("unshare the root folder from other threads: %w", err)
	}
	if err := unix.Setns(int(own.Fd()), unix.CLONE_NEWNS); err != nil {
		return false, fmt.Errorf("join the mount namespace: %w", err)
	}
	if err := unix.Stat("/", &after); err != nil {
		return false, fmt.Errorf("stat /: %w", err)
	}
	return before.Dev != after.Dev || before.Ino != after.Ino, nil
}
