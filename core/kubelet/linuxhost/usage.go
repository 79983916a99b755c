// SPDX-License-Identifier: Apache-2.0

package linuxhost

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ticks in a second of /proc/stat, on every architecture that there is.
const ticks = 100

// MachineLogs is where Linux keeps logs, upstream's only place too. It is not the
// parent of the folder that pods' logs are configured to be in: that may be the
// node's data directory.
func (h *Host) MachineLogs() string {
	if h.cfg.HideLogs {
		return ""
	}
	return "/var/log"
}

// LogQueries says whether services' logs may be asked for by queries.
func (h *Host) LogQueries() bool { return h.cfg.LogQueries }

// Checkpoints is where checkpoints of containers are written, empty where the node makes none. They hold the memory of
// containers, Secrets among it: nobody but root reads them.
func (h *Host) Checkpoints() (string, error) {
	if !h.cfg.Checkpoints {
		return "", nil
	}
	if _, err := exec.LookPath("criu"); err != nil {
		return "", errors.New("this node has no criu, which makes checkpoints of containers: install the package criu, and start the node's containerd again")
	}
	dir := filepath.Join(h.cfg.RootDir, "checkpoints")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("make the folder of checkpoints: %w", err)
	}
	return dir, nil
}

// Usage is what the whole machine has used of its processors since it started (in
// nanoseconds) and of its memory. The working set is what could not be given back at
// once, and what is resident belongs to no file.
func (h *Host) Usage(context.Context) (cpu uint64, memory *cri.MemoryUsage, err error) {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, nil, fmt.Errorf("look at the processors: %w", err)
	}
	if cpu, err = busy(string(stat)); err != nil {
		return 0, nil, err
	}
	mem, err := meminfo()
	if err != nil {
		return 0, nil, err
	}
	bytes := func(n int64) *cri.UInt64Value { return &cri.UInt64Value{Value: uint64(max(n, 0))} } //nolint:gosec // not negative
	used := mem["MemTotal"] - mem["MemFree"]
	working := used - mem["Inactive(file)"]
	return cpu, &cri.MemoryUsage{
		UsageBytes: bytes(used), WorkingSetBytes: bytes(working), AvailableBytes: bytes(mem["MemTotal"] - working),
		RssBytes: bytes(mem["AnonPages"]),
	}, nil
}

// busy reads user, nice, system, irq and softirq of the first line:
// cpu USER NICE SYSTEM IDLE IOWAIT IRQ SOFTIRQ...
func busy(stat string) (uint64, error) {
	line, _, _ := strings.Cut(stat, "\n")
	fields := strings.Fields(line)
	if len(fields) < 8 || fields[0] != "cpu" {
		return 0, errors.New("look at the processors: /proc/stat does not begin with a line of cpu times")
	}
	var sum uint64
	for _, i := range []int{1, 2, 3, 6, 7} {
		n, err := strconv.ParseUint(fields[i], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("look at the processors: /proc/stat: %w", err)
		}
		sum += n
	}
	return sum * (1e9 / ticks), nil
}
