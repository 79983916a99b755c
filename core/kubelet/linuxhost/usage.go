// SPDX-License-Identifier: Apache-2.0

package linuxhost

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// ticks in a second of /proc/stat, on every architecture that there is.
const ticks = 100

// MachineLogs is where Linux keeps logs, upstream's only place too. It is not the
// parent of the folder that pods' logs are configured to be in: that may be the
// node's data directory.
func (h *Host) MachineLogs() string { return "/var/log" }

// Usage is what the whole machine has used of its processors since it started (in
// nanoseconds) and its working set, which is what could not be given back at once.
func (h *Host) Usage(context.Context) (cpu, memory uint64, err error) {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0, fmt.Errorf("look at the processors: %w", err)
	}
	if cpu, err = busy(string(stat)); err != nil {
		return 0, 0, err
	}
	mem, err := meminfo()
	if err != nil {
		return 0, 0, err
	}
	return cpu, uint64(max(mem["MemTotal"]-mem["MemFree"]-mem["Inactive(file)"], 0)), nil //nolint:gosec // not negative
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
