// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	ct "github.com/wasmplane/wasmplane/plugins/component/componenttest"
	"github.com/wasmplane/wasmplane/plugins/loader"
)

const (
	described = `{"abi": 1, "name": "denies", "version": "1.0.0", "settings": true, "hooks": [{"op": 2, "point": "admission.validate", "match": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}], "fields": ["object.metadata.name"]}]}`
	reason    = "this component denies everything"
	wrong     = "these settings are too long"
)

// validator is a component of the worlds "validate-plugin" and "configurable": it refuses what it is asked, with a warning,
// and settings of more than 20 bytes.
func validator() []byte { return describing(described) }

// describing is validator with another description.
func describing(described string) []byte {
	c := ct.New()
	text := func(s string) string { return strings.ReplaceAll(s, `"`, `\"`) }
	length := func(s string) string { return strconv.Itoa(len(s)) }
	lib := c.Instantiate(c.Core(`(module (memory (export "memory") 1)
		(data (i32.const 1000) "` + text(described) + `")
		(data (i32.const 2000) "` + reason + `")
		(data (i32.const 2200) "be warned")
		(data (i32.const 2300) "` + wrong + `")
		(func (export "configure") (param i32 i32) (result i32)
			(i32.store8 (i32.const 16) (i32.gt_u (local.get 1) (i32.const 20)))
			(i32.store (i32.const 20) (i32.const 0))
			(if (i32.load8_u (i32.const 16)) (then (i32.store (i32.const 20) (i32.const 2300)) (i32.store (i32.const 24) (i32.const ` + length(
		wrong) + `))))
			(i32.const 16))
		(func (export "realloc") (param i32 i32 i32 i32) (result i32) (i32.const 4096))
		(func (export "describe") (result i32) (i32.store (i32.const 8) (i32.const 1000)) (i32.store (i32.const 12) (i32.const ` + length(
		described) + `)) (i32.const 8))
		(func (export "validate") (param i32 i32) (result i32)
			(i32.store8 (i32.const 24) (i32.const 1))
			(i32.store (i32.const 28) (i32.const 2000)) (i32.store (i32.const 32) (i32.const ` + length(reason) + `))
			(i32.store8 (i32.const 60) (i32.const 1)) (i32.store16 (i32.const 62) (i32.const 418))
			(i32.store (i32.const 200) (i32.const 2200)) (i32.store (i32.const 204) (i32.const 9))
			(i32.store (i32.const 76) (i32.const 200)) (i32.store (i32.const 80) (i32.const 1))
			(i32.const 16)))`))
	memory, realloc := ct.Mem(c.Memory(lib, "memory")), ct.Realloc(c.CoreFunc(lib, "realloc"))
	optional, list := c.Option(ct.String), c.List(ct.String)
	pairs := c.List(c.Tuple(ct.String, ct.String))
	record := c.Type(byte(0x72), 8, "allowed", ct.Bool, "message", optional, "field", optional, "reason", optional,
		"code", c.Option(ct.U16), "patch", optional, "warnings", list, "annotations", pairs)
	decision := ct.Ref(c.Export("decision", ct.TypeSort, record))
	configure := c.FuncType(c.Result(optional, ct.String), ct.String)
	c.Export("configure", ct.Func, c.Lift(c.CoreFunc(lib, "configure"), configure, memory, realloc))
	c.Export("describe", ct.Func, c.Lift(c.CoreFunc(lib, "describe"), c.FuncType(ct.String), memory))
	validate := c.FuncType(c.Result(decision, ct.String), ct.String)
	c.Export("validate", ct.Func, c.Lift(c.CoreFunc(lib, "validate"), validate, memory, realloc))
	return c.Bytes()
}

