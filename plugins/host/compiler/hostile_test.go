// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

func uleb(v int) []byte { return binary.AppendUvarint(nil, uint64(v)) }

// vector is n times the same item, with its length in front.
func vector(n int, item ...byte) []byte { return append(uleb(n), bytes.Repeat(item, n)...) }

func sized(b []byte) []byte { return append(uleb(len(b)), b...) }

func join(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

// wasm is a module of sections, by their numbers.
func wasm(sections map[byte][]byte) []byte {
	out := []byte("\x00asm\x01\x00\x00\x00")
	for _, id := range []byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 10, 11, 0} {
		if s, ok := sections[id]; ok {
			out = append(append(out, id), sized(s)...)
		}
	}
	return out
}

// functions is a module of n equal functions without parameters, with one body.
func functions(n int, body []byte) []byte {
	return wasm(map[byte][]byte{1: {1, 0x60, 0, 0}, 3: vector(n, 0), 10: append(uleb(n), bytes.Repeat(sized(body), n)...)})
}

// typed is a module of one function of a type with so many parameters and results, with one body.
func typed(params, results int, body []byte) []byte {
	types := join([]byte{2, 0x60}, vector(params, 0x7f), vector(results, 0x7f), []byte{0x60, 0, 0})
	return wasm(map[byte][]byte{1: types, 3: {1, 1}, 10: append([]byte{1}, sized(body)...)})
}

const (
	block, loop, end, br, brIf, brTable, drop, unreachable = 0x02, 0x03, 0x0b, 0x0c, 0x0d, 0x0e, 0x1a, 0x00
	get, set, i32, i64, v128                               = 0x20, 0x21, 0x7f, 0x7e, 0x7b
)

var zero = []byte{0x41, 0}

// locals are n locals of a type, in front of a body.
func locals(n int, of byte, code ...[]byte) []byte {
	return join([]byte{1}, uleb(n), []byte{of}, join(code...), []byte{end})
}

func plain(code ...[]byte) []byte { return join([]byte{0}, join(code...), []byte{end}) }

// shapes are modules that ask much of a compiler, by what they have too much of, in sizes.
func shapes() map[string]func(n int) []byte {
	spread := func(n int, f func(i int) []byte) []byte {
		var out []byte
		for i := range n {
			out = append(out, f(i)...)
		}
		return out
	}
	return map[string]func(n int) []byte{
		"targets of a table": func(n int) []byte { return functions(1, plain(zero, []byte{brTable}, vector(n*100, 0), []byte{0})) },
		"tables of targets": func(n int) []byte {
			return functions(n/10, plain(bytes.Repeat(join(zero, []byte{brTable}, vector(500, 0), []byte{0}), 20)))
		},
		"blocks around a table": func(n int) []byte {
			return functions(1, plain(bytes.Repeat([]byte{block, 0x40}, n/10), zero, []byte{brTable}, uleb(n),
				spread(n+1, func(i int) []byte { return uleb(i % max(1, n/10)) }), bytes.Repeat([]byte{end}, n/10)))
		},
		"values of a block": func(n int) []byte {
			return typed(0, min(n, 1000),
				plain(bytes.Repeat(join([]byte{unreachable, block, 0}, []byte{unreachable, end}, bytes.Repeat([]byte{drop}, min(n, 1000))), n/10),
					[]byte{unreachable}))
		},
		"parameters of a function": func(n int) []byte { return typed(n*6, 0, plain()) },
		"parameters of all types": func(n int) []byte {
			return wasm(map[byte][]byte{1: append(uleb(n), bytes.Repeat(join([]byte{0x60}, vector(1000, i32), []byte{0}), n)...)})
		},
		"types":                  func(n int) []byte { return wasm(map[byte][]byte{1: vector(n*8, 0x60, 0, 0)}) },
		"locals":                 func(n int) []byte { return functions(n, locals(5000, i64)) },
		"locals of vectors":      func(n int) []byte { return functions(n, locals(4000, v128)) },
		"locals of one function": func(n int) []byte { return functions(1, locals(n*1000, i32)) },
		"locals across branches": func(n int) []byte {
			return functions(1,
				locals(n/2, i32, spread(n, func(i int) []byte { return join([]byte{get, 0, 0x04, 0x40, get, 0, set}, uleb(i%(n/2)), []byte{end}) })))
		},
		"locals across loops": func(n int) []byte {
			return functions(1, locals(100, i32, bytes.Repeat([]byte{loop, 0x40, get, 1, set, 2}, n/2),
				bytes.Repeat([]byte{get, 0, brIf, 0, end}, n/2)))
		},
		"nested blocks": func(n int) []byte {
			return functions(1, plain(bytes.Repeat([]byte{block, 0x40}, n*5), bytes.Repeat([]byte{end}, n*5)))
		},
		"branches to the outside": func(n int) []byte {
			return functions(1, plain(bytes.Repeat([]byte{block, 0x40}, n), bytes.Repeat(join(zero, []byte{brIf}, uleb(n-1)), n),
				bytes.Repeat([]byte{end}, n)))
		},
		"live values": func(n int) []byte {
			return functions(1, plain(bytes.Repeat(zero, n*10), bytes.Repeat([]byte{drop}, n*10)))
		},
		"values held across calls": func(n int) []byte {
			return functions(1, locals(1, i32, bytes.Repeat([]byte{get, 0, 0x41, 1, 0x6a}, n*3), []byte{0x10, 0}, bytes.Repeat([]byte{drop}, n*3)))
		},
		"calls": func(n int) []byte { return functions(1, plain(bytes.Repeat([]byte{0x10, 0}, n*20))) },
		"globals across calls": func(n int) []byte {
			return wasm(map[byte][]byte{
				1: {1, 0x60, 0, 0}, 3: {1, 0}, 6: vector(n, i32, 1, 0x41, 0, end),
				10: append([]byte{1}, sized(plain(bytes.Repeat([]byte{0x10, 0}, n)))...),
			})
		},
		"functions": func(n int) []byte { return functions(n*60, plain()) },
		"large functions": func(n int) []byte {
			return functions(n/20, plain(bytes.Repeat(join(zero, zero, []byte{0x6a, drop}), 10_000)))
		},
		"globals": func(n int) []byte { return wasm(map[byte][]byte{6: vector(n*500, i32, 0, 0x41, 0, end)}) },
		"imports": func(n int) []byte { return wasm(map[byte][]byte{1: {1, 0x60, 0, 0}, 2: vector(n*500, 0, 0, 0, 0)}) },
		"exports": func(n int) []byte {
			return wasm(map[byte][]byte{
				1: {1, 0x60, 0, 0}, 3: {1, 0},
				7:  append(uleb(n*100), spread(n*100, func(i int) []byte { return join(sized([]byte(strconv.Itoa(i))), []byte{0, 0}) })...),
				10: {1, 2, 0, end},
			})
		},
		"tables": func(n int) []byte { return wasm(map[byte][]byte{4: vector(n, 0x70, 0, 0xff, 0xff, 0x0f)}) },
		"element segments": func(n int) []byte {
			return wasm(map[byte][]byte{1: {1, 0x60, 0, 0}, 3: {1, 0}, 4: {1, 0x70, 0, 1}, 9: vector(n*1000, 1, 0, 0), 10: {1, 2, 0, end}})
		},
		"elements": func(n int) []byte {
			return wasm(map[byte][]byte{
				1: {1, 0x60, 0, 0}, 3: {1, 0}, 4: {1, 0x70, 0, 1}, 9: join([]byte{1, 1, 0}, vector(n*1000, 0)),
				10: {1, 2, 0, end},
			})
		},
		"data segments":   func(n int) []byte { return wasm(map[byte][]byte{5: {1, 0, 1}, 11: vector(n*1000, 1, 0)}) },
		"custom sections": func(n int) []byte { return append(wasm(nil), bytes.Repeat([]byte{0, 1, 0}, n*1000)...) },
		"names": func(n int) []byte {
			return append(functions(1, plain()), append([]byte{0}, sized(join(sized([]byte("name")), []byte{1}, sized(vector(n*1500, 0, 0))))...)...)
		},
		"names of locals": func(n int) []byte {
			return append(functions(1, plain()),
				append([]byte{0}, sized(join(sized([]byte("name")), []byte{2}, sized(join([]byte{1, 0}, vector(n*1500, 0, 0)))))...)...)
		},
	}
}

