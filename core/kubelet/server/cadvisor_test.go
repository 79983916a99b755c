// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/counters"
)

// counted is a node whose pod p has the UID of the runtime's statistics, and cgroups.
type counted struct {
	*node
	reader *counters.Reader
}

func (n counted) Counters() *counters.Reader { return n.reader }

// cgroups of version 2, in files of a test.
func cgroups(t *testing.T) *counters.Reader {
	t.Helper()
	root := t.TempDir()
	for name, text := range map[string]string{
		"g/w/pods/memory.current":         "900",
		"g/w/pods/podu/memory.current":    "800",
		"g/w/pods/podu/sb/memory.current": "1",
		"g/w/pods/podu/sb/cgroup.procs":   "42",
		"g/w/pods/podu/id/memory.current": "600",
		"g/w/pods/podu/id/memory.stat":    "anon 500\ninactive_file 100",
		"g/w/pods/podu/id/cpu.stat":       "usage_usec 3000000\nuser_usec 2\nsystem_usec 1\nnr_periods 8\nnr_throttled 2\nthrottled_usec 500000",
		"g/w/pods/podu/id/cpu.max":        "20000 100000",
		"g/w/pods/podu/id/io.stat":        "254:0 rbytes=4096 wbytes=8192 rios=1 wios=2",
		"proc/diskstats":                  "254 0 vda 1 0 8 0 1 0 8 0 0 0",
		"proc/42/net/dev":                 "eth0: 100 20 30 40 0 0 0 0 500 60 70 80 0 0 0 0",
		"proc/meminfo":                    "MemTotal: 4 kB",
	} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return counters.New(counters.Config{
		Mounts: map[string]string{"": filepath.Join(root, "g")}, Proc: filepath.Join(root, "proc"), Pods: "/w/pods",
		Machine: counters.Machine{ID: "m", Boot: "b", UUID: "s"},
	})
}

func TestCAdvisorsMetrics(t *testing.T) {
	w := start(t)
	p := aPod("p")
	p.UID = "u"
	p.Status.ContainerStatuses[0].ContainerID, p.Status.ContainerStatuses[0].Image = "containerd://id", "shop:1"
	w.server.Add(counted{&node{name: "n3", rt: w.rt, pods: []*corev1.Pod{p}}, cgroups(t)})
	_, page := w.do("admin", "GET", "/metrics/cadvisor?node=n3")
	const container = `container="c",id="/w/pods/podu/id",image="shop:1",name="id",namespace="ns",pod="p"} `
	const sandbox = `container="",id="/w/pods/podu/sb",image="pause:1",name="sb",namespace="ns",pod="p"} `
	const pod = `container="",id="/w/pods/podu",image="",name="",namespace="ns",pod="p"} `
	for _, want := range []string{
		`container_cpu_usage_seconds_total{cpu="total",` + container + "3\n", // of the cgroup
		`container_cpu_usage_seconds_total{cpu="total",` + pod + "5\n",       // of the runtime: the pod's cgroup has no such file
		"container_cpu_cfs_periods_total{" + container + "8\n",
		"container_cpu_cfs_throttled_periods_total{" + container + "2\n",
		"container_cpu_cfs_throttled_seconds_total{" + container + "0.5\n",
		"container_spec_cpu_quota{" + container + "20000\n",
		"container_memory_usage_bytes{" + container + "600\n",
		"container_memory_usage_bytes{" + pod + "800\n",
		"container_memory_working_set_bytes{" + container + "500\n",
		`container_fs_reads_bytes_total{device="/dev/vda",` + container + "4096\n",
		`container_fs_usage_bytes{device="",` + container + "100\n",
		`container_network_receive_bytes_total{interface="eth0",` + sandbox + "100\n",
		`container_network_transmit_packets_dropped_total{interface="eth0",` + sandbox + "80\n",
		`container_memory_usage_bytes{container="",id="/w/pods",image="",name="",namespace="",pod=""} 900` + "\n",
		`machine_memory_bytes{boot_id="b",machine_id="m",system_uuid="s"} 4096` + "\n",
		"container_scrape_error 0",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("no %s", want)
		}
	}
	if strings.Contains(page, "container_memory_max_usage_bytes") {
		t.Error("the most memory that was used is told, and no kernel has told it")
	}
	if t.Failed() {
		t.Log(page)
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	if _, err := parser.TextToMetricFamilies(strings.NewReader(page + "\n")); err != nil {
		t.Errorf("the page is not of the format: %v", err)
	}
	// Of nodes without cgroups, what the runtime tells; of several nodes, nothing of their machines.
	_, page = w.do("admin", "GET", "/metrics/cadvisor")
	const told = `container_memory_working_set_bytes{container="",id="",image="",name="",namespace="ns",pod="p"} 42` + "\n"
	if !strings.Contains(page, told) || strings.Contains(page, "machine_") || strings.Contains(page, `id="/"`) {
		t.Errorf("of three nodes: %s", page)
	}
}