// TestAComponentTakesPartInAdmission: an entry whose module is a component is like any other: its typed
// decision denies, with its code and its warning.
func TestAComponentTakesPartInAdmission(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "denies.wasm"), validator(), 0o600); err != nil {
		t.Fatal(err)
	}
	l := newLoader(t, loader.Config{InProcess: true, Dir: dir, Entries: entries(t, `
plugins:
  - name: denies
    source: file:denies.wasm
    settings: {short: true}
`)})
	if err := l.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	plugins := l.AdmissionPlugins()
	if len(plugins) != 1 {
		t.Fatalf("%d plugins, status %+v", len(plugins), l.Status())
	}
	r := creating(pod("nginx", nil))()
	v, ok := plugins[0].(admission.Validator)
	if !ok {
		t.Fatalf("a %T", plugins[0])
	}
	err := v.Validate(t.Context(), r)
	if err == nil || !strings.Contains(err.Error(), reason) {
		t.Errorf("got %v, want %q", err, reason)
	}
}

// TestABrokenComponentFailsClosed: what cannot be decoded is an error of the entry that says where.
func TestABrokenComponentFailsClosed(t *testing.T) {
	dir := t.TempDir()
	wasm := append(validator(), 77, 0)
	if err := os.WriteFile(filepath.Join(dir, "denies.wasm"), wasm, 0o600); err != nil {
		t.Fatal(err)
	}
	l := newLoader(t, loader.Config{InProcess: true, Dir: dir, Entries: entries(t, `
plugins:
  - name: denies
    source: file:denies.wasm
`)})
	if err := l.Load(t.Context()); err == nil || !strings.Contains(err.Error(), "malformed section id: 77") {
		t.Errorf("got %v", err)
	}
}

// TestAComponentRefusesSettings: with its own words, when the entry is loaded.
func TestAComponentRefusesSettings(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "denies.wasm"), validator(), 0o600); err != nil {
		t.Fatal(err)
	}
	l := newLoader(t, loader.Config{InProcess: true, Dir: dir, Entries: entries(t, `
plugins:
  - name: denies
    source: file:denies.wasm
    settings: {long: "twenty-one characters and more"}
`)})
	if err := l.Load(t.Context()); err == nil || !strings.Contains(err.Error(), wrong) {
		t.Errorf("got %v, want %q", err, wrong)
	}
}

// judging is a component of the world "table-plugin": a node fits with as much of the first column as the pod's cell is; its score
// is that of the second column.
func judging(columns string) []byte {
	c := ct.New()
	describing := `{"abi": 1, "name": "judges", "version": "1.0.0", "hooks": [{"op": 6, "point": "scheduling.table",
		"columns": [` + columns + `], "pod": [{"path": "requests.milliCPU", "type": "int"}], "reasons": ["too full", "broken"]}]}`
	lib := c.Instantiate(c.Core(`(module (memory (export "memory") 2) (global $end (mut i32) (i32.const 8192))
		(data (i32.const 1000) "` + strings.ReplaceAll(strings.ReplaceAll(describing, "\n\t\t", " "), `"`, `\"`) + `")
		(func (export "realloc") (param i32 i32 i32 i32) (result i32) (local $at i32)
			(local.set $at (i32.and (i32.add (global.get $end) (i32.const 7)) (i32.const -8)))
			(global.set $end (i32.add (local.get $at) (local.get 3)))
			(local.get $at))
		(func (export "describe") (result i32)
			(i32.store (i32.const 8) (i32.const 1000)) (i32.store (i32.const 12) (i32.const ` + strconv.Itoa(len(
		strings.ReplaceAll(describing, "\n\t\t", " "))) + `)) (i32.const 8))
		(func (export "table") (param $pod i32) (param $cells i32) (param $columns i32) (param $count i32) (result i32)
			(local $i i32) (local $n i32)
			(local.set $n (i32.load offset=4 (local.get $columns)))
			(block $end (loop $next
				(br_if $end (i32.ge_u (local.get $i) (local.get $n)))
				(i32.store8 (i32.add (i32.const 4000) (local.get $i))
					(if (result i32) (i64.ge_s
							(i64.load (i32.add (i32.load (local.get $columns)) (i32.mul (local.get $i) (i32.const 8))))
							(i64.load (local.get $pod)))
						(then (i32.add (i32.const 1) (i32.wrap_i64
							(i64.load (i32.add (i32.load offset=8 (local.get $columns)) (i32.mul (local.get $i) (i32.const 8)))))))
						(else (i32.const 129))))
				(local.set $i (i32.add (local.get $i) (i32.const 1)))
				(br $next)))
			(global.set $end (i32.const 8192))
			(i32.store (i32.const 16) (i32.const 0)) (i32.store (i32.const 20) (i32.const 4000)) (i32.store (i32.const 24) (local.get $n))
			(i32.const 16)))`))
	memory, realloc := ct.Mem(c.Memory(lib, "memory")), ct.Realloc(c.CoreFunc(lib, "realloc"))
	c.Export("describe", ct.Func, c.Lift(c.CoreFunc(lib, "describe"), c.FuncType(ct.String), memory))
	cells := c.List(ct.S64)
	table := c.FuncType(c.Result(c.List(ct.U8), ct.String), cells, c.List(cells))
	c.Export("table", ct.Func, c.Lift(c.CoreFunc(lib, "table"), table, memory, realloc))
	return c.Bytes()
}

