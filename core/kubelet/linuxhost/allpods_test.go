// SPDX-License-Identifier: Apache-2.0

package linuxhost_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/wasmplane/wasmplane/core/kubelet/linuxhost"
	"github.com/wasmplane/wasmplane/core/kubelet/reservation"
)

func hostWith(t *testing.T, s reservation.Settings, cgroup string) (*linuxhost.Host, error) {
	t.Helper()
	dir := t.TempDir()
	return linuxhost.New(linuxhost.Config{
		NodeName: "n1", RootDir: filepath.Join(dir, "root"), LogRoot: filepath.Join(dir, "logs"), NodeIPs: []string{"192.0.2.7"},
		Reserve: s, CgroupRoot: cgroup,
	})
}

func TestANodeCannotKeepMoreThanItHas(t *testing.T) {
	for name, amount := range map[string]string{"cpu": "100k", "memory": "1Ei", "ephemeral-storage": "1Ei", "pid": "1G"} {
		if _, err := hostWith(t, reservation.Settings{System: map[string]string{name: amount}}, ""); err == nil ||
			!strings.Contains(err.Error(), "of "+name+", and the machine has") {
			t.Errorf("%s of %s: %v", amount, name, err)
		}
	}
}

// All pods together get what is not reserved, with what evictions keep free. Cgroups need root.
func TestAllPodsAreBounded(t *testing.T) {
	if os.Geteuid() != 0 {
		return
	}
	path := "/" + linuxhost.NamesOf("bounded").ID + "/pods"
	t.Cleanup(func() {
		if err := linuxhost.RemoveCgroup(filepath.Dir(path)); err != nil {
			t.Error(err)
		}
	})
	read := func() (memory, pids string) {
		for _, dir := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/pids"} {
			for file, into := range map[string]*string{"memory.max": &memory, "memory.limit_in_bytes": &memory, "pids.max": &pids} {
				if data, err := os.ReadFile(filepath.Join(dir, path, file)); err == nil {
					*into = strings.TrimSpace(string(data))
				}
			}
		}
		return memory, pids
	}
	bound := func(s reservation.Settings) (memory, pids string) {
		h, err := hostWith(t, s, path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := h.Facts(t.Context()); err != nil {
			t.Fatal(err)
		}
		return read()
	}
	all, allIDs := bound(reservation.Settings{Enforce: []string{reservation.None}})
	less, fewer := bound(reservation.Settings{Kube: map[string]string{"memory": "256Mi", "pid": "100"}, Enforce: []string{reservation.Pods}})
	if all == less || allIDs == fewer || less == "" || fewer == "" {
		t.Errorf("memory %q and then %q, process IDs %q and then %q", all, less, allIDs, fewer)
	}
	if again, ids := bound(reservation.Settings{}); again != all || ids != allIDs {
		t.Errorf("without reservations memory is %q and process IDs are %q, not %q and %q", again, ids, all, allIDs)
	}
}
