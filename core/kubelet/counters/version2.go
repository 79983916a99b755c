// SPDX-License-Identifier: Apache-2.0

package counters

import (
	"strconv"
	"strings"
)

// v2 reads a cgroup in the unified hierarchy.
func (l *Look) v2(dir string) Group {
	f := folder(dir)
	g := Group{CPU: cpu2(f), Memory: memory2(f), Tasks: tasks(dir), Disks: l.disks2(f)}
	for _, of := range []string{"cpu", "memory", "io"} {
		if p, ok := pressure(f, of); ok {
			g.Pressure = append(g.Pressure, p)
		}
	}
	return g
}

func cpu2(f folder) *CPU {
	s, ok := f.table("cpu.stat")
	if !ok {
		return nil
	}
	c := &CPU{
		Usage: micros(s["usage_usec"]), User: micros(s["user_usec"]), System: micros(s["system_usec"]),
		Periods: s["nr_periods"], Throttled: s["nr_throttled"], ThrottledTime: micros(s["throttled_usec"]),
	}
	if text, ok := f.text("cpu.max"); ok {
		quota, period, _ := strings.Cut(text, " ")
		c.Quota, c.Period = micros(parse(quota)), micros(parse(period))
	}
	if weight := f.number("cpu.weight"); weight > 0 {
		c.Shares = 2 + (weight-1)*262142/9999 // the inverse of what the kubelet makes of shares
	}
	return c
}

func memory2(f folder) *Memory {
	usage, ok := f.has("memory.current")
	if !ok {
		return nil
	}
	s, _ := f.table("memory.stat")
	events, _ := f.table("memory.events")
	m := &Memory{
		Usage: usage, WorkingSet: less(usage, s["inactive_file"]), RSS: s["anon"], Cache: s["file"], Mapped: s["file_mapped"],
		Swap: f.number("memory.swap.current"), Faults: s["pgfault"], MajorFaults: s["pgmajfault"], Failures: events["max"],
		OOMKills: events["oom_kill"], Limit: f.number("memory.max"), SwapLimit: f.number("memory.swap.max"), Reserved: f.number("memory.low"),
	}
	if n, ok := f.has("memory.peak"); ok {
		m.Most = &n
	}
	return m
}

// disks2 reads lines of MAJOR:MINOR rbytes=N wbytes=N rios=N wios=N...
func (l *Look) disks2(f folder) []Disk {
	text, _ := f.text("io.stat")
	all := map[string]*Disk{}
	for line := range strings.Lines(text) {
		number, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		if !strings.Contains(rest, "=") {
			continue // a device that was used once, and has nothing to say
		}
		d := l.disk(all, number)
		if d == nil {
			continue
		}
		for word := range strings.FieldsSeq(rest) {
			key, value, _ := strings.Cut(word, "=")
			switch key {
			case "rbytes":
				d.ReadBytes = parse(value)
			case "wbytes":
				d.WrittenBytes = parse(value)
			case "rios":
				d.Reads = parse(value)
			case "wios":
				d.Writes = parse(value)
			}
		}
	}
	return sorted(all)
}

// pressure reads the totals of lines like: some avg10=0.00 avg60=0.00 avg300=0.00 total=12 (in microseconds).
func pressure(f folder, of string) (Pressure, bool) {
	text, ok := f.text(of + ".pressure")
	if !ok {
		return Pressure{}, false
	}
	p := Pressure{Of: of}
	for line := range strings.Lines(text) {
		kind, rest, _ := strings.Cut(line, " ")
		_, total, _ := strings.Cut(rest, "total=")
		switch waited := micros(parse(strings.TrimSpace(total))); kind {
		case "some":
			p.Some = waited
		case "full":
			p.Full = waited
		}
	}
	return p, true
}

// parse a number; zero for what is none.
func parse(text string) uint64 {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0
	}
	return n
}
