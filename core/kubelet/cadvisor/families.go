// SPDX-License-Identifier: Apache-2.0

package cadvisor

import (
	"time"

	"github.com/wasmplane/wasmplane/core/kubelet/counters"
)

// value of a family, with labels beside the subject's; each of them ends with a comma.
type value struct {
	labels string
	number float64
}

type family struct {
	name, help, kind string
	of               func(*Subject) []value
}

// cpu is a family of who has processor time counted, and of whom the number is to be told.
func cpu(of func(*counters.CPU) (number float64, told bool)) func(*Subject) []value {
	return func(s *Subject) []value {
		if s.CPU == nil {
			return nil
		}
		return told(of(s.CPU))
	}
}

func told(number float64, ok bool) []value {
	if !ok {
		return nil
	}
	return []value{{number: number}}
}

// bounded tells a number of those alone that have a quota.
func bounded(of func(*counters.CPU) float64) func(*Subject) []value {
	return cpu(func(c *counters.CPU) (float64, bool) { return of(c), c.Quota > 0 })
}

// usage is a family that the runtime tells of those, too, that have no cgroup.
func usage(of func(*Usage) *float64) func(*Subject) []value {
	return func(s *Subject) []value {
		u := s.usage()
		if n := of(&u); n != nil {
			return []value{{number: *n}}
		}
		return nil
	}
}

// usage is what the cgroup says, or else the runtime.
func (s *Subject) usage() Usage {
	u := s.Told
	number := func(n uint64) *float64 { f := float64(n); return &f }
	if s.CPU != nil {
		seconds := s.CPU.Usage.Seconds()
		u.CPU = &seconds
	}
	if s.Memory != nil {
		u.Memory, u.WorkingSet, u.RSS = number(s.Memory.Usage), number(s.Memory.WorkingSet), number(s.Memory.RSS)
	}
	return u
}

func memory(of func(*counters.Memory) uint64) func(*Subject) []value {
	return func(s *Subject) []value {
		if s.Memory == nil {
			return nil
		}
		return []value{{number: float64(of(s.Memory))}}
	}
}

func tasks(of func(*counters.Tasks) uint64) func(*Subject) []value {
	return func(s *Subject) []value {
		if s.Tasks == nil {
			return nil
		}
		return []value{{number: float64(of(s.Tasks))}}
	}
}

func network(of func(*counters.Interface) uint64) func(*Subject) []value {
	return func(s *Subject) (out []value) {
		for i := range s.Network {
			out = append(out, value{"interface=" + quote(s.Network[i].Name) + ",", float64(of(&s.Network[i]))})
		}
		return out
	}
}

// packets is a family of the interfaces whose packets are counted.
func packets(of func(*counters.Interface) uint64) func(*Subject) []value {
	all := network(of)
	return func(s *Subject) []value {
		if len(s.Network) > 0 && s.Network[0].NoPackets {
			return nil
		}
		return all(s)
	}
}

func disks(of func(*counters.Disk) uint64) func(*Subject) []value {
	return func(s *Subject) (out []value) {
		for i := range s.Disks {
			out = append(out, value{"device=" + quote(s.Disks[i].Device) + ",", float64(of(&s.Disks[i]))})
		}
		return out
	}
}

func files(of func(*FileSystem) (number uint64, told bool)) func(*Subject) []value {
	return func(s *Subject) (out []value) {
		for i := range s.Files {
			if n, ok := of(&s.Files[i]); ok {
				out = append(out, value{"device=" + quote(s.Files[i].Device) + ",", float64(n)})
			}
		}
		return out
	}
}

func pressure(what string, of func(*counters.Pressure) time.Duration) func(*Subject) []value {
	return func(s *Subject) []value {
		for i := range s.Pressure {
			if s.Pressure[i].Of == what {
				return []value{{number: of(&s.Pressure[i]).Seconds()}}
			}
		}
		return nil
	}
}

func some(p *counters.Pressure) time.Duration { return p.Some }
func full(p *counters.Pressure) time.Duration { return p.Full }

