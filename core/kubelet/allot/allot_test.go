// SPDX-License-Identifier: Apache-2.0

package allot_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/utils/cpuset"
	"pgregory.net/rapid"

	"github.com/wasmplane/wasmplane/core/kubelet/allot"
)

// machine of sockets with NUMA nodes with cores with threads; siblings are far apart, as on real ones.
func machine(sockets, nodes, cores, threads int) *allot.Machine {
	m := &allot.Machine{Memory: map[int]map[string]int64{}}
	n := sockets * nodes * cores
	for i := range n * threads {
		core := i % n
		node := core / cores
		m.CPUs = append(m.CPUs, allot.CPU{ID: i, Core: core, Node: node, Socket: node / nodes, Cache: core / max(cores/2, 1)})
		m.Memory[node] = map[string]int64{"memory": 16 << 30}
	}
	return m
}

// TestTake is what a static policy gives on a machine with two sockets of one node of four cores of two threads.
func TestTake(t *testing.T) {
	m := machine(2, 1, 4, 2)
	for _, c := range []struct {
		what, free string
		n          int
		near       allot.Nodes
		o          allot.Options
		want, err  string
	}{
		{what: "one", free: "0-15", n: 1, want: "0"},
		{what: "a core", free: "0-15", n: 2, want: "0,8"},
		{what: "the rest of a core first", free: "1-15", n: 1, want: "8"},
		{what: "a whole socket", free: "0-15", n: 8, want: "0-3,8-11"},
		{what: "a socket and a core", free: "0-15", n: 10, want: "0-4,8-12"},
		{what: "the socket with less room", free: "0-3,6-11,14-15", n: 4, want: "6-7,14-15"},
		{what: "nearby", free: "0-15", n: 2, near: allot.NodesOf(1), want: "4,12"},
		{what: "more than there is nearby", free: "0-4,8-12", n: 4, near: allot.NodesOf(1), want: "0,4,8,12"},
		{what: "too many", free: "0-3", n: 5, err: "requested=5, available=4"},
		{what: "whole cores alone", free: "0-3,8", n: 2, o: allot.Options{FullCores: true}, want: "0,8"},
		{what: "no whole cores", free: "0-3", n: 2, o: allot.Options{FullCores: true}, err: "requested=2, available=0"},
		{what: "spread", free: "0-15", n: 10, o: allot.Options{Distribute: true}, want: "0-2,4-6,8-9,12-13"},
		{what: "not spread: one node has enough", free: "0-15", n: 4, o: allot.Options{Distribute: true}, want: "0-1,8-9"},
		{what: "one cache", free: "1-15", n: 4, o: allot.Options{AlignCaches: true}, want: "2-3,10-11"},
	} {
		free, err := cpuset.Parse(c.free)
		if err != nil {
			t.Fatal(err)
		}
		got, err := m.Take(free, c.n, c.near, c.o)
		switch {
		case c.err == "" && (err != nil || got.String() != c.want):
			t.Errorf("%s: %s, %v, want %s", c.what, got, err, c.want)
		case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
			t.Errorf("%s: %s, %v, want %q", c.what, got, err, c.err)
		}
	}
}

// TestWhatIsTakenIsFree, is as much as was asked for, of whole cores where that is wanted, and
// of the near nodes as far as there is enough.
func TestWhatIsTakenIsFree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		threads := rapid.IntRange(1, 2).Draw(t, "threads")
		m := machine(rapid.IntRange(1, 2).Draw(t, "sockets"), rapid.IntRange(1, 2).Draw(t, "nodes"), rapid.IntRange(1, 4).Draw(t, "cores"),
			threads)
		var ids []int
		for _, c := range m.CPUs {
			if rapid.Bool().Draw(t, "free") {
				ids = append(ids, c.ID)
			}
		}
		free := cpuset.New(ids...)
		o := allot.Options{
			FullCores: rapid.Bool().Draw(t, "full"), Distribute: rapid.Bool().Draw(t, "distribute"), AlignCaches: rapid.Bool().Draw(t, "caches"),
		}
		n := rapid.IntRange(1, len(m.CPUs)).Draw(t, "n")
		if o.FullCores {
			n = (n + threads - 1) / threads * threads
		}
		near := allot.Nodes(rapid.IntRange(0, int(m.Nodes())).Draw(t, "near")) & m.Nodes()
		usable := m.Usable(free, o)
		got, err := m.Take(free, n, near, o)
		if usable.Size() < n {
			if err == nil {
				t.Fatalf("%d of %s: %s", n, usable, got)
			}
			return
		}
		switch {
		case err != nil:
			t.Fatal(err)
		case got.Size() != n || !got.IsSubsetOf(usable):
			t.Fatalf("%d of %s: %s", n, usable, got)
		case o.FullCores && !m.Usable(got, o).Equals(got):
			t.Fatalf("%s are no whole cores", got)
		}
		here := m.Of(near).Intersection(usable)
		if want := min(here.Size(), n); got.Intersection(here).Size() < want {
			t.Fatalf("%s: %d of %s are near, of which %d should be", got, got.Intersection(here).Size(), here, want)
		}
	})
}

