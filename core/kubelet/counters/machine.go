// SPDX-License-Identifier: Apache-2.0

package counters

import (
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/wasmplane/wasmplane/core/kubelet/mounttable"
)

// Interface is what went through one since it was made.
type Interface struct {
	Name                                                          string
	ReceivedBytes, ReceivedPackets, ReceiveErrors, ReceiveDropped uint64
	SentBytes, SentPackets, SendErrors, SendDropped               uint64
	NoPackets                                                     bool // they have not been counted
}

// Network of the processes in a cgroup: its interfaces but for the loopback; nil where there is no process.
func (l *Look) Network(path string) []Interface {
	dir := l.dir("memory", path)
	inside := pids(dir)
	if len(inside) == 0 {
		return nil
	}
	text, ok := folder(l.cfg.Proc).text(inside[0] + "/net/dev")
	// The number may be another process' by now, in another network: what counts is that it is still here.
	if !ok || !slices.Contains(pids(dir), inside[0]) {
		return nil
	}
	return interfaces(text, func(name string) bool { return name != "lo" })
}

// MachineNetwork is the machine's own: without the loopback, and without the ends of pods' interfaces.
func (l *Look) MachineNetwork() []Interface {
	text, _ := folder(l.cfg.Proc).text("self/net/dev")
	return interfaces(text, func(name string) bool { return name != "lo" && !strings.HasPrefix(name, "veth") })
}

// interfaces of lines of NAME: and 16 numbers, 8 of them for each direction (proc_pid_net(5)).
func interfaces(text string, keep func(name string) bool) (out []Interface) {
	for line := range strings.Lines(text) {
		name, rest, ok := strings.Cut(line, ":")
		n := strings.Fields(rest)
		if name = strings.TrimSpace(name); !ok || len(n) < 16 || !keep(name) {
			continue
		}
		out = append(out, Interface{
			Name: name, ReceivedBytes: parse(n[0]), ReceivedPackets: parse(n[1]), ReceiveErrors: parse(n[2]), ReceiveDropped: parse(n[3]),
			SentBytes: parse(n[8]), SentPackets: parse(n[9]), SendErrors: parse(n[10]), SendDropped: parse(n[11]),
		})
	}
	return out
}

// MachineDisks are those of the machine that were ever used.
func (l *Look) MachineDisks() (out []Disk) {
	const sector = 512 // whatever the disk's own are
	for _, d := range l.diskstats() {
		if reads, writes := parse(d[3]), parse(d[7]); reads+writes > 0 {
			out = append(out, Disk{
				Device: "/dev/" + d[2], Reads: reads, ReadBytes: parse(d[5]) * sector, Writes: writes, WrittenBytes: parse(d[9]) * sector,
			})
		}
	}
	return out
}

// diskstats are lines of MAJOR MINOR NAME and numbers: reads, merged, sectors, time, writes, merged, sectors...
func (r *Reader) diskstats() (out [][]string) {
	text, _ := folder(r.cfg.Proc).text("diskstats")
	for line := range strings.Lines(text) {
		if word := strings.Fields(line); len(word) >= 10 {
			out = append(out, word)
		}
	}
	return out
}

// MachineMemory is how much memory and swap the machine has, in bytes.
func (l *Look) MachineMemory() (memory, swap uint64) {
	s, _ := folder(l.cfg.Proc).table("meminfo")
	return s["MemTotal:"] << 10, s["SwapTotal:"] << 10
}

// MachineSwap is how much of the machine's swap space is in use, and how much is free, in bytes.
func (l *Look) MachineSwap() (used, free uint64) {
	s, _ := folder(l.cfg.Proc).table("meminfo")
	return less(s["SwapTotal:"]<<10, s["SwapFree:"]<<10), s["SwapFree:"] << 10
}

// deviceOf the file system of a directory. One that spreads over devices, or over other file systems, is known by its type.
func deviceOf(dir string, disks [][]string) string {
	var st unix.Stat_t
	if dir == "" || unix.Stat(dir, &st) != nil {
		return ""
	}
	number := fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))
	for _, d := range disks {
		if d[0]+":"+d[1] == number {
			return "/dev/" + d[2]
		}
	}
	mounts, err := mounttable.Read()
	if err != nil {
		return ""
	}
	for _, m := range mounts {
		if m.Device == number {
			return m.Type
		}
	}
	return ""
}