// families of the page, in its order.
var families = []family{
	{"container_cpu_usage_seconds_total", "Processor time used, in seconds.", "counter", func(s *Subject) []value {
		out := usage(func(u *Usage) *float64 { return u.CPU })(s)
		for i := range out {
			out[i].labels = `cpu="total",`
		}
		return out
	}},
	{
		"container_cpu_user_seconds_total", "Processor time used by programs themselves, in seconds.", "counter",
		cpu(func(c *counters.CPU) (float64, bool) { return c.User.Seconds(), true }),
	},
	{
		"container_cpu_system_seconds_total", "Processor time used by the kernel for them, in seconds.", "counter",
		cpu(func(c *counters.CPU) (float64, bool) { return c.System.Seconds(), true }),
	},
	{
		"container_cpu_cfs_periods_total", "Periods of the quota in which something ran.", "counter",
		bounded(func(c *counters.CPU) float64 { return float64(c.Periods) }),
	},
	{
		"container_cpu_cfs_throttled_periods_total", "Periods in which the quota was used up.", "counter",
		bounded(func(c *counters.CPU) float64 { return float64(c.Throttled) }),
	},
	{
		"container_cpu_cfs_throttled_seconds_total", "Time spent waiting for the next period, in seconds.", "counter",
		bounded(func(c *counters.CPU) float64 { return c.ThrottledTime.Seconds() }),
	},
	{
		"container_spec_cpu_quota", "Processor time of a period, in microseconds.", "gauge",
		bounded(func(c *counters.CPU) float64 { return float64(c.Quota.Microseconds()) }),
	},
	{
		"container_spec_cpu_period", "Length of a period, in microseconds.", "gauge",
		cpu(func(c *counters.CPU) (float64, bool) { return float64(c.Period.Microseconds()), c.Period > 0 }),
	},
	{
		"container_spec_cpu_shares", "Shares of the processors when they are short.", "gauge",
		cpu(func(c *counters.CPU) (float64, bool) { return float64(c.Shares), c.Shares > 0 }),
	},

	{
		"container_memory_usage_bytes", "Memory in use, with what could be given back at once.", "gauge",
		usage(func(u *Usage) *float64 { return u.Memory }),
	},
	{
		"container_memory_working_set_bytes", "Memory in use that could not be given back at once.", "gauge",
		usage(func(u *Usage) *float64 { return u.WorkingSet }),
	},
	{"container_memory_rss", "Memory that belongs to no file.", "gauge", usage(func(u *Usage) *float64 { return u.RSS })},
	{"container_memory_cache", "Memory that holds parts of files.", "gauge", memory(func(m *counters.Memory) uint64 { return m.Cache })},
	{"container_memory_mapped_file", "Memory of files that are mapped.", "gauge", memory(func(m *counters.Memory) uint64 { return m.Mapped })},
	{"container_memory_swap", "Swap space in use.", "gauge", memory(func(m *counters.Memory) uint64 { return m.Swap })},
	{
		"container_memory_failcnt", "Times that the limit of memory was met.", "counter",
		memory(func(m *counters.Memory) uint64 { return m.Failures }),
	},
	{"container_memory_max_usage_bytes", "Most memory that was in use at a time.", "gauge", func(s *Subject) []value {
		if s.Memory == nil || s.Memory.Most == nil {
			return nil
		}
		return []value{{number: float64(*s.Memory.Most)}}
	}},
	{"container_memory_failures_total", "Pages that were not there when they were needed.", "counter", func(s *Subject) []value {
		if s.Memory == nil {
			return nil
		}
		return []value{
			{`failure_type="pgfault",scope="hierarchy",`, float64(s.Memory.Faults)},
			{`failure_type="pgmajfault",scope="hierarchy",`, float64(s.Memory.MajorFaults)},
		}
	}},
	{
		"container_oom_events_total", "Processes killed because memory was used up.", "counter",
		memory(func(m *counters.Memory) uint64 { return m.OOMKills }),
	},
	{"container_spec_memory_limit_bytes", "Limit of memory; 0: none.", "gauge", memory(func(m *counters.Memory) uint64 { return m.Limit })},
	{
		"container_spec_memory_swap_limit_bytes", "Limit of swap space; 0: none.", "gauge",
		memory(func(m *counters.Memory) uint64 { return m.SwapLimit }),
	},
	{
		"container_spec_memory_reservation_limit_bytes", "Memory that is kept when it is short; 0: none.", "gauge",
		memory(func(m *counters.Memory) uint64 { return m.Reserved }),
	},

	{
		"container_network_receive_bytes_total", "Bytes received.", "counter",
		network(func(i *counters.Interface) uint64 { return i.ReceivedBytes }),
	},
	{
		"container_network_receive_packets_total", "Packets received.", "counter",
		packets(func(i *counters.Interface) uint64 { return i.ReceivedPackets }),
	},
	{
		"container_network_receive_errors_total", "Errors of receiving.", "counter",
		network(func(i *counters.Interface) uint64 { return i.ReceiveErrors }),
	},
	{
		"container_network_receive_packets_dropped_total", "Packets that came and were dropped.", "counter",
		packets(func(i *counters.Interface) uint64 { return i.ReceiveDropped }),
	},
	{"container_network_transmit_bytes_total", "Bytes sent.", "counter", network(func(i *counters.Interface) uint64 { return i.SentBytes })},
	{
		"container_network_transmit_packets_total", "Packets sent.", "counter",
		packets(func(i *counters.Interface) uint64 { return i.SentPackets }),
	},
	{
		"container_network_transmit_errors_total", "Errors of sending.", "counter",
		network(func(i *counters.Interface) uint64 { return i.SendErrors }),
	},
	{
		"container_network_transmit_packets_dropped_total", "Packets that were to be sent and were dropped.", "counter",
		packets(func(i *counters.Interface) uint64 { return i.SendDropped }),
	},

	{
		"container_fs_usage_bytes", "Bytes of the file system that are in use, by the container's own files.", "gauge",
		files(func(f *FileSystem) (uint64, bool) { return f.Used, true }),
	},
	{
		"container_fs_limit_bytes", "Size of the file system in bytes.", "gauge",
		files(func(f *FileSystem) (uint64, bool) { return f.Size, true }),
	},
	{
		"container_fs_inodes_total", "Inodes of the file system.", "gauge",
		files(func(f *FileSystem) (uint64, bool) { return f.Inodes, f.Inodes > 0 }),
	},
	{
		"container_fs_inodes_free", "Inodes of the file system that are free.", "gauge",
		files(func(f *FileSystem) (uint64, bool) { return f.InodesFree, f.Inodes > 0 }),
	},
	{"container_fs_reads_total", "Reads from the device.", "counter", disks(func(d *counters.Disk) uint64 { return d.Reads })},
	{"container_fs_reads_bytes_total", "Bytes read from the device.", "counter", disks(func(d *counters.Disk) uint64 { return d.ReadBytes })},
	{"container_fs_writes_total", "Writes to the device.", "counter", disks(func(d *counters.Disk) uint64 { return d.Writes })},
	{
		"container_fs_writes_bytes_total", "Bytes written to the device.", "counter",
		disks(func(d *counters.Disk) uint64 { return d.WrittenBytes }),
	},

	{"container_processes", "Processes.", "gauge", tasks(func(t *counters.Tasks) uint64 { return t.Processes })},
	{"container_threads", "Threads.", "gauge", tasks(func(t *counters.Tasks) uint64 { return t.Threads })},
	{"container_threads_max", "Limit of threads; 0: none.", "gauge", tasks(func(t *counters.Tasks) uint64 { return t.MostThreads })},
	{"container_start_time_seconds", "When it was started, in seconds since 1970.", "gauge", func(s *Subject) []value {
		return told(float64(s.Started.UnixMilli())/1000, !s.Started.IsZero())
	}},

	{"container_pressure_cpu_waiting_seconds_total", "Time in which a task waited for a processor.", "counter", pressure("cpu", some)},
	{"container_pressure_cpu_stalled_seconds_total", "Time in which all tasks waited for a processor.", "counter", pressure("cpu", full)},
	{"container_pressure_memory_waiting_seconds_total", "Time in which a task waited for memory.", "counter", pressure("memory", some)},
	{"container_pressure_memory_stalled_seconds_total", "Time in which all tasks waited for memory.", "counter", pressure("memory", full)},
	{"container_pressure_io_waiting_seconds_total", "Time in which a task waited for a device.", "counter", pressure("io", some)},
	{"container_pressure_io_stalled_seconds_total", "Time in which all tasks waited for a device.", "counter", pressure("io", full)},
}
