// SPDX-License-Identifier: Apache-2.0

package resourcemetrics

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

const aPage = `# HELP container_cpu_usage_seconds_total [STABLE] Cumulative cpu time consumed by the container in core-seconds
# TYPE container_cpu_usage_seconds_total counter
container_cpu_usage_seconds_total{container="c",namespace="ns",pod="p"} 4.5 1700000000000
container_memory_working_set_bytes{container="c",namespace="ns",pod="p"} 1.048576e+06 1700000000000
container_start_time_seconds{container="c",namespace="ns",pod="p"} 1.6999999999e+09
container_cpu_usage_seconds_total{ pod="p" , namespace="ns", container="quo\"te}" } 1
container_swap_usage_bytes{container="c",namespace="ns",pod="p"} 7
node_cpu_usage_seconds_total 100 1700000000000
node_memory_working_set_bytes 200
pod_cpu_usage_seconds_total{namespace="ns",pod="p"} 4.5
resource_scrape_error 0
`

func TestReadPage(t *testing.T) {
	now := time.UnixMilli(1700000001000)
	p, err := readPage(strings.NewReader(aPage), now)
	if err != nil {
		t.Fatal(err)
	}
	at := time.UnixMilli(1700000000000)
	if p.node != (point{cpu: 100, memory: 200, at: at, has: hasCPU | hasMemory}) {
		t.Errorf("node: %+v", p.node)
	}
	c := p.pods[podName{"ns", "p"}]
	if len(p.pods) != 1 || len(c) != 2 || c["c"] == nil || c[`quo"te}`] == nil {
		t.Fatalf("pods: %+v", p.pods)
	}
	if *c["c"] != (point{cpu: 4.5, memory: 1 << 20, at: at, started: time.Unix(1699999999, 900000095), has: hasCPU | hasMemory}) {
		t.Errorf("container: %+v", *c["c"])
	}
	if q := c[`quo"te}`]; q.cpu != 1 || !q.at.Equal(now) || q.whole() {
		t.Errorf("the other container: %+v", *q)
	}
}

// A node may say anything; what is kept of it is bounded and makes sense.
func TestHostilePages(t *testing.T) {
	now := time.Unix(1700000000, 0)
	const of = `container_cpu_usage_seconds_total{container="c",namespace="ns",pod="p"} `
	for _, text := range []string{
		of + "NaN", of + "-1", of + "+Inf", of + "1e300", of + "1 2 3", of + "1 x", of, "{} 1", "node_cpu_usage_seconds_total{",
		`node_cpu_usage_seconds_total{a="b} 1`,
		`container_cpu_usage_seconds_total{container="c",pod="p"} 1`, "container_cpu_usage_seconds_total 1", "node_cpu_usage_seconds_total",
		`container_cpu_usage_seconds_total{container=` + "`c`" + `,namespace="ns",pod="p"} 1`,
		`container_cpu_usage_seconds_total{container="\q",namespace="ns",pod="p"} 1`,
	} {
		p, err := readPage(strings.NewReader(text+"\n"), now)
		if err != nil {
			t.Errorf("%q: %v", text, err)
		} else if len(p.pods) != 0 || p.node.has != 0 {
			t.Errorf("%q was believed: %+v %+v", text, p.node, p.pods)
		}
	}
	p, err := readPage(strings.NewReader(of+"1 9999999999999\n"), now)
	if err != nil || !p.pods[podName{"ns", "p"}]["c"].at.Equal(now) {
		t.Errorf("a time in the future was believed, %v", err)
	}
	var many strings.Builder
	for i := range containersMost + 1 {
		fmt.Fprintf(&many, "container_cpu_usage_seconds_total{container=\"c%d\",namespace=\"ns\",pod=\"p\"} 1\n", i)
	}
	for name, text := range map[string]string{
		"a long line": strings.Repeat("x", lineMost+1), "many containers": many.String(),
		"a long page": strings.Repeat("# nothing\n", pageMost/10+1),
	} {
		if _, err := readPage(strings.NewReader(text), now); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func FuzzReadPage(f *testing.F) {
	f.Add(aPage)
	f.Add("node_cpu_usage_seconds_total{} 1 1\n")
	f.Fuzz(func(t *testing.T, text string) {
		now := time.Unix(1700000000, 0)
		p, err := readPage(strings.NewReader(text), now)
		if err != nil {
			return
		}
		for _, in := range p.pods {
			for _, c := range in {
				if c.cpu < 0 || c.memory < 0 || c.at.After(now) {
					t.Errorf("believed %+v", *c)
				}
			}
		}
	})
}

// One node of 50 pods: a round of a cluster of 5,000 is a hundred of these.
func BenchmarkReadPage(b *testing.B) {
	var text strings.Builder
	for i := range 50 {
		of := fmt.Sprintf("{container=\"app\",namespace=\"default\",pod=\"web-657c96dddd-%05d\"}", i)
		fmt.Fprintf(&text, "container_cpu_usage_seconds_total%s 123.456 1700000000000\ncontainer_memory_working_set_bytes%s 67108864 1700000000000\ncontainer_start_time_seconds%s 1699999999\n", of, of, of)
		fmt.Fprintf(&text, "pod_cpu_usage_seconds_total{namespace=\"default\",pod=\"web-657c96dddd-%05d\"} 123.456 1700000000000\n", i)
	}
	page, now := text.String(), time.Now()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := readPage(strings.NewReader(page), now); err != nil {
			b.Fatal(err)
		}
	}
}
