// SPDX-License-Identifier: Apache-2.0

package linuxhost

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/wasmplane/wasmplane/core/run"
)

func TestNames(t *testing.T) {
	for _, c := range []struct{ cluster, want string }{
		{"default", "wp-default"},
		{"a", "wp-a"},
		{"abcdefghijk", "wp-abcdefghijk"},
	} {
		if got := NamesOf(c.cluster).ID; got != c.want {
			t.Errorf("NamesOf(%q) = %q, want %q", c.cluster, got, c.want)
		}
	}
	seen := map[string]string{}
	for _, cluster := range []string{
		"", "a", "A", "a-", "-a", "a-b", "a_b", "ab", "default", "default-2", "default2", "Default",
		"abcdefghijkl", "abcdefghijklm", strings.Repeat("x", 300), "käse", "../etc", "a/b", "a/c",
	} {
		n := NamesOf(cluster)
		if len(n.Bridge()) > 15 {
			t.Errorf("bridge %q of %q is longer than the kernel's 15 bytes", n.Bridge(), cluster)
		}
		if strings.Count(n.ID, "-") != 1 || strings.ContainsAny(n.ID, "/._ ") {
			t.Errorf("ID %q of %q must have one dash and nothing odd", n.ID, cluster)
		}
		if other, taken := seen[n.ID]; taken {
			t.Errorf("%q and %q share the names %q", cluster, other, n.ID)
		}
		seen[n.ID] = cluster
	}
}

// A name that was chosen to equal a hashed one is itself too long to stay plain.
func TestPlainNameNeverEqualsHashedOne(t *testing.T) {
	hashed := NamesOf("default-2")
	if again := NamesOf(strings.TrimPrefix(hashed.ID, idPrefix)); again == hashed {
		t.Errorf("%q names another cluster too", hashed.ID)
	}
}

func TestMounts(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	inner, beside := filepath.Join(dir, "in side/deep"), dir+"-beside"
	for _, d := range []string{inner, beside} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("none", d, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(d, unix.MNT_DETACH); os.RemoveAll(d) })
	}
	if got, err := MountsBelow(dir); err != nil || !slices.Equal(got, []string{inner}) {
		t.Errorf("mounts below: %q (%v)", got, err)
	}
	if err := UnmountBelow(dir); err != nil {
		t.Fatal(err)
	}
	if got, err := MountsBelow(dir); err != nil || len(got) != 0 {
		t.Errorf("mounts left: %q (%v)", got, err)
	}
	if got, err := MountsBelow(beside); err != nil || len(got) != 1 {
		t.Errorf("a mount beside was taken along: %q (%v)", got, err)
	}
	for _, refused := range []string{"/", "", "relative", "/.."} {
		if err := UnmountBelow(refused); err == nil {
			t.Errorf("UnmountBelow(%q) was done", refused)
		}
	}
}

// Processes in a cluster's cgroups end, the cgroups go, and a neighbour's stay.
func TestCgroupsAndProcesses(t *testing.T) {
	ours, theirs := Names{ID: "wp-test" + t.Name()[:4] + "1"}, Names{ID: "wp-test" + t.Name()[:4] + "2"}
	for _, n := range []Names{ours, theirs} {
		t.Cleanup(func() {
			_ = KillBelow(context.WithoutCancel(t.Context()), n, nil)
			if err := RemoveCgroup(n.Cgroup()); err != nil {
				t.Error(err)
			}
		})
	}
	start := func(cgroup string) *exec.Cmd {
		cmd := exec.Command("/proc/self/exe", "-test.run=^$")
		cmd.Env = append(os.Environ(), memberEnv+"="+cgroup)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if n, err := out.Read(make([]byte, 1)); n != 1 {
			t.Fatalf("the process in %s did not start: %v", cgroup, err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill() })
		return cmd
	}
	mine, other := start(ours.PodsCgroup()+"/a/b"), start(theirs.RuntimeCgroup())
	if p, err := StatProcess(mine.Process.Pid); err != nil || p.Ended {
		t.Fatalf("a process whose first thread has ended, and others not: %+v (%v)", p, err)
	}
	if pids, err := CgroupProcesses(ours.Cgroup()); err != nil || !slices.Equal(pids, []int{mine.Process.Pid}) {
		t.Errorf("processes of the cluster: %v (%v), want %d", pids, err, mine.Process.Pid)
	}
	if err := RemoveCgroup(ours.Cgroup()); err == nil {
		t.Error("a cgroup with a process in it was removed")
	}
	reaped := make(chan error, 1)
	go func() { reaped <- mine.Wait() }()
	if err := KillBelow(t.Context(), ours, nil); err != nil {
		t.Fatal(err)
	}
	<-reaped
	if err := RemoveCgroup(ours.Cgroup()); err != nil {
		t.Error(err)
	}
	if pids, err := CgroupProcesses(theirs.Cgroup()); err != nil || !slices.Equal(pids, []int{other.Process.Pid}) {
		t.Errorf("processes of the neighbour: %v (%v), want %d", pids, err, other.Process.Pid)
	}
	if err := other.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = other.Wait()
	for _, refused := range []string{"", "/", "/.", "//"} {
		if err := RemoveCgroup(refused); err == nil {
			t.Errorf("RemoveCgroup(%q) was done", refused)
		}
	}
}

const memberEnv = "WASMPLANE_TEST_CGROUP"

// beMember is the process of the test above. Its first thread ends at once, as that
// of a process does which is being killed and has threads left to end.
func beMember(cgroup string) {
	if err := JoinCgroup(cgroup); err != nil {
		panic(err)
	}
	run.Go("the member's other thread", func() error {
		for !strings.Contains(firstThread(), ") Z ") {
			runtime.Gosched()
		}
		os.Stdout.WriteString("!") //nolint:errcheck // the parent reads it
		return unix.Pause()
	})
	_, _, _ = unix.Syscall(unix.SYS_EXIT, 0, 0, 0) // of this thread alone
}

func firstThread() string {
	data, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		panic(err)
	}
	return string(data)
}

// The link on the node's side is found in what libcni remembers.
func TestLinkOfASandbox(t *testing.T) {
	for _, c := range []struct{ result, link, problem string }{
		{`{"result":{"interfaces":[{"name":"wp-x"},{"name":"veth7bf3a152"},{"name":"eth0","sandbox":"/run/netns/a"}]}}`, "veth7bf3a152", ""},
		{`{"result":{"interfaces":[{"name":"wp-x"},{"name":"veth0","sandbox":"/run/netns/a"}]}}`, "", "none on the node's side"},
		{`{`, "", "unexpected end"},
	} {
		link, err := linkIn([]byte(c.result))
		if link != c.link || (err == nil) != (c.problem == "") || err != nil && !strings.Contains(err.Error(), c.problem) {
			t.Errorf("%s: %q, %v", c.result, link, err)
		}
	}
	if _, err := LinkOf(NamesOf("nobody"), "0123"); err == nil {
		t.Error("a sandbox that is not there has a link")
	}
}
