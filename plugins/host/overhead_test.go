// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"context"
	"runtime"
	"testing"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"golang.org/x/sys/unix"

	"github.com/wasmplane/wasmplane/plugins/fuel"
)

// workloads are what policies spend their time on: loops over bytes, calls,
// arithmetic, branches. Each takes a count.
var workloads = map[string]string{
	"sieve": `(func (export "run") (param $n i32) (local $i i32) (local $j i32)
		(memory.fill (i32.const 0) (i32.const 0) (local.get $n))
		(local.set $i (i32.const 2))
		(block $done (loop $next
			(br_if $done (i32.ge_u (local.get $i) (local.get $n)))
			(if (i32.eqz (i32.load8_u (local.get $i))) (then
				(local.set $j (i32.add (local.get $i) (local.get $i)))
				(block $out (loop $mark
					(br_if $out (i32.ge_u (local.get $j) (local.get $n)))
					(i32.store8 (local.get $j) (i32.const 1))
					(local.set $j (i32.add (local.get $j) (local.get $i)))
					(br $mark)))))
			(local.set $i (i32.add (local.get $i) (i32.const 1)))
			(br $next))))`,
	"fib": `(func $fib (param $n i32) (result i32)
		(if (result i32) (i32.lt_u (local.get $n) (i32.const 2)) (then (local.get $n))
			(else (i32.add (call $fib (i32.sub (local.get $n) (i32.const 1))) (call $fib (i32.sub (local.get $n) (i32.const 2)))))))
		(func (export "run") (param i32) (drop (call $fib (i32.const 22))))`,
	"hash": `(func (export "run") (param $n i32) (local $h i32) (local $i i32)
		(loop $next
			(local.set $h (i32.mul (i32.xor (local.get $h) (i32.load8_u (local.get $i))) (i32.const 16777619)))
			(br_if $next (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (local.get $n))))
		(i32.store (i32.const 0) (local.get $h)))`,
	"scan": `(func $class (param $c i32) (result i32)
			(if (i32.eq (local.get $c) (i32.const 34)) (then (return (i32.const 1))))
			(if (i32.eq (local.get $c) (i32.const 92)) (then (return (i32.const 2))))
			(if (i32.lt_u (local.get $c) (i32.const 32)) (then (return (i32.const 3))))
			(i32.const 0))
		(func (export "run") (param $n i32) (local $i i32) (local $sum i32)
		(loop $next
			(local.set $sum (i32.add (local.get $sum) (call $class (i32.load8_u (local.get $i)))))
			(br_if $next (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (local.get $n))))
		(i32.store (i32.const 0) (local.get $sum)))`,
}

// cpuTime reports the processor time of an iteration besides its wall time: that
// is what can be believed on a busy machine.
func cpuTime(b *testing.B) func() {
	b.Helper()
	runtime.LockOSThread()
	now := func() int64 {
		var u unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_THREAD, &u); err != nil {
			b.Fatal(err)
		}
		return u.Utime.Nano() + u.Stime.Nano()
	}
	start := now()
	return func() {
		b.ReportMetric(float64(now()-start)/float64(b.N), "cpu-ns/op")
		runtime.UnlockOSThread()
	}
}

// BenchmarkMetering compares each workload with and without the counter.
func BenchmarkMetering(b *testing.B) {
	ctx := context.Background()
	r := wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfigCompiler())
	defer r.Close(ctx)
	if _, err := r.NewHostModuleBuilder(fuel.ImportModule).NewFunctionBuilder().WithFunc(func(uint32) {}).Export(fuel.ImportYield).Instantiate(
		ctx); err != nil {
		b.Fatal(err)
	}
	for name, source := range workloads {
		plain := assemble(b, "(module (memory 4) "+source+")")
		metered, err := fuel.Rewrite(plain, fuel.Options{})
		if err != nil {
			b.Fatal(err)
		}
		for _, form := range []struct {
			name string
			wasm []byte
		}{{"plain", plain}, {"metered", metered}} {
			b.Run(name+"/"+form.name, func(b *testing.B) {
				mod, err := r.InstantiateWithConfig(ctx, form.wasm, wazero.NewModuleConfig().WithName(""))
				if err != nil {
					b.Fatal(err)
				}
				defer mod.Close(ctx)
				f := mod.ExportedFunction("run")
				counter, _ := mod.ExportedGlobal(fuel.ExportCounter).(api.MutableGlobal)
				stack := make([]uint64, 1)
				defer cpuTime(b)()
				for b.Loop() {
					if counter != nil {
						counter.Set(1 << 40)
					}
					stack[0] = 100_000
					if err := f.CallWithStack(ctx, stack); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
