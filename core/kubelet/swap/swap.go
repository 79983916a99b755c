// SPDX-License-Identifier: Apache-2.0

// Package swap decides how much of a node's swap space its containers may use, as upstream's kubelet does (KEP-2400).
//
// By default none may use any. With LimitedSwap, on the unified hierarchy of cgroups, a container of a Burstable pod that asks
// for memory, and for less than its limit, may use as much of the swap space as it asks for of the memory. Critical pods
// and those of other classes use none.
package swap

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/counters"
	"github.com/wasmplane/wasmplane/core/kubelet/evict"
	"github.com/wasmplane/wasmplane/core/kubelet/status"
)

// Behaviors of a node, by upstream's names.
const (
	// NoSwap keeps containers from using any.
	NoSwap = "NoSwap"
	// LimitedSwap lets containers of Burstable pods use their part.
	LimitedSwap = "LimitedSwap"
)

// maxFile bounds swap in the unified hierarchy.
const maxFile = "memory.swap.max"

// Host is what a machine has of swap, and what its node does with it. The zero value bounds nothing.
type Host struct {
	// Bounds: the kernel can bound the swap of a cgroup.
	Bounds bool
	// V2: cgroups are of the unified hierarchy alone.
	V2 bool
	// Limited: containers may use some (LimitedSwap).
	Limited bool
	// Memory and Swap of the machine, in bytes.
	Memory, Swap int64
}

// Config of a Host. The zero value is that of a node by default.
type Config struct {
	// Behavior is NoSwap (also ""), or LimitedSwap, which needs the unified hierarchy.
	Behavior string
	// Fail: a machine whose swap is on is refused.
	Fail bool
	// Proc and Cgroup are where the kernel's files are ("/proc" and "/sys/fs/cgroup" if empty).
	Proc, Cgroup string
}

// Look looks at the machine; v2 says whether its cgroups are of the unified hierarchy alone.
func Look(c Config, v2 bool) (Host, error) {
	if c.Proc == "" {
		c.Proc = "/proc"
	}
	if c.Cgroup == "" {
		c.Cgroup = "/sys/fs/cgroup"
	}
	on, err := c.on()
	if err != nil {
		return Host{}, err
	}
	switch {
	case on && c.Fail:
		return Host{}, errors.New("node.failSwapOn: swap is on: turn it off (swapoff -a), or leave node.failSwapOn out")
	case c.Behavior == LimitedSwap && !v2:
		return Host{}, errors.New("node.memorySwap.swapBehavior: LimitedSwap needs the unified hierarchy of cgroups (version 2), " +
			"which this machine does not have; expected NoSwap")
	}
	memory, swap := counters.New(counters.Config{Proc: c.Proc}).Look().MachineMemory()
	if memory == 0 {
		return Host{}, fmt.Errorf("look how much memory there is: %s does not say", filepath.Join(c.Proc, "meminfo"))
	}
	return Host{Bounds: c.bounds(v2), V2: v2, Limited: c.Behavior == LimitedSwap, Memory: int64(memory), Swap: int64(swap)}, nil
}

// on tells whether the machine has any swap space in use: the table has a line besides its heading.
func (c Config) on() (bool, error) {
	text, err := os.ReadFile(filepath.Join(c.Proc, "swaps"))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil // the kernel knows none
	}
	if err != nil {
		return false, fmt.Errorf("look whether swap is on: %w", err)
	}
	return strings.Count(strings.TrimSpace(string(text)), "\n") > 0, nil
}

// bounds tells whether the kernel bounds swap by cgroup: a cgroup that is not the root has the file then.
func (c Config) bounds(v2 bool) bool {
	hierarchy, file := "memory", "memory.memsw.limit_in_bytes"
	if v2 {
		hierarchy, file = "", maxFile
	}
	root := filepath.Join(c.Cgroup, hierarchy)
	if below, err := filepath.Glob(filepath.Join(root, "*", file)); err == nil && len(below) > 0 {
		return true // where this process is in the root
	}
	_, err := os.Stat(filepath.Join(root, own(filepath.Join(c.Proc, "self/cgroup"), hierarchy), file))
	return err == nil
}

// own is the cgroup of this process in a hierarchy, from lines like 4:memory:/path, and 0::/path of the unified one.
func own(file, controller string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return "/"
	}
	for line := range strings.Lines(string(text)) {
		if part := strings.SplitN(strings.TrimSpace(line), ":", 3); len(part) == 3 && part[1] == controller {
			return part[2]
		}
	}
	return "/"
}

// Set writes into a container's resources how much it may use.
func (h Host) Set(p *corev1.Pod, c *corev1.Container, r *cri.LinuxContainerResources) {
	switch {
	case !h.Bounds:
	case h.V2:
		if r.Unified == nil {
			r.Unified = map[string]string{}
		}
		r.Unified[maxFile] = strconv.FormatInt(h.share(p, c), 10)
	default:
		// Memory and swap together: as much as memory alone. Without a limit of memory there is none.
		r.MemorySwapLimitInBytes = r.MemoryLimitInBytes
	}
}

// share of the swap space that a container may use, in bytes.
func (h Host) share(p *corev1.Pod, c *corev1.Container) int64 {
	asked, limit := c.Resources.Requests.Memory(), c.Resources.Limits.Memory()
	switch {
	case !h.Limited || evict.Critical(p) || status.QOS(p) != corev1.PodQOSBurstable:
		return 0
	case asked.IsZero() || asked.Cmp(*limit) == 0:
		return 0
	case h.Memory <= 0 || asked.Value() > h.Memory:
		return 0
	}
	return int64(float64(asked.Value()) / float64(h.Memory) * float64(h.Swap))
}
