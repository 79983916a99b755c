// SPDX-License-Identifier: Apache-2.0

package simulated_test

import (
	"io"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/engine"
	"github.com/wasmplane/wasmplane/core/kubelet/engine/enginetest"
	"github.com/wasmplane/wasmplane/core/kubelet/simulated"
)

func newEngine(t *testing.T) *simulated.Engine {
	t.Helper()
	n, err := simulated.NewNetwork(netip.MustParsePrefix("10.1.0.0/24"))
	if err != nil {
		t.Fatal(err)
	}
	e, err := simulated.New(simulated.Config{Network: n})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestConformance(t *testing.T) {
	enginetest.Run(t, func(t *testing.T) engine.Engine { return newEngine(t) },
		enginetest.Options{Image: "example.org/web:1", Absent: "example.org/other:1"})
}

// A pod's annotations direct what becomes of its containers.
func TestAnnotationsDirectIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t)
		ctx := t.Context()
		sb, err := e.RunSandbox(ctx, &cri.PodSandboxConfig{Annotations: map[string]string{
			simulated.Prefix + "run-time":        "30s",
			simulated.Prefix + "exit-code":       "3",
			simulated.Prefix + "exit-reason":     "OOMKilled",
			simulated.Prefix + "start-error.bad": "exec: no such file",
			simulated.Prefix + "logs":            "one\ntwo",
		}}, "")
		if err != nil {
			t.Fatal(err)
		}
		id, err := e.CreateContainer(ctx, sb, &cri.ContainerConfig{Metadata: &cri.ContainerMetadata{Name: "web"}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := e.StartContainer(ctx, id); err != nil {
			t.Fatal(err)
		}
		time.Sleep(29 * time.Second)
		synctest.Wait()
		if st, _ := e.ContainerStatus(ctx, id); st.State != cri.ContainerState_CONTAINER_RUNNING {
			t.Errorf("after 29 s it is %v", st.State)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		st, _ := e.ContainerStatus(ctx, id)
		if st.State != cri.ContainerState_CONTAINER_EXITED || st.ExitCode != 3 || st.Reason != "OOMKilled" {
			t.Errorf("after 31 s it is %v %d %s", st.State, st.ExitCode, st.Reason)
		}
		r, err := e.Logs(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(r)
		if !strings.Contains(string(text), " stdout F one\n") || strings.Count(string(text), "\n") != 2 {
			t.Errorf("log %q", text)
		}
		bad, err := e.CreateContainer(ctx, sb, &cri.ContainerConfig{Metadata: &cri.ContainerMetadata{Name: "bad"}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := e.StartContainer(ctx, bad); err == nil || err.Error() != "exec: no such file" {
			t.Errorf("start error %v", err)
		}
	})
}

func TestNetworkIsUsedUpAndReturned(t *testing.T) {
	n, err := simulated.NewNetwork(netip.MustParsePrefix("10.1.0.0/30"))
	if err != nil {
		t.Fatal(err)
	}
	e, err := simulated.New(simulated.Config{Network: n})
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for range 2 {
		id, err := e.RunSandbox(t.Context(), &cri.PodSandboxConfig{}, "")
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	if _, err := e.RunSandbox(t.Context(), &cri.PodSandboxConfig{}, ""); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("third of two addresses: %v", err)
	}
	if err := e.StopSandbox(t.Context(), ids[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := e.RunSandbox(t.Context(), &cri.PodSandboxConfig{}, ""); err != nil {
		t.Errorf("an address was not returned: %v", err)
	}
}

// What containers use is what their annotations say, from their start.
func TestUsage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t)
		ctx := t.Context()
		sb, err := e.RunSandbox(ctx, &cri.PodSandboxConfig{Annotations: map[string]string{
			simulated.Prefix + "cpu": "250m", simulated.Prefix + "cpu.busy": "2", simulated.Prefix + "memory": "64Mi",
			simulated.Prefix + "memory.busy": "-1",
		}}, "")
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"web", "busy"} {
			id, err := e.CreateContainer(ctx, sb, &cri.ContainerConfig{Metadata: &cri.ContainerMetadata{Name: name}}, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := e.StartContainer(ctx, id); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(8 * time.Second)
		pods, err := e.Stats(ctx)
		if err != nil || len(pods) != 1 {
			t.Fatalf("%d pods, %v", len(pods), err)
		}
		want := map[string][2]uint64{"web": {2e9, 64 << 20}, "busy": {16e9, 0}}
		for _, c := range pods[0].Linux.Containers {
			name := c.Attributes.Metadata.Name
			if got := [2]uint64{c.Cpu.UsageCoreNanoSeconds.Value, c.Memory.WorkingSetBytes.Value}; got != want[name] {
				t.Errorf("%s used %v, want %v", name, got, want[name])
			}
		}
		if cpu, memory := pods[0].Linux.Cpu.UsageCoreNanoSeconds.Value, pods[0].Linux.Memory.WorkingSetBytes.Value; cpu != 18e9 ||
			memory != 64<<20 {
			t.Errorf("the pod used %d ns and %d bytes", cpu, memory)
		}
	})
}
