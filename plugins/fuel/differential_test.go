// SPDX-License-Identifier: Apache-2.0

package fuel_test

import (
	"context"
	"fmt"
	"hash/fnv"
	"strings"
	"testing"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"pgregory.net/rapid"

	"github.com/wasmplane/wasmplane/plugins/fuel"
	"github.com/wasmplane/wasmplane/plugins/plugintest/wat"
)

// program draws a module that always ends: loops count down, and functions call
// only those before them, but for one that recurses a bounded number of times.
type program struct {
	t     *rapid.T
	loops int
	funcs int
	b     strings.Builder
}

func (p *program) pick(n int) int { return rapid.IntRange(0, n-1).Draw(p.t, "pick") }

// length writes that of a bulk operation: worked out, or a constant around those that stay as they are.
func (p *program) length() string {
	if p.pick(2) == 0 {
		return fmt.Sprintf("(i32.const %d)", []int{0, 1, 15, 16, 56, 1023, 1024, 1025, 70000, -1}[p.pick(10)])
	}
	return fmt.Sprintf("(i32.and %s (i32.const 131071))", p.expr(1))
}

// expr writes an i32 expression.
func (p *program) expr(depth int) string {
	if depth <= 0 {
		switch p.pick(3) {
		case 0:
			return fmt.Sprintf("(i32.const %d)", rapid.Int32().Draw(p.t, "const"))
		case 1:
			return "(local.get $a)"
		default:
			return "(local.get $b)"
		}
	}
	bin := []string{"add", "sub", "mul", "and", "or", "xor", "shl", "shr_u", "rotl", "lt_s", "eq", "div_u", "rem_s"}
	switch p.pick(7) {
	case 0, 1:
		return fmt.Sprintf("(i32.%s %s %s)", bin[p.pick(len(bin))], p.expr(depth-1), p.expr(depth-1))
	case 2:
		return fmt.Sprintf("(if (result i32) %s (then %s) (else %s))", p.expr(depth-1), p.expr(depth-1), p.expr(depth-1))
	case 3:
		return fmt.Sprintf("(select %s %s %s)", p.expr(depth-1), p.expr(depth-1), p.expr(depth-1))
	case 4:
		return fmt.Sprintf("(block $l%d (result i32) (drop (br_if $l%d %s %s)) %s)", depth, depth, p.expr(depth-1), p.expr(depth-1),
			p.expr(depth-1))
	case 5:
		if p.funcs == 0 {
			return p.expr(depth - 1)
		}
		if f := p.pick(p.funcs + 1); f < p.funcs {
			return fmt.Sprintf("(call $f%d %s %s)", f, p.expr(depth-1), p.expr(depth-1))
		}
		return fmt.Sprintf("(call_indirect (type $t) %s %s (i32.rem_u %s (i32.const %d)))", p.expr(depth-1), p.expr(depth-1), p.expr(depth-1),
			p.funcs)
	default:
		return fmt.Sprintf("(i32.load8_u offset=%d (i32.and %s (i32.const 65535)))", p.pick(1000), p.expr(depth-1))
	}
}

// stmt writes a statement.
func (p *program) stmt(depth int) string {
	switch p.pick(15) {
	case 10:
		return fmt.Sprintf("(memory.init $d (i32.and %s (i32.const 65535)) (i32.and %s (i32.const 1023)) (i32.and %s (i32.const 131071)))", p.expr(1), p.expr(1), p.expr(1))
	case 11: // the functions are at 0 to 7, where nothing but call_indirect looks
		return fmt.Sprintf("(table.fill (i32.add (i32.const 8) (i32.and %s (i32.const 31))) (ref.null func) (i32.and %s (i32.const 31)))", p.expr(1), p.expr(1))
	case 12:
		return fmt.Sprintf("(table.copy (i32.add (i32.const 8) (i32.and %s (i32.const 31))) (i32.and %s (i32.const 31)) (i32.and %s (i32.const 31)))", p.expr(1), p.expr(1), p.expr(1))
	case 13:
		return fmt.Sprintf("(local.set $b (i32.add (table.grow (ref.func $f0) (i32.and %s (i32.const 3))) (table.size)))", p.expr(1))
	case 14:
		return fmt.Sprintf("(table.init $e (i32.add (i32.const 8) (i32.and %s (i32.const 31))) (i32.and %s (i32.const 1)) (i32.and %s (i32.const 1)))", p.expr(1), p.expr(1), p.expr(1))
	case 0:
		return fmt.Sprintf("(local.set $a %s)", p.expr(2))
	case 1:
		return fmt.Sprintf("(local.set $b %s)", p.expr(2))
	case 2:
		return fmt.Sprintf("(i32.store offset=%d (i32.and %s (i32.const 65535)) %s)", p.pick(64), p.expr(1), p.expr(2))
	case 3:
		return fmt.Sprintf("(memory.fill (i32.and %s (i32.const 65535)) %s %s)", p.expr(1), p.expr(1), p.length())
	case 4:
		return fmt.Sprintf("(memory.copy (i32.and %s (i32.const 65535)) (i32.and %s (i32.const 65535)) %s)", p.expr(1), p.expr(1), p.length())
	case 5:
		return fmt.Sprintf("(local.set $a (memory.grow (i32.and %s (i32.const 7))))", p.expr(1))
	case 6:
		if depth <= 0 {
			return "(nop)"
		}
		return fmt.Sprintf("(if %s (then %s) (else %s))", p.expr(1), p.stmts(depth-1), p.stmts(depth-1))
	case 7:
		if depth <= 0 {
			return "(nop)"
		}
		p.loops++
		n := p.loops
		return fmt.Sprintf("(local.set $n%d (i32.const %d)) (loop $loop%d %s (br_if $loop%d (local.tee $n%d (i32.sub (local.get $n%d) (i32.const 1)))))",
			n%8, 1+p.pick(6), n, p.stmts(0), n, n%8, n%8)
	case 8:
		if depth <= 0 {
			return "(nop)"
		}
		return fmt.Sprintf("(block $x (block $y (block $z (br_table $x $y $z $x %s)) %s) %s)", p.expr(1), p.stmts(depth-1), p.stmts(depth-1))
	default:
		if p.pick(6) == 0 {
			return fmt.Sprintf("(if %s (then (return %s)))", p.expr(1), p.expr(1))
		}
		return fmt.Sprintf("(drop %s)", p.expr(3))
	}
}

