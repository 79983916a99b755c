// SPDX-License-Identifier: Apache-2.0

package linuxhost

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	crowdEnv = "WASMPLANE_TEST_CROWD"
	most     = 100 // processes that a crowd tries to have
)

// A pod that makes more and more processes gets as many as the bound allows, and one without a bound gets them all.
func TestProcessesOfAPodAreBounded(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("cgroups need root: `make test` asks for it")
	}
	for _, c := range []struct {
		bound  int64
		enough func(started int) bool
	}{
		// The crowd itself, and its threads, are among them.
		{40, func(n int) bool { return n > 0 && n < 40 }},
		{0, func(n int) bool { return n == most }},
	} {
		dir := t.TempDir()
		h, err := New(Config{
			NodeName: "n1", RootDir: filepath.Join(dir, "root"), LogRoot: filepath.Join(dir, "logs"),
			CgroupRoot: fmt.Sprintf("/wasmplane-test-pids-%d/pods", os.Getpid()), PodPIDs: c.bound,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = RemoveCgroup(filepath.Dir(h.cfg.CgroupRoot)) })
		uid := types.UID("crowded-" + strconv.FormatInt(c.bound, 10))
		place, err := h.Claim(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: uid}})
		if err != nil {
			t.Fatal(err)
		}
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), self)
		cmd.Env = append(os.Environ(), crowdEnv+"="+filepath.Join(place.CgroupParent, "container"))
		out, err := cmd.Output()
		started, parsed := strconv.Atoi(strings.TrimSpace(string(out)))
		if err != nil || parsed != nil || !c.enough(started) {
			t.Errorf("with a bound of %d, %q processes were started (%v)", c.bound, out, err)
		}
		if err := h.Release(t.Context(), uid); err != nil {
			t.Error(err)
		}
	}
}

// beCrowd is the process of the test above: it says how many others it could start.
func beCrowd(cgroup string) {
	if err := JoinCgroup(cgroup); err != nil {
		panic(err)
	}
	n := 0
	for ; n < most; n++ {
		if err := exec.Command("sleep", "60").Start(); err != nil {
			break
		}
	}
	fmt.Println(n)
	os.Exit(0)
}