const freeAndPods = `{"path": "allocatable.milliCPU", "type": "int"}, {"path": "pods", "type": "int"}`

// TestAComponentJudgesNodesByColumns: it gets the cells of all nodes in one call, also those that changed or came since the last one.
func TestAComponentJudgesNodesByColumns(t *testing.T) {
	l := componentLoader(t, "judges", judging(freeAndPods))
	if err := l.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	judge := l.SchedulerPlugins()[0].Plugin.(framework.Judge)
	p := &framework.PodInfo{Pod: pod("a:1", nil)}
	p.Requests.MilliCPU = 600
	judged := func(snap *framework.Snapshot) string {
		t.Helper()
		verdicts, status := judge.Judge(t.Context(), p, snap)
		if !status.IsSuccess() {
			t.Fatal(status)
		}
		var out []string
		for _, v := range verdicts {
			if v.Status.IsSuccess() {
				out = append(out, strconv.FormatInt(v.Score, 10))
			} else {
				out = append(out, strings.Join(v.Status.Reasons, ", "))
			}
		}
		return strings.Join(out, "; ")
	}
	with := func(name string, generation, cpu int64, pods int) *framework.NodeInfo {
		n := node(name, nil, 0, generation)
		n.Allocatable.MilliCPU, n.Pods = cpu, make([]*framework.PodInfo, pods)
		return n
	}
	for _, c := range []struct {
		snap *framework.Snapshot
		want string
	}{
		{snapshotOf(1, with("a", 1, 500, 0), with("b", 2, 1000, 3)), "broken; 3"},
		{snapshotOf(1, with("a", 3, 700, 7), with("b", 2, 1000, 3)), "7; 3"},
		{snapshotOf(2, with("a", 3, 700, 7), with("c", 4, 600, 100), with("b", 2, 1000, 3)), "7; 100; 3"},
		{snapshotOf(3), ""},
	} {
		if got := judged(c.snap); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

func componentLoader(t *testing.T, name string, component []byte) *loader.Loader {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, name+".wasm"), component, 0o600); err != nil {
		t.Fatal(err)
	}
	list := entries(t, "plugins: [{name: "+name+", source: 'file:"+name+".wasm'}]")
	return newLoader(t, loader.Config{InProcess: true, Dir: dir, Entries: list})
}

// TestAComponentWithoutColumns: a hook at the node table that the component has no function for, or that names no column, is refused:
// without one it would not see how many nodes there are.
func TestAComponentWithoutColumns(t *testing.T) {
	const table = `{"abi": 1, "name": "denies", "version": "1.0.0", "settings": true, "hooks": [{"op": 2, "point": "scheduling.table", "columns": [{"path": "pods", "type": "int"}]}]}`
	for want, component := range map[string][]byte{
		"by a function table, which it does not export": describing(table),
		"a node table needs columns":                    judging(""),
	} {
		if err := componentLoader(t, "judges", component).Load(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}