func (p *program) stmts(depth int) string {
	var out []string
	for range 1 + p.pick(4) {
		out = append(out, p.stmt(depth))
	}
	return strings.Join(out, "\n")
}

func (p *program) module() string {
	const locals = "(local $n0 i32) (local $n1 i32) (local $n2 i32) (local $n3 i32) (local $n4 i32) (local $n5 i32) (local $n6 i32) (local $n7 i32)"
	var names []string
	for range 1 + p.pick(5) {
		body := p.stmts(2)
		fmt.Fprintf(&p.b, "(func $f%d (param $a i32) (param $b i32) (result i32) %s\n%s\n(i32.add (local.get $a) (local.get $b)))\n", p.funcs, locals, body)
		names = append(names, fmt.Sprintf("$f%d", p.funcs))
		p.funcs++
	}
	fmt.Fprintf(&p.b, `(func $down (param $a i32) (result i32)
		(if (result i32) (i32.eqz (local.get $a)) (then (i32.const 1))
		(else (i32.add (call $down (i32.sub (local.get $a) (i32.const 1))) (call $f%d (local.get $a) (i32.const 3))))))`, p.funcs-1)
	return fmt.Sprintf(`(module (type $t (func (param i32 i32) (result i32)))
		(memory (export "memory") 2 20) (table 64 funcref) (elem (i32.const 0) func %s) (elem $e func $f0 $f0) (data $d "%s") (global $g (mut i32) (i32.const 5))
		%s
		(func (export "run") (param $a i32) (param $b i32) (result i32)
			(global.set $g (i32.add (global.get $g) (call $down (i32.const 5))))
			(i32.add (global.get $g) (call $f%d (local.get $a) (local.get $b)))))`, strings.Join(names, " "), strings.Repeat("0123456789abcdef", 5000), p.b.String(), p.funcs-1)
}

// outcome is everything that can be seen of a run.
type outcome struct {
	result uint64
	trap   string
	memory uint64
	fuel   int64
}

func execute(t *rapid.T, r wazero.Runtime, wasm []byte, metered bool) outcome {
	ctx := context.Background()
	mod, err := r.Instantiate(ctx, wasm)
	if err != nil {
		t.Fatalf("instantiate: %v", err)
	}
	defer mod.Close(ctx)
	const budget = 1 << 40
	var counter api.MutableGlobal
	if metered {
		counter = mod.ExportedGlobal(fuel.ExportCounter).(api.MutableGlobal)
		counter.Set(budget)
	}
	var o outcome
	res, err := mod.ExportedFunction("run").Call(ctx, 7, 0xffffff85)
	if err != nil {
		o.trap, _, _ = strings.Cut(err.Error(), "\n")
	} else {
		o.result = res[0]
		h := fnv.New64()
		b, _ := mod.Memory().Read(0, mod.Memory().Size())
		h.Write(b)
		o.memory = h.Sum64() + uint64(mod.Memory().Size())
	}
	if metered {
		o.fuel = budget - int64(counter.Get())
	}
	return o
}

func newRuntime(t *testing.T, cfg wazero.RuntimeConfig) wazero.Runtime {
	t.Helper()
	ctx := context.Background()
	r := wazero.NewRuntimeWithConfig(ctx, cfg)
	t.Cleanup(func() { _ = r.Close(ctx) })
	if _, err := r.NewHostModuleBuilder(fuel.ImportModule).NewFunctionBuilder().WithFunc(func(uint32) {}).Export(fuel.ImportYield).Instantiate(
		ctx); err != nil {
		t.Fatal(err)
	}
	return r
}

// TestMeteredModulesComputeTheSame: what a module answers, where it traps and what it leaves in
// memory do not change by metering, and both engines count the same fuel.
func TestMeteredModulesComputeTheSame(t *testing.T) {
	compiled := newRuntime(t, wazero.NewRuntimeConfigCompiler())
	interpreted := newRuntime(t, wazero.NewRuntimeConfigInterpreter())
	rapid.Check(t, func(rt *rapid.T) {
		p := &program{t: rt}
		source := p.module()
		wasm, err := wat.Assemble(source)
		if err != nil {
			rt.Fatalf("%v\n%s", err, source)
		}
		metered, err := fuel.Rewrite(wasm, fuel.Options{MemoryPages: 20})
		if err != nil {
			rt.Fatalf("%v\n%s", err, source)
		}
		want := execute(rt, compiled, wasm, false)
		got := execute(rt, compiled, metered, true)
		slow := execute(rt, interpreted, metered, true)
		if got != slow {
			rt.Errorf("compiled %+v, interpreted %+v\n%s", got, slow, source)
		}
		got.fuel = 0
		if got != want {
			rt.Errorf("metered %+v, original %+v\n%s", got, want, source)
		}
	})
}
