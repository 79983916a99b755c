// SPDX-License-Identifier: Apache-2.0

package counters_test

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/wasmplane/wasmplane/core/kubelet/counters"
)

// tree writes files below a folder, which stands for the kernel's.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

var proc = map[string]string{
	"proc/diskstats": "   7  0 loop0 0 0 0 0 0 0 0 0 0\n 254  0 vda 495960 53341 2000 376457 243926 287788 4000 228147 0 78620 618257",
	"proc/meminfo":   "MemTotal:        1024 kB\nMemFree: 5 kB\nSwapTotal:          2 kB",
	"proc/self/net/dev": "Inter-|   Receive\n face |bytes\n    lo: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n" +
		"veth12: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n  eth0: 10 2 3 4 0 0 0 0 50 6 7 8 0 0 0 0",
	"proc/42/net/dev": "    lo: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n  eth0: 100 20 30 40 0 0 0 0 500 60 70 80 0 0 0 0",
}

func with(files map[string]string) map[string]string {
	for name, text := range proc {
		files[name] = text
	}
	return files
}

func reader(root string, mounts map[string]string) *counters.Reader {
	full := map[string]string{}
	for name, dir := range mounts {
		full[name] = filepath.Join(root, dir)
	}
	return counters.New(counters.Config{Mounts: full, Proc: filepath.Join(root, "proc"), Pods: "/w/pods", Machine: counters.Machine{ID: "m"}})
}

func ptr(n uint64) *uint64 { return &n }

func TestVersion2(t *testing.T) {
	const dir = "cgroup/w/pods/burstable/podu/"
	r := reader(tree(t, with(map[string]string{
		dir + "memory.current":       "900",
		dir + "c/cgroup.procs":       "42",
		dir + "c/below/cgroup.procs": "43\n44",
		dir + "c/cpu.stat": "usage_usec 5000000\nuser_usec 3000000\nsystem_usec 2000000\n" +
			"nr_periods 10\nnr_throttled 4\nthrottled_usec 250000",
		dir + "c/cpu.max":             "50000 100000",
		dir + "c/cpu.weight":          "39",
		dir + "c/memory.current":      "1000",
		dir + "c/memory.stat":         "anon 500\nfile 300\nfile_mapped 20\ninactive_file 100\npgfault 7\npgmajfault 2",
		dir + "c/memory.max":          "2000",
		dir + "c/memory.low":          "0",
		dir + "c/memory.peak":         "1500",
		dir + "c/memory.swap.current": "11",
		dir + "c/memory.swap.max":     "max",
		dir + "c/memory.events":       "low 0\nhigh 0\nmax 6\noom 1\noom_kill 1",
		dir + "c/pids.current":        "9",
		dir + "c/pids.max":            "max",
		dir + "c/io.stat": "254:0 rbytes=4096 wbytes=8192 rios=1 wios=2 dbytes=0 dios=0\n" +
			"9:9 rbytes=1 wbytes=1 rios=1 wios=1\n7:0",
		dir + "c/cpu.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=30\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=10",
	})), map[string]string{"": "cgroup"})
	pod := r.Pod("u")
	if pod != "/w/pods/burstable/podu" {
		t.Fatalf("the pod's cgroup is %q", pod)
	}
	l := r.Look()
	got, ok := l.Group(pod + "/c")
	want := counters.Group{
		CPU: &counters.CPU{
			Usage: 5 * time.Second, User: 3 * time.Second, System: 2 * time.Second, Periods: 10, Throttled: 4,
			ThrottledTime: 250 * time.Millisecond, Quota: 50 * time.Millisecond, Period: 100 * time.Millisecond, Shares: 998,
		},
		Memory: &counters.Memory{
			Usage: 1000, WorkingSet: 900, RSS: 500, Cache: 300, Mapped: 20, Swap: 11, Most: ptr(1500), Failures: 6, Faults: 7, MajorFaults: 2,
			OOMKills: 1, Limit: 2000,
		},
		Tasks:    &counters.Tasks{Processes: 3, Threads: 9},
		Disks:    []counters.Disk{{Device: "/dev/vda", Reads: 1, ReadBytes: 4096, Writes: 2, WrittenBytes: 8192}},
		Pressure: []counters.Pressure{{Of: "cpu", Some: 30 * time.Microsecond, Full: 10 * time.Microsecond}},
	}
	if !ok || !reflect.DeepEqual(got, want) {
		t.Fatalf("got\n%+v\n%+v\n%+v\nwant\n%+v\n%+v\n%+v", got, got.CPU, got.Memory, want, want.CPU, want.Memory)
	}
	// The processes of below have no entry in proc: the network is that of one in the cgroup itself.
	if got, want := l.Network(pod+"/c"), []counters.Interface{{
		Name: "eth0", ReceivedBytes: 100, ReceivedPackets: 20, ReceiveErrors: 30, ReceiveDropped: 40, SentBytes: 500, SentPackets: 60,
		SendErrors:  70,
		SendDropped: 80,
	}}; !reflect.DeepEqual(got, want) {
		t.Fatalf("network: %+v, want %+v", got, want)
	}
}

