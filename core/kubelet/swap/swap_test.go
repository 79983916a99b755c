// SPDX-License-Identifier: Apache-2.0

package swap_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/kubelet/hostcheck"
	"github.com/wasmplane/wasmplane/core/kubelet/swap"
)

const gi = 1 << 30

func pod(asked, limit string) *corev1.Pod {
	c := corev1.Container{Name: "c", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{}, Limits: corev1.ResourceList{}}}
	if asked != "" {
		c.Resources.Requests[corev1.ResourceMemory] = resource.MustParse(asked)
	}
	if limit != "" {
		c.Resources.Limits[corev1.ResourceMemory] = resource.MustParse(limit)
	}
	return &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{c}}}
}

func with(p *corev1.Pod, change func(*corev1.Pod)) *corev1.Pod {
	change(p)
	return p
}

// TestHowMuchAContainerMayUse: what upstream's kubelet writes, on both kinds of hierarchies.
func TestHowMuchAContainerMayUse(t *testing.T) {
	limited := swap.Host{Bounds: true, V2: true, Limited: true, Memory: 8 * gi, Swap: 4 * gi}
	none := limited
	none.Limited = false
	older := swap.Host{Bounds: true, Memory: 8 * gi, Swap: 4 * gi}
	unbounded := limited
	unbounded.Bounds = false
	for name, c := range map[string]struct {
		host   swap.Host
		pod    *corev1.Pod
		max    string // of the unified hierarchy
		memory int64  // of memory and swap together, of the older ones
	}{
		"its part":                       {host: limited, pod: pod("1Gi", "2Gi"), max: "536870912"},
		"its part, without a limit":      {host: limited, pod: pod("2Gi", ""), max: "1073741824"},
		"guaranteed":                     {host: limited, pod: with(pod("1Gi", "1Gi"), cpu), max: "0"},
		"burstable, with all it may use": {host: limited, pod: pod("1Gi", "1Gi"), max: "0"},
		"best effort":                    {host: limited, pod: pod("", ""), max: "0"},
		"asks for no memory":             {host: limited, pod: with(pod("", ""), cpu), max: "0"},
		"more than the machine has":      {host: limited, pod: pod("9Gi", ""), max: "0"},
		"critical": {host: limited, pod: with(pod("1Gi", "2Gi"), func(p *corev1.Pod) {
			p.Spec.Priority = ptr.To[int32](2_000_000_000)
		}), max: "0"},
		"NoSwap":                       {host: none, pod: pod("1Gi", "2Gi"), max: "0"},
		"NoSwap, without a limit":      {host: none, pod: pod("", ""), max: "0"},
		"an older hierarchy":           {host: older, pod: pod("1Gi", "2Gi"), memory: 2 * gi},
		"an older one, without limits": {host: older, pod: pod("1Gi", "")},
		"a kernel without bounds":      {host: unbounded, pod: pod("1Gi", "2Gi")},
	} {
		r := &cri.LinuxContainerResources{MemoryLimitInBytes: c.pod.Spec.Containers[0].Resources.Limits.Memory().Value()}
		c.host.Set(c.pod, &c.pod.Spec.Containers[0], r)
		if r.GetUnified()["memory.swap.max"] != c.max || r.GetMemorySwapLimitInBytes() != c.memory {
			t.Errorf("%s: %v and %d, want %q and %d", name, r.GetUnified(), r.GetMemorySwapLimitInBytes(), c.max, c.memory)
		}
	}
}

func cpu(p *corev1.Pod) {
	for _, l := range []corev1.ResourceList{p.Spec.Containers[0].Resources.Requests, p.Spec.Containers[0].Resources.Limits} {
		l[corev1.ResourceCPU] = resource.MustParse("1")
	}
}

// machine makes the kernel's files.
func machine(t *testing.T, swaps, cgroup string, files ...string) swap.Config {
	t.Helper()
	dir := t.TempDir()
	c := swap.Config{Proc: filepath.Join(dir, "proc"), Cgroup: filepath.Join(dir, "cgroup")}
	write := func(path, text string) {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(c.Proc, "meminfo"), "MemTotal:       8388608 kB\nSwapTotal:      4194304 kB\n")
	write(filepath.Join(c.Proc, "self/cgroup"), cgroup)
	if swaps != "" {
		write(filepath.Join(c.Proc, "swaps"), swaps)
	}
	for _, f := range files {
		write(filepath.Join(c.Cgroup, f), "max\n")
	}
	return c
}

// TestWhatAMachineHas: swap that is on may be refused, LimitedSwap needs the unified hierarchy, and bounds a kernel that has them.
func TestWhatAMachineHas(t *testing.T) {
	const heading, on = "Filename Type Size Used Priority\n", "Filename Type Size Used Priority\n/swapfile file 1 0 -2\n"
	for name, c := range map[string]struct {
		config swap.Config
		change func(*swap.Config)
		v2     bool
		want   swap.Host
		err    string
	}{
		"unified":      {config: machine(t, on, "0::/a/b\n", "a/b/memory.swap.max"), v2: true, want: swap.Host{Bounds: true, V2: true}},
		"in the root":  {config: machine(t, on, "0::/\n", "pods/memory.swap.max"), v2: true, want: swap.Host{Bounds: true, V2: true}},
		"no bounds":    {config: machine(t, "", "0::/a\n"), v2: true, want: swap.Host{V2: true}},
		"older":        {config: machine(t, heading, "4:memory:/a\n", "memory/a/memory.memsw.limit_in_bytes"), want: swap.Host{Bounds: true}},
		"older, none":  {config: machine(t, heading, "4:memory:/a\n"), want: swap.Host{}},
		"limited":      {config: machine(t, on, "0::/\n"), v2: true, change: limit, want: swap.Host{V2: true, Limited: true}},
		"limited, old": {config: machine(t, on, "4:memory:/a\n"), change: limit, err: "needs the unified hierarchy"},
		"refused":      {config: machine(t, on, ""), change: refuse, err: "swap is on"},
		"off":          {config: machine(t, heading, ""), change: refuse, want: swap.Host{}},
	} {
		if c.change != nil {
			c.change(&c.config)
		}
		c.want.Memory, c.want.Swap = 8*gi, 4*gi
		got, err := swap.Look(c.config, c.v2)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: %v, want %s", name, err, c.err)
			}
			continue
		}
		if err != nil || got != c.want {
			t.Errorf("%s: %+v (%v), want %+v", name, got, err, c.want)
		}
	}
}

func limit(c *swap.Config)  { c.Behavior = swap.LimitedSwap }
func refuse(c *swap.Config) { c.Fail = true }

// TestThisMachine: its memory is known, and a bound that is said to be there can be read in a cgroup.
func TestThisMachine(t *testing.T) {
	v2 := hostcheck.CgroupV2()
	got, err := swap.Look(swap.Config{}, v2)
	if err != nil || got.Memory <= 0 || got.Swap < 0 || got.V2 != v2 {
		t.Fatalf("%+v (%v)", got, err)
	}
	pattern := "/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes"
	if v2 {
		pattern = "/sys/fs/cgroup/*/memory.swap.max"
	}
	if found, err := filepath.Glob(pattern); err != nil || got.Bounds != (len(found) > 0) {
		t.Errorf("bounds: %v, and there is %v (%v)", got.Bounds, found, err)
	}
}
