// SPDX-License-Identifier: Apache-2.0

package hostcheck

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

func TestRootsThatRuncCannotPivotFrom(t *testing.T) {
	for name, c := range map[string]struct{ mountinfo, want string }{
		"a machine":            {"22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n23 22 0:21 / /proc rw - proc proc rw\n", ""},
		"a chroot":             {"23 22 0:21 / /proc rw - proc proc rw\n", "runs in a chroot"},
		"a bound chroot":       {"90 22 254:0 /roots/a / rw - ext4 /dev/vda rw\n", ""},
		"a ramdisk":            {"1 1 0:2 / / rw - rootfs none rw\n", "initial ramdisk"},
		"a root over a ramfs":  {"1 1 0:2 / / rw - rootfs none rw\n22 1 254:0 / / rw - ext4 /dev/vda rw\n", ""},
		"a mount with a space": {"90 22 254:0 / /a\\040b rw - ext4 /dev/vda rw\n", "runs in a chroot"},
	} {
		t.Run(name, func(t *testing.T) {
			p := judgeRoot(c.mountinfo)
			if (p == nil) != (c.want == "") || p != nil && (!strings.Contains(p.What, c.want) || p.Warning) {
				t.Errorf("the check says %v, expected %q", p, c.want)
			}
		})
	}
}

const (
	inChrootEnv    = "WASMPLANE_TEST_IN_CHROOT"
	firstThreadEnv = "WASMPLANE_TEST_ON_FIRST_THREAD"
)

func TestMain(m *testing.M) {
	if os.Getenv(inChrootEnv) != "" {
		if p := checkRoot(true); p != nil {
			os.Stdout.WriteString(p.String()) //nolint:errcheck // the parent reads it
		}
		os.Exit(0)
	}
	if os.Getenv(firstThreadEnv) != "" {
		runtime.GOMAXPROCS(1) // a goroutine that this one waits for runs on the first thread then
		_, err := chrooted()
		folder, err2 := os.Readlink(fmt.Sprintf("/proc/%d/cwd", os.Getpid()))
		fmt.Print(folder, err, err2)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// Whoever starts a process anew, as an upgrade does, reads in which folder it runs: looking at the root leaves that as it is.
func TestTheFolderOfTheProcessStays(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("to join a mount namespace needs root: `make test` asks for it")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Dir, cmd.Env = t.TempDir(), append(os.Environ(), firstThreadEnv+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil || string(out) != cmd.Dir+"<nil> <nil>" {
		t.Errorf("the process that was started in %s runs in %s (%v)", cmd.Dir, out, err)
	}
}

// A chroot into a mount point looks like a machine in the list of mounts.
func TestAChrootIsFound(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("chroot needs root: `make test` asks for it")
	}
	if p := checkRoot(true); p != nil {
		t.Fatalf("on this machine: %s", p)
	}
	root := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// With the machine's libraries: the test may be linked dynamically.
	script := `set -e
mount --make-rprivate /
mount --bind "$1" "$1"
mkdir "$1/proc"
mount -t proc proc "$1/proc"
for dir in lib lib64 usr; do
  [ -d "/$dir" ] || continue
  mkdir "$1/$dir"
  mount --rbind "/$dir" "$1/$dir"
done
cp "$2" "$1/program"
exec chroot "$1" /program`
	cmd := exec.Command("bash", "-c", script, "bash", root, self)
	cmd.Env = append(os.Environ(), inChrootEnv+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "runs in a chroot") {
		t.Errorf("in a chroot the check says %q (%v)", out, err)
	}
}
