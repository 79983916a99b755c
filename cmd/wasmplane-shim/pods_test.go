// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/opencontainers/go-digest"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/wasmplane/wasmplane/plugins/workload/cell"
)

// silent takes events.
type silent struct{}

func (silent) Publish(context.Context, string, events.Event) error { return nil }

func pods(t *testing.T) *podTasks {
	t.Helper()
	return &podTasks{bundle: t.TempDir(), publisher: silent{}, tasks: map[string]*podTask{}, byPID: map[int]*podTask{}}
}

// TestACellHasWhatTheContainerDeclares: its mounts but those of the kernel, the module and its code, the pod's names, and no rights
// that a module has no use for.
func TestACellHasWhatTheContainerDeclares(t *testing.T) {
	limit := int64(64 << 20)
	spec := specs.Spec{
		Annotations: map[string]string{portsAnnotation: `[{"containerPort":8080,"protocol":"TCP"}]`},
		Root:        &specs.Root{Readonly: true},
		Process: &specs.Process{
			Args: []string{"module.wasm"}, User: specs.User{UID: 1000, GID: 1001, AdditionalGids: []uint32{7}},
			Capabilities: &specs.LinuxCapabilities{Effective: []string{"CAP_SYS_ADMIN", "CAP_FOWNER"}},
			Rlimits:      []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 5, Hard: 6}},
		},
		Mounts: []specs.Mount{
			{Type: "proc", Destination: "/proc"},
			{Type: "bind", Source: "/shm", Destination: "/dev/shm"},
			{Type: "bind", Source: "/volumes/data", Destination: "/data/", Options: []string{"rbind", "ro"}},
			{Type: "bind", Source: "/volumes/log", Destination: "/dev/termination-log", Options: []string{"rbind"}},
		},
		Linux: &specs.Linux{Resources: &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &limit}}},
	}
	task := &podTask{id: "c", bundle: t.TempDir(), root: "/root"}
	c, err := task.processOf(&spec, "/blobs/module", "/cache/code", podSandbox{Resolv: "nameserver 10.0.0.10\n"})
	if err != nil {
		t.Fatal(err)
	}
	resolv := filepath.Join(task.bundle, "resolv.conf")
	want := []cell.Mount{
		{Source: "/volumes/data", At: "/data", ReadOnly: true},
		{Source: "/volumes/log", At: "/dev/termination-log"},
		{Source: resolv, At: "/etc/resolv.conf", ReadOnly: true},
		{Source: "/blobs/module", At: moduleFile, ReadOnly: true},
		{Source: "/cache/code", At: codeDirectory, ReadOnly: true},
	}
	if !slices.Equal(c.Mounts, want) {
		t.Errorf("mounts\n%v, want\n%v", c.Mounts, want)
	}
	if !c.ReadOnly || c.UID != 1000 || c.GID != 1001 || !slices.Equal(c.Groups, []uint32{7}) ||
		!slices.Equal(c.Capabilities, []string{"CAP_FOWNER"}) {
		t.Errorf("the process is %+v", c)
	}
	if c.Workload.Memory != limit || c.Workload.Module != moduleFile || len(c.Workload.Listen) != 1 ||
		!slices.Equal(c.Rlimits, []cell.Rlimit{{Type: "RLIMIT_NOFILE", Soft: 5, Hard: 6}}) {
		t.Errorf("the module is told %+v", c.Workload)
	}
	if text, err := os.ReadFile(resolv); err != nil || string(text) != "nameserver 10.0.0.10\n" {
		t.Errorf("%q %v", text, err)
	}
}

// TestWhatIsNoModuleIsRefused, with the class that would do; so is what names a sandbox that is none.
func TestWhatIsNoModuleIsRefused(t *testing.T) {
	s := pods(t)
	sandbox := strings.Repeat("a", 64)
	for name, c := range map[string]struct {
		change   func(*specs.Spec)
		terminal bool
		want     string
	}{
		"no module":       {func(s *specs.Spec) { delete(s.Annotations, wasmAnnotation) }, false, "runtimeClassName: wasm"},
		"a terminal":      {func(*specs.Spec) {}, true, "has no terminal"},
		"no process":      {func(s *specs.Spec) { s.Process = nil }, false, "has no process"},
		"a path":          {func(s *specs.Spec) { s.Annotations[sandboxAnnotation] = "../../etc/passwd" }, false, "no sandbox of CRI"},
		"another sandbox": {func(s *specs.Spec) { s.Annotations[sandboxAnnotation] = sandbox }, false, "find the container's sandbox"},
	} {
		dir, spec := bundle(t, digest.FromString("image").String())
		spec.Annotations[wasmAnnotation] = digest.FromString("image").String()
		c.change(&spec)
		write(t, filepath.Join(dir, "config.json"), spec)
		_, err := s.Create(t.Context(), &taskapi.CreateTaskRequest{ID: "c", Bundle: dir, Terminal: c.terminal})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if len(s.tasks) != 0 {
		t.Errorf("%d containers are left", len(s.tasks))
	}
}

// TestTheShimOutlivesItsContainers: containerd asks it to end for each container that is deleted, and it ends when it is meant itself.
func TestTheShimOutlivesItsContainers(t *testing.T) {
	s := pods(t)
	if _, err := s.Shutdown(t.Context(), &taskapi.ShutdownRequest{ID: "c"}); err != nil { // s.down is nil: a call of it would panic
		t.Error(err)
	}
	if p, err := s.Pids(t.Context(), &taskapi.PidsRequest{ID: podsID}); err != nil || len(p.Processes) != 1 {
		t.Errorf("its own processes: %v %v", p, err)
	}
	if _, err := s.State(t.Context(), &taskapi.StateRequest{ID: "c"}); err == nil {
		t.Error("a container that is not there has a state")
	}
}

// TestOnlyNetworksHaveSysctls: a name leads to no other file.
func TestOnlyNetworksHaveSysctls(t *testing.T) {
	got := sysctlFiles(map[string]string{"net.../../../tmp/x": "1", "kernel.shmmax": "1", "net.ipv4.ip_unprivileged_port_start": "80"})
	want := map[string]string{"/proc/sys/net/tmp/x": "1", "/proc/sys/net/ipv4/ip_unprivileged_port_start": "80"}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