func TestVersion1(t *testing.T) {
	const dir = "/w/pods/podu/c/"
	none := "9223372036854771712"
	r := reader(tree(t, with(map[string]string{
		"cpuacct" + dir + "cpuacct.usage": "5000000000", "cpuacct" + dir + "cpuacct.stat": "user 300\nsystem 200",
		"cpu" + dir + "cpu.stat":                       "nr_periods 10\nnr_throttled 4\nthrottled_time 250000000",
		"cpu" + dir + "cpu.cfs_quota_us":               "-1",
		"cpu" + dir + "cpu.cfs_period_us":              "100000",
		"cpu" + dir + "cpu.shares":                     "1024",
		"memory" + dir + "memory.usage_in_bytes":       "1000",
		"memory" + dir + "memory.max_usage_in_bytes":   "1500",
		"memory" + dir + "memory.failcnt":              "6",
		"memory" + dir + "memory.limit_in_bytes":       "2000",
		"memory" + dir + "memory.memsw.limit_in_bytes": "2500",
		"memory" + dir + "memory.soft_limit_in_bytes":  none,
		"memory" + dir + "memory.oom_control":          "oom_kill_disable 0\nunder_oom 0\noom_kill 1",
		"memory" + dir + "memory.stat": "cache 1\ntotal_cache 300\ntotal_rss 500\ntotal_mapped_file 20\ntotal_swap 11\ntotal_pgfault 7\n" +
			"total_pgmajfault 2\ntotal_inactive_file 1100",
		"pids" + dir + "pids.current": "9", "pids" + dir + "pids.max": "12", "pids" + dir + "cgroup.procs": "42",
		"blkio" + dir + "blkio.throttle.io_service_bytes_recursive": "254:0 Read 4096\n254:0 Write 8192\n254:0 Sync 1\nTotal 12288",
		"blkio" + dir + "blkio.throttle.io_serviced_recursive":      "254:0 Read 1\n254:0 Write 2\nTotal 3",
	})), map[string]string{"cpu": "cpu", "cpuacct": "cpuacct", "memory": "memory", "pids": "pids", "blkio": "blkio"})
	got, ok := r.Look().Group(r.Pod("u") + "/c")
	want := counters.Group{
		CPU: &counters.CPU{
			Usage: 5 * time.Second, User: 3 * time.Second, System: 2 * time.Second, Periods: 10, Throttled: 4,
			ThrottledTime: 250 * time.Millisecond, Period: 100 * time.Millisecond, Shares: 1024,
		},
		Memory: &counters.Memory{ // more is inactive than is used, which a kernel may say of two moments
			Usage: 1000, RSS: 500, Cache: 300, Mapped: 20, Swap: 11, Most: ptr(1500), Failures: 6, Faults: 7, MajorFaults: 2, OOMKills: 1,
			Limit: 2000, SwapLimit: 500,
		},
		Tasks: &counters.Tasks{Processes: 1, Threads: 9, MostThreads: 12},
		Disks: []counters.Disk{{Device: "/dev/vda", Reads: 1, ReadBytes: 4096, Writes: 2, WrittenBytes: 8192}},
	}
	if !ok || !reflect.DeepEqual(got, want) {
		t.Fatalf("got\n%+v\n%+v\n%+v\nwant\n%+v\n%+v\n%+v", got, got.CPU, got.Memory, want, want.CPU, want.Memory)
	}
}

func TestWhatHasGoneIsLeftOut(t *testing.T) {
	r := reader(tree(t, with(map[string]string{"cgroup/w/pods/podu/memory.current": "1"})), map[string]string{"": "cgroup"})
	l := r.Look()
	if g, ok := l.Group("/w/pods/podx"); ok {
		t.Errorf("a cgroup that is not there: %+v", g)
	}
	if got := r.Pod("x"); got != "" {
		t.Errorf("a pod without a cgroup has %q", got)
	}
	if got := r.Pod("u/.."); got != "" {
		t.Errorf("a UID that is a path has %q", got)
	}
	if got := l.Network("/w/pods/podu"); got != nil {
		t.Errorf("a cgroup without processes has the network %+v", got)
	}
	if g, ok := l.Group("/w/pods/podu"); !ok || g.CPU != nil || g.Tasks != nil || len(g.Disks) > 0 || g.Memory.Most != nil {
		t.Errorf("a cgroup with one controller: %+v", g)
	}
}

func TestTheMachine(t *testing.T) {
	l := reader(tree(t, with(map[string]string{})), map[string]string{"": "cgroup"}).Look()
	if got, want := l.MachineNetwork(), []counters.Interface{{
		Name: "eth0", ReceivedBytes: 10, ReceivedPackets: 2, ReceiveErrors: 3, ReceiveDropped: 4, SentBytes: 50, SentPackets: 6, SendErrors: 7,
		SendDropped: 8,
	}}; !reflect.DeepEqual(got, want) {
		t.Errorf("network: %+v, want %+v", got, want)
	}
	if got, want := l.MachineDisks(), []counters.Disk{{
		Device: "/dev/vda", Reads: 495960, ReadBytes: 2000 * 512, Writes: 243926, WrittenBytes: 4000 * 512,
	}}; !reflect.DeepEqual(got, want) {
		t.Errorf("disks: %+v, want %+v", got, want)
	}
	if used, free := l.MachineSwap(); used != 2048 || free != 0 {
		t.Errorf("%d bytes of swap are used, %d are free", used, free)
	}
	if memory, swap := l.MachineMemory(); memory != 1<<20 || swap != 2048 {
		t.Errorf("memory %d, swap %d", memory, swap)
	}
}
