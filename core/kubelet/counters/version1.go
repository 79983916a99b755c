// SPDX-License-Identifier: Apache-2.0

package counters

import (
	"slices"
	"strings"
	"time"
)

// tick of the clock in which some times are counted, on every architecture that there is.
const tick = 10 * time.Millisecond

// v1 reads a cgroup in the hierarchies of version 1.
func (l *Look) v1(path string) Group {
	return Group{
		CPU: cpu1(folder(l.dir("cpu", path)), folder(l.dir("cpuacct", path))), Memory: memory1(folder(l.dir("memory", path))),
		Tasks: tasks(l.dir("pids", path)), Disks: l.disks1(folder(l.dir("blkio", path))),
	}
}

//nolint:gosec // times, and numbers of microseconds, that fit
func cpu1(f, account folder) *CPU {
	usage, ok := account.has("cpuacct.usage")
	if !ok {
		return nil
	}
	split, _ := account.table("cpuacct.stat")
	c := &CPU{Usage: time.Duration(usage), User: time.Duration(split["user"]) * tick, System: time.Duration(split["system"]) * tick}
	throttled, _ := f.table("cpu.stat")
	c.Periods, c.Throttled, c.ThrottledTime = throttled["nr_periods"], throttled["nr_throttled"], time.Duration(throttled["throttled_time"])
	c.Quota, c.Period, c.Shares = micros(f.number("cpu.cfs_quota_us")), micros(f.number("cpu.cfs_period_us")), f.number("cpu.shares")
	return c
}

func memory1(f folder) *Memory {
	usage, ok := f.has("memory.usage_in_bytes")
	if !ok {
		return nil
	}
	s, _ := f.table("memory.stat")
	m := &Memory{
		Usage: usage, WorkingSet: less(usage, s["total_inactive_file"]), RSS: s["total_rss"], Cache: s["total_cache"],
		Mapped: s["total_mapped_file"], Swap: s["total_swap"], Faults: s["total_pgfault"], MajorFaults: s["total_pgmajfault"],
		Failures: f.number("memory.failcnt"), Limit: limit(f.number("memory.limit_in_bytes")),
		Reserved: limit(f.number("memory.soft_limit_in_bytes")),
	}
	if n, ok := f.has("memory.max_usage_in_bytes"); ok {
		m.Most = &n
	}
	if both := limit(f.number("memory.memsw.limit_in_bytes")); both > 0 {
		m.SwapLimit = less(both, m.Limit)
	}
	kills, _ := f.table("memory.oom_control")
	m.OOMKills = kills["oom_kill"]
	return m
}

func tasks(dir string) *Tasks {
	threads, ok := folder(dir).has("pids.current")
	if !ok {
		return nil
	}
	return &Tasks{Processes: processes(dir), Threads: threads, MostThreads: folder(dir).number("pids.max")}
}

// disks1 are counted by the scheduler of requests where it is bfq, and by the throttle where there is one.
func (l *Look) disks1(f folder) []Disk {
	for _, who := range []string{"bfq", "throttle"} {
		bytes, _ := f.text("blkio." + who + ".io_service_bytes_recursive")
		times, _ := f.text("blkio." + who + ".io_serviced_recursive")
		all := map[string]*Disk{}
		l.count1(all, bytes, func(d *Disk) (read, written *uint64) { return &d.ReadBytes, &d.WrittenBytes })
		l.count1(all, times, func(d *Disk) (read, written *uint64) { return &d.Reads, &d.Writes })
		if len(all) > 0 {
			return sorted(all)
		}
	}
	return nil
}

// count1 reads lines of MAJOR:MINOR OPERATION NUMBER.
func (l *Look) count1(all map[string]*Disk, text string, to func(*Disk) (read, written *uint64)) {
	for line := range strings.Lines(text) {
		word := strings.Fields(line)
		if len(word) != 3 {
			continue
		}
		d := l.disk(all, word[0])
		if d == nil {
			continue
		}
		read, written := to(d)
		switch word[1] {
		case "Read":
			*read = parse(word[2])
		case "Write":
			*written = parse(word[2])
		}
	}
}

// disk of a number, in the table; nil for one that has no name.
func (l *Look) disk(all map[string]*Disk, number string) *Disk {
	if d := all[number]; d != nil {
		return d
	}
	name := l.disks[number]
	if name == "" {
		return nil
	}
	all[number] = &Disk{Device: name}
	return all[number]
}

func sorted(all map[string]*Disk) []Disk {
	out := make([]Disk, 0, len(all))
	for _, d := range all {
		out = append(out, *d)
	}
	slices.SortFunc(out, func(a, b Disk) int { return strings.Compare(a.Device, b.Device) })
	return out
}
