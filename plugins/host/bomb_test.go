// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/wasmplane/wasmplane/plugins/host"
)

// TestCompileBombsAreRefused: small modules that would keep the compiler busy for
// minutes, or have it take gigabytes, are refused at once.
func TestCompileBombsAreRefused(t *testing.T) {
	repeat := func(n int, format string, args func(i int) []any) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, format, args(i)...)
		}
		return b.String()
	}
	none := func(int) []any { return nil }
	run := func(body string) string { return "(func $run (param i32 i32) (result i64) " + body + " (i64.const 0))" }
	locals := func(n int) string { return repeat(n, "(local i32)", none) }
	for name, source := range map[string]string{
		"many branches over many locals": run(locals(300) +
			repeat(12000, "(if (local.get 0) (then (local.set %d (local.get 1))))", func(i int) []any { return []any{2 + i%300} })),
		"deep nesting": run(strings.Repeat("(block ", 20000) + "(br_if 19999 (local.get 0))" + strings.Repeat(")", 20000)),
		"nested loops": run(locals(100) +
			repeat(600, "(loop (local.set %d (i32.add (local.get %d) (local.get %d))) ",
				func(i int) []any { return []any{2 + i%100, 2 + i*7%100, 2 + i*13%100} }) +
			strings.Repeat("(br_if 0 (local.get 0)))", 600)),
		"many globals over many calls": repeat(5000, "(global (mut i32) (i32.const 1))",
			none) + "(func $f)" + run(strings.Repeat("(call $f)", 5000)),
		"a giant function":   run(strings.Repeat("(drop (i32.const 1))", 400_000)),
		"too many functions": strings.Repeat("(func)", 140_000) + run(""),
	} {
		t.Run(name, func(t *testing.T) {
			wasm := assemble(t, guest(source))
			before := processorTime(t)
			_, err := newHost(t, false).Compile(t.Context(), wasm, host.Options{Name: "bomb"})
			if err == nil || !strings.Contains(err.Error(), "expensive to compile") && !strings.Contains(err.Error(), "are allowed") {
				t.Errorf("error %v", err)
			}
			if took := processorTime(t) - before; took > 10*time.Second {
				t.Errorf("the refusal took %s of processor time", took)
			}
		})
	}
}
