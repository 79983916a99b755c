// SPDX-License-Identifier: Apache-2.0

package linuxhost

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// ProcessStat is what /proc/PID/stat says of a process (proc_pid_stat(5)).
type ProcessStat struct {
	// Start is the time it was started, in clock ticks since boot (field 22).
	Start string
	// Ended says that only its exit status is left. A process whose first thread is a
	// zombie has not ended while other threads of it run: until then it holds its
	// cgroup, its files and its memory.
	Ended bool
}

// StatProcess reads the state of a process; fs.ErrNotExist when there is none.
func StatProcess(pid int) (ProcessStat, error) {
	path := "/proc/" + strconv.Itoa(pid) + "/stat"
	data, err := os.ReadFile(path)
	if err != nil {
		return ProcessStat{}, fmt.Errorf("look at process %d: %w", pid, err)
	}
	// The command's name, in parentheses, may contain anything; count from its end.
	i := bytes.LastIndexByte(data, ')')
	fields := strings.Fields(string(data[i+1:]))
	const state, threads, start = 0, 20 - 3, 22 - 3 // of fields that begin with the third
	if i < 0 || len(fields) <= start {
		return ProcessStat{}, fmt.Errorf("look at process %d: unknown form of %s", pid, path)
	}
	n, err := strconv.Atoi(fields[threads])
	if err != nil {
		return ProcessStat{}, fmt.Errorf("look at process %d: its count of threads: %w", pid, err)
	}
	zombie := fields[state] == "Z" || fields[state] == "X"
	return ProcessStat{Start: fields[start], Ended: zombie && n <= 1}, nil
}
