// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// holder says which process listens at a TCP port of this machine: "process 12 (name)". "" where that cannot be
// found out, as without root for the processes of others.
func holder(port int) string {
	sockets := listening(port)
	if len(sockets) == 0 {
		return ""
	}
	open, _ := filepath.Glob("/proc/[0-9]*/fd/*") //nolint:errcheck // the pattern is good
	for _, file := range open {
		to, err := os.Readlink(file)
		if err != nil || !sockets[to] {
			continue
		}
		process := filepath.Dir(filepath.Dir(file))
		name, _ := os.ReadFile(filepath.Join(process, "comm")) //nolint:errcheck // the number does, too
		return fmt.Sprintf("process %s (%s)", filepath.Base(process), strings.TrimSpace(string(name)))
	}
	return ""
}

// listening are the sockets that listen at a port, as links in /proc call them.
func listening(port int) map[string]bool {
	const local, state, inode, listens = 1, 3, 9, "0A" // columns of proc(5), and TCP_LISTEN
	found := map[string]bool{}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		f, err := os.Open(table)
		if err != nil {
			continue // without IPv6
		}
		for lines := bufio.NewScanner(f); lines.Scan(); {
			columns := strings.Fields(lines.Text())
			if len(columns) <= inode || columns[state] != listens {
				continue
			}
			_, hex, _ := strings.Cut(columns[local], ":")
			if at, err := strconv.ParseUint(hex, 16, 16); err == nil && int(at) == port {
				found["socket:["+columns[inode]+"]"] = true
			}
		}
		_ = f.Close()
	}
	return found
}
