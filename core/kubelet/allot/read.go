// SPDX-License-Identifier: Apache-2.0

package allot

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/cpuset"
)

// Read the machine of a file system of the kernel's, "/sys" or a copy.
func Read(sys string) (*Machine, error) {
	online, err := list(filepath.Join(sys, "devices/system/cpu/online"))
	if err != nil {
		return nil, err
	}
	m := &Machine{Memory: map[int]map[string]int64{}}
	nodeOf := map[int]int{}
	nodes, err := list(filepath.Join(sys, "devices/system/node/online"))
	if err != nil {
		nodes = cpuset.New() // a kernel without NUMA
	}
	for _, id := range nodes.List() {
		if id >= MostNodes {
			return nil, fmt.Errorf("NUMA node %d: no more than %d are supported; leave the managers' policies at none", id, MostNodes)
		}
		dir := filepath.Join(sys, fmt.Sprintf("devices/system/node/node%d", id))
		cpus, err := list(filepath.Join(dir, "cpulist"))
		if err != nil {
			return nil, err
		}
		for _, c := range cpus.List() {
			nodeOf[c] = id
		}
		if m.Memory[id], err = memory(dir); err != nil {
			return nil, err
		}
	}
	for _, id := range online.List() {
		dir := filepath.Join(sys, fmt.Sprintf("devices/system/cpu/cpu%d", id))
		c := CPU{ID: id, Core: id, Cache: id, Node: nodeOf[id]}
		if threads, err := list(filepath.Join(dir, "topology/thread_siblings_list")); err == nil && threads.Size() > 0 {
			c.Core = threads.List()[0]
		}
		if s, err := strconv.Atoi(word(filepath.Join(dir, "topology/physical_package_id"))); err == nil {
			c.Socket = max(s, 0)
		}
		for i, level := 0, 0; ; i++ {
			index := filepath.Join(dir, fmt.Sprintf("cache/index%d", i))
			n, err := strconv.Atoi(word(filepath.Join(index, "level")))
			if err != nil {
				break
			}
			if shared, err := list(filepath.Join(index, "shared_cpu_list")); n > level && err == nil && shared.Size() > 0 {
				level, c.Cache = n, shared.List()[0]
			}
		}
		m.CPUs = append(m.CPUs, c)
	}
	return m, nil
}

func memory(node string) (map[string]int64, error) {
	data, err := os.ReadFile(filepath.Join(node, "meminfo")) //nolint:gosec // the kernel's
	if err != nil {
		return nil, fmt.Errorf("look at the memory of a NUMA node: %w", err)
	}
	out := map[string]int64{}
	for line := range strings.Lines(string(data)) {
		// Node 0 MemTotal:       16297836 kB
		if f := strings.Fields(line); len(f) >= 4 && f[2] == "MemTotal:" {
			kb, err := strconv.ParseInt(f[3], 10, 64)
			if err != nil {
				return nil, fmt.Errorf("look at the memory of a NUMA node: %w", err)
			}
			out["memory"] = kb << 10
		}
	}
	pages, err := filepath.Glob(filepath.Join(node, "hugepages/hugepages-*kB"))
	if err != nil {
		return nil, err
	}
	for _, dir := range pages {
		kb, err1 := strconv.ParseInt(strings.TrimSuffix(strings.TrimPrefix(filepath.Base(dir), "hugepages-"), "kB"), 10, 64)
		n, err2 := strconv.ParseInt(word(filepath.Join(dir, "nr_hugepages")), 10, 64)
		if err1 != nil || err2 != nil {
			continue
		}
		bytes := n * kb << 10
		out["hugepages-"+resource.NewQuantity(kb<<10, resource.BinarySI).String()] = bytes
		out["memory"] -= bytes
	}
	return out, nil
}

func list(file string) (cpuset.CPUSet, error) {
	data, err := os.ReadFile(file) //nolint:gosec // the kernel's
	if err != nil {
		return cpuset.New(), fmt.Errorf("look at the machine's topology: %w", err)
	}
	set, err := cpuset.Parse(strings.TrimSpace(string(data)))
	if err != nil {
		return cpuset.New(), fmt.Errorf("%s: %w", file, err)
	}
	return set, nil
}

func word(file string) string {
	data, err := os.ReadFile(file) //nolint:gosec // the kernel's
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}
