// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wasmplane/wasmplane/core/run/confine"
	wasmformat "github.com/wasmplane/wasmplane/plugins/fuel/wasm"
	"github.com/wasmplane/wasmplane/plugins/rego"
)

// inChild is the child's role. Its variable carries a role.
var inChild = &confine.Role{Variable: "WASMPLANE_COMPILER_ROLE", Name: "compiler"}

// role is what the parent tells the child, as JSON in the variable of inChild.
type role struct {
	confine.Bounds          // the engine writes to Scratch
	status         *os.File // what the kernel says of this process
	Test           string   // for tests of the bounds: something else to do than to compile
}

// request is what the parent asks, as JSON in front of the module, or of a policy in Rego.
type request struct {
	Spec Spec
	Wasm int  // bytes that follow
	Rego bool // they are a rego.Policy, as JSON
}

// reply is what the child answers, as JSON in front of the metered module and its code.
type reply struct {
	Error   string `json:",omitempty"`
	Invalid bool   `json:",omitempty"` // the error is of the module, not of the child
	Limit   string `json:",omitempty"` // the name of the limit that the module is beyond
	Name    string
	Metered int
	Code    int
	Peak    int64 // bytes of memory that were resident at the most

	// What it cost to take over the result: the parent is going to do the same.
	AdoptBytes uint64
	AdoptTime  time.Duration
}

// misbehave does what a compiler might do that a module took over; tests set it, whose
// binary is their child's too.
var misbehave func(how string) error

// MaybeRun takes the process over when it was started to compile (confine.Role).
func MaybeRun() {
	inChild.MaybeRun(func(encoded string) error {
		return runRole(context.Background(), encoded) //nolint:forbidigo // this is the child's main
	})
}

// runRole is the life of the child.
func runRole(ctx context.Context, encoded string) error {
	var r role
	if err := json.Unmarshal([]byte(encoded), &r); err != nil {
		return fmt.Errorf("read the role from %s: %w", inChild.Variable, err)
	}
	var err error
	if r.Scratch, r.status, err = r.Enter(); err != nil {
		return err
	}
	debug.SetMemoryLimit(r.Memory * 3 / 4)
	debug.SetMaxStack(int(r.Memory / 8))
	if r.Test != "" && misbehave != nil {
		return misbehave(r.Test)
	}
	in := bufio.NewReader(os.Stdin)
	var q request
	if err := readHeader(in, &q); err != nil {
		return fmt.Errorf("read the request: %w", err)
	}
	wasm := make([]byte, q.Wasm)
	if _, err := io.ReadFull(in, wasm); err != nil {
		return fmt.Errorf("read the module: %w", err)
	}
	if q.Rego {
		return r.answerRego(ctx, os.Stdout, wasm)
	}
	return r.answer(ctx, os.Stdout, wasm, q.Spec)
}

// answerRego compiles a policy's text and writes the module.
func (r *role) answerRego(ctx context.Context, w io.Writer, text []byte) error {
	var p rego.Policy
	if err := json.Unmarshal(text, &p); err != nil {
		return fmt.Errorf("read the policy: %w", err)
	}
	wasm, err := rego.Compile(ctx, p)
	if err != nil {
		return writeHeader(w, reply{Error: err.Error(), Invalid: true, Peak: peak(r.status)})
	}
	if err := writeHeader(w, reply{Metered: len(wasm), Peak: peak(r.status)}); err != nil {
		return err
	}
	_, err = w.Write(wasm)
	return err
}

// answer compiles and writes what came of it.
func (r *role) answer(ctx context.Context, w io.Writer, wasm []byte, s Spec) error {
	a, err := build(ctx, wasm, s, r.Scratch)
	if err != nil {
		return writeHeader(w, reply{Error: err.Error(), Limit: limitName(err), Invalid: true, Peak: peak(r.status)})
	}
	rep := reply{Name: a.Name, Metered: len(a.Metered), Code: len(a.Code)}
	if rep.AdoptBytes, rep.AdoptTime, err = rehearse(ctx, a.Metered, r.Scratch); err != nil {
		return writeHeader(w, reply{Error: fmt.Sprintf("the compiled module cannot be taken over: %v", err)})
	}
	rep.Peak = peak(r.status)
	if err := writeHeader(w, rep); err != nil {
		return err
	}
	if _, err := w.Write(a.Metered); err != nil {
		return err
	}
	_, err = w.Write(a.Code)
	return err
}

// limitName is the name of the limit that an error is about, or "".
func limitName(err error) string {
	var limit *wasmformat.LimitError
	if !errors.As(err, &limit) {
		return ""
	}
	return limit.LimitName()
}

// rehearse takes the result over as the server will, and measures what that costs.
func rehearse(ctx context.Context, metered []byte, dir string) (allocated uint64, took time.Duration, err error) {
	r, done, err := newRuntime(ctx, dir)
	if err != nil {
		return 0, 0, err
	}
	before, start := memory(), processorTime()
	if _, err = Adopt(ctx, r, metered); errors.Is(err, ErrNotCompiled) {
		err = fmt.Errorf("%w; it was compiled a moment ago", err)
	}
	return memory() - before, processorTime() - start, errors.Join(err, done())
}

func processorTime() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// codeLimit is how many bytes of code a module may become.
const codeLimit = 64 << 20

// headerLimit bounds the JSON that either side reads.
const headerLimit = 64 << 10

func writeHeader(w io.Writer, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(b) > headerLimit {
		return fmt.Errorf("a header of %d bytes", len(b))
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...))
	return err
}

func readHeader(r io.Reader, v any) error {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > headerLimit {
		return fmt.Errorf("a header of %d bytes", n)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return err
	}
	return json.Unmarshal(b, v)
}

// memory is what has been allocated since the start.
func memory() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}

// peak reads how many bytes were resident at the most; 0 where the kernel doesn't say.
func peak(status *os.File) int64 {
	b := make([]byte, 4<<10)
	n, err := status.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0
	}
	for line := range strings.Lines(string(b[:n])) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, _ := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			return kib << 10
		}
	}
	return 0
}