// hostileLimits are a tenant's, and less of time.
var hostileLimits = Limits{Memory: 256 << 20, CPU: 5 * time.Second}

// TestHostileModulesAreBounded: whatever a module has too much of, it is refused by the limit's
// name, or killed at one, or compiled within all of them; and neither the child nor this process,
// which takes over what was compiled, takes more memory than it may. -v prints what each one cost.
func TestHostileModulesAreBounded(t *testing.T) {
	base := residentPeak(t)
	_, idle, err := newChild(t, hostileLimits, "").Measure(t.Context(), empty, Spec{})
	if err != nil {
		t.Fatal(err)
	}
	for name, shape := range shapes() {
		for _, n := range []int{100, 1000, 10_000} {
			t.Run(fmt.Sprintf("%s/%d", name, n), func(t *testing.T) {
				attack(t, shape(n), idle)
			})
		}
	}
	if grown := residentPeak(t) - base; grown > 256<<20 {
		t.Errorf("this process grew by %d MiB", grown>>20)
	}
}

// attack compiles a module in a child, and takes over what comes of it.
func attack(t *testing.T, hostile []byte, idle Usage) {
	t.Helper()
	if len(hostile) > 32<<20 {
		t.Fatalf("a module of %d bytes: the host reads no more than 32 MiB", len(hostile))
	}
	a, used, err := newChild(t, hostileLimits, "").Measure(t.Context(), hostile, Spec{})
	outcome := "compiled"
	if err != nil {
		outcome = err.Error()
	}
	var over *Exceeded
	if err != nil && !errors.As(err, &over) && !strings.Contains(outcome, "are allowed") && !strings.Contains(outcome, "too expensive") &&
		!strings.Contains(outcome, "not a valid WebAssembly module") {
		t.Errorf("the error names no limit: %v", err)
	}
	if used.CPU > hostileLimits.CPU+2*time.Second {
		t.Errorf("the child took %s of processor time", used.CPU)
	}
	if used.Memory > idle.Memory+hostileLimits.Memory {
		t.Errorf("the child took %d MiB, without a module %d MiB", used.Memory>>20, idle.Memory>>20)
	}
	if a != nil {
		if err := adopt(t, a); err != nil {
			t.Errorf("taken over: %v", err)
		}
	}
	_, which, _ := strings.Cut(t.Name(), "/")
	t.Logf("%-35s %9d bytes %6d ms %4d MiB  %.120s", which, len(hostile), used.CPU.Milliseconds(), used.Memory>>20, outcome)
}

// residentPeak is the most memory that this process has had, in bytes.
func residentPeak(t *testing.T) int64 {
	t.Helper()
	f, err := os.Open("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n := peak(f)
	if n == 0 {
		t.Fatal("the kernel says nothing of the peak")
	}
	return n
}