// TestMerge is upstream's choice by policy.
func TestMerge(t *testing.T) {
	one, two, both := allot.NodesOf(0), allot.NodesOf(1), allot.NodesOf(0, 1)
	for _, c := range []struct {
		what      string
		resources []allot.Hints
		want      allot.Hint
		// admitted by restricted, and by single-numa-node; best-effort takes all.
		restricted, single bool
	}{
		{"nothing that cares", []allot.Hints{nil, nil}, allot.Hint{Nodes: both, Preferred: true}, true, true},
		{"one node", []allot.Hints{{{one, true}, {two, true}, {both, false}}}, allot.Hint{Nodes: one, Preferred: true}, true, true},
		{"the same node", []allot.Hints{{{one, true}, {two, true}}, {{two, true}, {both, false}}}, allot.Hint{Nodes: two, Preferred: true}, true, true},
		{"different nodes", []allot.Hints{{{one, true}, {both, false}}, {{two, true}, {both, false}}}, allot.Hint{Nodes: one}, false, false},
		{"two that are needed", []allot.Hints{{{both, true}}}, allot.Hint{Nodes: both, Preferred: true}, true, false},
		{
			"one of the two that another needs",
			[]allot.Hints{{{one, true}, {two, true}, {both, false}}, {{both, true}}},
			allot.Hint{Nodes: both},
			false, false,
		},
		{"none that can", []allot.Hints{{}}, allot.Hint{Nodes: both}, false, false},
	} {
		got, admit := allot.Merge(allot.BestEffort, both, c.resources)
		if got != c.want || !admit {
			t.Errorf("%s: %+v, want %+v", c.what, got, c.want)
		}
		if _, admit := allot.Merge(allot.Restricted, both, c.resources); admit != c.restricted {
			t.Errorf("%s: restricted: %v", c.what, admit)
		}
		if _, admit := allot.Merge(allot.SingleNUMANode, both, c.resources); admit != c.single {
			t.Errorf("%s: single-numa-node: %v", c.what, admit)
		}
		if got, admit := allot.Merge(allot.AnyNodes, both, c.resources); !admit || got.Nodes != both {
			t.Errorf("%s: none: %+v", c.what, got)
		}
	}
}

// TestMergeChoosesWhatAllCanDo: the nodes that are chosen and preferred lie within a hint of each resource.
func TestMergeChoosesWhatAllCanDo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := allot.NodesOf(0, 1, 2)
		var resources []allot.Hints
		for range rapid.IntRange(0, 3).Draw(t, "resources") {
			h := allot.Hints{}
			for range rapid.IntRange(0, 4).Draw(t, "hints") {
				h = append(h, allot.Hint{Nodes: allot.Nodes(rapid.IntRange(1, 7).Draw(t, "nodes")), Preferred: rapid.Bool().Draw(t, "preferred")})
			}
			resources = append(resources, h)
		}
		for _, policy := range []allot.Policy{allot.BestEffort, allot.Restricted, allot.SingleNUMANode} {
			best, admit := allot.Merge(policy, all, resources)
			if best.Nodes == 0 || best.Nodes&^all != 0 {
				t.Fatalf("%s: %+v", policy, best)
			}
			if admit && policy == allot.SingleNUMANode && len(resources) > 0 && best.Nodes.Len() != 1 {
				t.Fatalf("%s takes %+v", policy, best)
			}
			if !admit || !best.Preferred {
				continue
			}
			for _, hints := range resources {
				ok := false
				for _, h := range hints {
					ok = ok || h.Preferred && best.Nodes&^h.Nodes == 0
				}
				if !ok {
					t.Fatalf("%s: %+v of %+v", policy, best, resources)
				}
			}
		}
	})
}

