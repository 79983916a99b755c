// SPDX-License-Identifier: Apache-2.0

package linuxhost

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/hostcheck"
)

const cgroupMount = "/sys/fs/cgroup"

// makeCgroup makes a pod's cgroup and bounds it. The runtime puts the containers below it.
func (h *Host) makeCgroup(path string, r *cri.LinuxContainerResources) error {
	if h.v2 {
		return makeV2(path, r, h.cfg.PodPIDs)
	}
	return makeV1(path, r, h.cfg.PodPIDs)
}

// v1Mounts are where the controllers of a v1 or hybrid machine are mounted.
func v1Mounts() (map[string]string, error) {
	hs, err := hostcheck.Hierarchies()
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, h := range hs {
		for _, c := range h.Controllers { // none of version 2
			if _, seen := out[c]; !seen {
				out[c] = h.Mount
			}
		}
	}
	return out, nil
}

// makeV1 makes the cgroup in the hierarchies in which a pod is bounded; the
// others are the runtime's to make.
func makeV1(path string, r *cri.LinuxContainerResources, pids int64) error {
	mounts, err := v1Mounts()
	if err != nil {
		return err
	}
	for _, c := range []struct {
		controller string
		values     map[string]string
	}{
		{"cpu", map[string]string{"cpu.shares": fmt.Sprint(r.CpuShares), "cpu.cfs_quota_us": quotaOrNone(r.CpuQuota)}},
		{"memory", map[string]string{"memory.limit_in_bytes": limitOr(r.MemoryLimitInBytes, "-1")}},
		{"pids", map[string]string{"pids.max": limitOr(pids, "max")}},
	} {
		mount, ok := mounts[c.controller]
		if !ok {
			continue
		}
		if err := fill(filepath.Join(mount, path), c.values); err != nil {
			return err
		}
	}
	return nil
}

func quotaOrNone(q int64) string { return limitOr(q, "-1") }

func limitOr(n int64, none string) string {
	if n <= 0 {
		return none
	}
	return strconv.FormatInt(n, 10)
}

func fill(dir string, values map[string]string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make cgroup: %w", err)
	}
	for file, v := range values {
		err := os.WriteFile(filepath.Join(dir, file), []byte(v), 0o644)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("bound cgroup %s: %w", dir, err)
		}
	}
	return nil
}

// makeV2 makes the cgroup and lets the controllers through to it.
func makeV2(path string, r *cri.LinuxContainerResources, pids int64) error {
	if err := makeBelow(path); err != nil {
		return err
	}
	quota := "max"
	if r.CpuQuota > 0 {
		quota = strconv.FormatInt(r.CpuQuota, 10)
	}
	return fill(filepath.Join(cgroupMount, path), map[string]string{
		"cpu.weight": fmt.Sprint(Weight(r.CpuShares)),
		"cpu.max":    fmt.Sprintf("%s %d", quota, r.CpuPeriod),
		"memory.max": limitOr(r.MemoryLimitInBytes, "max"),
		"pids.max":   limitOr(pids, "max"),
	})
}

// makeBelow makes a cgroup of v2, and lets the controllers through to it and below it.
func makeBelow(path string) error {
	dir := cgroupMount
	for _, part := range strings.Split(strings.Trim(path, "/"), "/") {
		enable(dir)
		dir = filepath.Join(dir, part)
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("make cgroup: %w", err)
		}
	}
	enable(dir)
	return nil
}

// Weight is what shares of v1 are in v2.
func Weight(shares int64) int64 { return 1 + (max(shares, 2)-2)*9999/262142 }

// enable lets controllers through to the cgroups below dir, each that there is.
func enable(dir string) {
	data, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return
	}
	for _, c := range strings.Fields(string(data)) {
		if slices.Contains([]string{"cpu", "cpuset", "memory", "pids", "io", "hugetlb"}, c) {
			// One that cannot be let through bounds nothing; the others still do.
			_ = os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+c), 0o644)
		}
	}
}

// cgroupPods are the UIDs of pods that have a cgroup below the root.
func (h *Host) cgroupPods() []string {
	if h.cfg.CgroupRoot == "" {
		return nil
	}
	roots := []string{filepath.Join(cgroupMount, h.cfg.CgroupRoot)}
	if !h.v2 {
		mounts, err := v1Mounts()
		if err != nil {
			return nil
		}
		roots = roots[:0]
		for _, m := range mounts {
			roots = append(roots, filepath.Join(m, h.cfg.CgroupRoot))
		}
	}
	var out []string
	for _, root := range roots {
		for _, q := range []string{"", "burstable", "besteffort"} {
			entries, err := os.ReadDir(filepath.Join(root, q))
			if err != nil {
				continue
			}
			for _, e := range entries {
				if uid, ok := strings.CutPrefix(e.Name(), "pod"); ok && e.IsDir() && !slices.Contains(out, uid) {
					out = append(out, uid)
				}
			}
		}
	}
	return out
}
