// SPDX-License-Identifier: Apache-2.0

package wasmpods

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/cgroups/v3"
	stats1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	"github.com/containerd/cgroups/v3/cgroup2"
	stats2 "github.com/containerd/cgroups/v3/cgroup2/stats"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestSandboxesAreFoundAgain, but for files that were not finished; one that cannot be read costs no other.
func TestSandboxesAreFoundAgain(t *testing.T) {
	dir := t.TempDir()
	text, err := json.Marshal(
		&box{Netns: "/run/netns/a", Sysctls: map[string]string{"net.core.somaxconn": "1"}, Resolv: "nameserver 10.0.0.10\n"},
	)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"a": string(text), ".b": "{", "c": "{"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	boxes, err := readBoxes(dir)
	if err == nil || !strings.Contains(err.Error(), "read the sandbox c:") || strings.Contains(err.Error(), ".b") {
		t.Errorf("what is wrong: %v", err)
	}
	if a := boxes["a"]; len(boxes) != 1 || a == nil || a.Netns != "/run/netns/a" || a.Sysctls["net.core.somaxconn"] != "1" ||
		a.Resolv != "nameserver 10.0.0.10\n" {
		t.Errorf("found %v", boxes)
	}
	if boxes, err := readBoxes(filepath.Join(dir, "nowhere")); err == nil || boxes == nil {
		t.Errorf("without a folder: %v %v", boxes, err)
	}
}

// TestNamesOfAPod are those that its configuration has.
func TestNamesOfAPod(t *testing.T) {
	got := resolv(
		&cri.DNSConfig{Searches: []string{"a.svc", "svc"}, Servers: []string{"10.0.0.10", "10.0.0.11"}, Options: []string{"ndots:5"}},
	)
	if want := "search a.svc svc\nnameserver 10.0.0.10\nnameserver 10.0.0.11\noptions ndots:5\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := resolv(nil); got != "" {
		t.Errorf("without a configuration: %q", got)
	}
}

// TestWhoWaitsForASandboxHearsOfItsEnd, once, and nobody else's.
func TestWhoWaitsForASandboxHearsOfItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newController("", "", nil)
		c.boxes["a"] = &box{ended: make(chan struct{})}
		c.boxes["b"] = &box{ended: make(chan struct{})}
		time.AfterFunc(time.Minute, func() { _ = c.Stop(t.Context(), "a") })
		began := time.Now()
		end, err := c.Wait(t.Context(), "a")
		if err != nil || end.ExitedAt.Sub(began) != time.Minute {
			t.Errorf("%v %v", end, err)
		}
		if err := c.Stop(t.Context(), "a"); err != nil { // again
			t.Error(err)
		}
		st, err := c.Status(t.Context(), "a", true)
		if err != nil || st.State != cri.PodSandboxState_SANDBOX_NOTREADY.String() || st.Pid != 0 {
			t.Errorf("%+v %v", st, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := c.Wait(ctx, "b"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the other: %v", err)
		}
		if _, err := c.Wait(t.Context(), "c"); !errdefs.IsNotFound(err) {
			t.Errorf("none: %v", err)
		}
	})
}

// TestAPodsUseIsThatOfItsCgroup, of which CRI makes the statistics of the pod and its containers.
func TestAPodsUseIsThatOfItsCgroup(t *testing.T) {
	c := newController("", "", nil)
	own := "/"
	if cgroups.Mode() == cgroups.Unified { // whose root has no figures
		var err error
		if own, err = cgroup2.NestedGroupPath(""); err != nil {
			t.Fatal(err)
		}
	}
	c.boxes["a"] = &box{Cgroup: own, ended: make(chan struct{})}
	c.boxes["none"] = &box{ended: make(chan struct{})}
	m, err := c.Metrics(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	used, err := typeurl.UnmarshalAny(m.GetData())
	if err != nil {
		t.Fatal(err)
	}
	switch used := used.(type) {
	case *stats1.Metrics:
		if used.GetCPU().GetUsage().GetTotal() == 0 || used.GetMemory().GetUsage().GetUsage() == 0 {
			t.Errorf("the machine has used nothing: %v", used)
		}
	case *stats2.Metrics:
		if used.GetCPU().GetUsageUsec() == 0 {
			t.Errorf("the machine has used nothing: %v", used)
		}
	default:
		t.Errorf("containerd does not know %T", used)
	}
	if _, err := c.Metrics(t.Context(), "none"); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("without a cgroup: %v", err)
	}
	if _, err := c.Metrics(t.Context(), "b"); !errdefs.IsNotFound(err) {
		t.Errorf("no sandbox: %v", err)
	}
}