// TestMemoryIsNeverGivenTwice, and nodes that are shared by blocks are shared whole.
func TestMemoryIsNeverGivenTwice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := &allot.Ledger{Allocatable: map[int]map[string]int64{0: {"memory": 10}, 1: {"memory": 10}, 2: {"memory": 10, "hugepages-2Mi": 4}}}
		for range rapid.IntRange(1, 12).Draw(t, "times") {
			if len(l.Blocks) > 0 && rapid.Bool().Draw(t, "back") {
				l.Blocks = l.Blocks[1:]
				continue
			}
			asked := map[string]int64{"memory": int64(rapid.IntRange(1, 20).Draw(t, "memory"))}
			if rapid.Bool().Draw(t, "huge") {
				asked["hugepages-2Mi"] = 2
			}
			_, _ = l.Take(asked, allot.Nodes(rapid.IntRange(0, 7).Draw(t, "near"))) //nolint:errcheck // whether there is room is not the matter
		}
		for _, b := range l.Blocks {
			room, used := int64(0), int64(0)
			for _, id := range b.Nodes.List() {
				room += l.Allocatable[id][b.Kind]
			}
			for _, other := range l.Blocks {
				switch {
				case other.Nodes != b.Nodes && other.Nodes&b.Nodes != 0:
					t.Fatalf("%v and %v overlap", b, other)
				case other.Nodes == b.Nodes && other.Kind == b.Kind:
					used += other.Bytes
				}
			}
			if used > room {
				t.Fatalf("%v: %d of %d", b, used, room)
			}
		}
	})
}

// TestMemoryNearby is taken where it is enough, and of more nodes where not.
func TestMemoryNearby(t *testing.T) {
	for _, c := range []struct {
		bytes int64
		near  allot.Nodes
		want  string
	}{{5, 0, "0"}, {5, allot.NodesOf(1), "1"}, {15, allot.NodesOf(1), "0-1"}, {20, 0, "0-1"}} {
		l := &allot.Ledger{Allocatable: map[int]map[string]int64{0: {"memory": 10}, 1: {"memory": 10}}}
		got, err := l.Take(map[string]int64{"memory": c.bytes}, c.near)
		if err != nil || got[0].Nodes.String() != c.want {
			t.Errorf("%d near %s: %v, %v, want %s", c.bytes, c.near, got, err, c.want)
		}
		if _, err := l.Take(map[string]int64{"memory": 20}, 0); err == nil {
			t.Error("more than there is was given")
		}
	}
}

// TestDeviceHints: what says nothing of its nodes goes anywhere.
func TestDeviceHints(t *testing.T) {
	all := allot.NodesOf(0, 1)
	if got := allot.DeviceHints(all, 1, []allot.Nodes{0, 0}, []allot.Nodes{0}); got != nil {
		t.Errorf("%v", got)
	}
	on := []allot.Nodes{allot.NodesOf(0), allot.NodesOf(1), allot.NodesOf(1)}
	if got := allot.DeviceHints(all, 2, on, on); len(got) != 2 || got[0] != (allot.Hint{Nodes: 2, Preferred: true}) || got[1].Preferred {
		t.Errorf("%v", got)
	}
	if got := allot.DeviceHints(all, 2, on, on[:1]); got == nil || len(got) != 0 {
		t.Errorf("%v", got)
	}
}

// TestRead reads this machine, and one of files.
func TestRead(t *testing.T) {
	if m, err := allot.Read("/sys"); err != nil || len(m.CPUs) == 0 {
		t.Errorf("%+v, %v", m, err)
	}
	dir := t.TempDir()
	for file, text := range map[string]string{
		"cpu/online": "0-3\n", "node/online": "0-1\n", "node/node0/cpulist": "0,2\n", "node/node1/cpulist": "1,3\n",
		"node/node0/meminfo": "Node 0 MemTotal:       2048 kB\n", "node/node1/meminfo": "Node 1 MemTotal:       1024 kB\n",
		"node/node0/hugepages/hugepages-512kB/nr_hugepages": "2\n",
		"cpu/cpu0/topology/thread_siblings_list":            "0,2\n", "cpu/cpu2/topology/thread_siblings_list": "0,2\n",
		"cpu/cpu1/topology/physical_package_id": "1\n", "cpu/cpu3/cache/index0/level": "3\n", "cpu/cpu3/cache/index0/shared_cpu_list": "1,3\n",
	} {
		path := filepath.Join(dir, "devices/system", file)
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	m, err := allot.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	if c := m.CPUs[3]; len(m.CPUs) != 4 || m.CPUs[2].Core != 0 || m.CPUs[1].Socket != 1 || c.Node != 1 || c.Cache != 1 ||
		m.ThreadsPerCore() != 2 {
		t.Errorf("%+v", m.CPUs)
	}
	if m.Memory[0]["memory"] != 1<<20 || m.Memory[0]["hugepages-512Ki"] != 1<<20 || m.Memory[1]["memory"] != 1<<20 {
		t.Errorf("%v", m.Memory)
	}
}
