// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/wasmplane/wasmplane/core/admission"
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

// TestAComponentHasNoNodeTable: the host keeps it in a module's memory.
func TestAComponentHasNoNodeTable(t *testing.T) {
	dir := t.TempDir()
	const table = `{"abi": 1, "name": "denies", "version": "1.0.0", "settings": true, "hooks": [{"op": 2, "point": "scheduling.table", "columns": [{"path": "pods", "type": "int"}]}]}`
	if err := os.WriteFile(filepath.Join(dir, "denies.wasm"), describing(table), 0o600); err != nil {
		t.Fatal(err)
	}
	l := newLoader(t, loader.Config{InProcess: true, Dir: dir, Entries: entries(t, `
plugins:
  - name: denies
    source: file:denies.wasm
`)})
	if err := l.Load(t.Context()); err == nil || !strings.Contains(err.Error(),
		"no memory in which the host keeps the node table (scheduling.table)") {
		t.Errorf("got %v", err)
	}
}
