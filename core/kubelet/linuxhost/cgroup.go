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

	"github.com/wasmplane/wasmplane/core/kubelet/hostcheck"
)

// JoinCgroup moves the calling process into a cgroup, made when missing, in every
// hierarchy. cpuset is left out on v1: a fresh cpuset has no processors and takes
// no process.
func JoinCgroup(path string) error {
	hs, err := hostcheck.Hierarchies()
	if err != nil {
		return err
	}
	for _, h := range hs {
		if slices.Contains(h.Controllers, "cpuset") {
			continue
		}
		dir := filepath.Join(h.Mount, path)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make cgroup %s: %w", dir, err)
		}
		procs := filepath.Join(dir, "cgroup.procs")
		if err := os.WriteFile(procs, []byte("0"), 0o644); err != nil {
			return fmt.Errorf("join cgroup %s: %w", dir, err)
		}
	}
	return nil
}

// CgroupProcesses lists the processes in a cgroup and below it, in any hierarchy.
func CgroupProcesses(path string) ([]int, error) {
	hs, err := hostcheck.Hierarchies()
	if err != nil {
		return nil, err
	}
	pids := map[int]bool{}
	for _, h := range hs {
		for _, dir := range cgroupDirs(filepath.Join(h.Mount, path)) {
			data, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
			if err != nil {
				continue // gone meanwhile, or a threaded v2 cgroup
			}
			for _, field := range strings.Fields(string(data)) {
				if pid, err := strconv.Atoi(field); err == nil && pid > 0 {
					pids[pid] = true
				}
			}
		}
	}
	out := make([]int, 0, len(pids))
	for pid := range pids {
		out = append(out, pid)
	}
	slices.Sort(out)
	return out, nil
}

// RemoveCgroup removes a cgroup and everything below it, in every hierarchy. It
// fails while processes are inside; an absent cgroup is no error.
func RemoveCgroup(path string) error {
	if path == "" || filepath.Clean("/"+path) == "/" {
		return errors.New("refusing to remove the root cgroup")
	}
	hs, err := hostcheck.Hierarchies()
	if err != nil {
		return err
	}
	var errs []error
	for _, h := range hs {
		dirs := cgroupDirs(filepath.Join(h.Mount, path))
		slices.Reverse(dirs) // children before parents
		for _, dir := range dirs {
			if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, fmt.Errorf("remove cgroup: %w", err))
			}
		}
	}
	return errors.Join(errs...)
}

// cgroupDirs lists a cgroup directory and those below it, parents first.
func cgroupDirs(root string) []string {
	var dirs []string
	_ = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // cgroups come and go while we look
		}
		if d.IsDir() {
			dirs = append(dirs, p)
		}
		return nil
	})
	return dirs
}
