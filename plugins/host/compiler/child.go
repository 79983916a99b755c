// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wasmplane/wasmplane/core/run/confine"
	"github.com/wasmplane/wasmplane/plugins/fuel"
	wasmformat "github.com/wasmplane/wasmplane/plugins/fuel/wasm"
	"github.com/wasmplane/wasmplane/plugins/rego"
)

// Limits bound one compilation. The kernel enforces them. The zero value of a field means
// its default.
type Limits struct {
	Memory   int64         // bytes of address space that the child takes; default 512 MiB
	CPU      time.Duration // of processor time, in whole seconds; default 20 s
	Deadline time.Duration // by the clock; default 2 minutes
	// AdoptMemory and AdoptCPU bound what the server spends to take over the result, which
	// the child tries out before; default 128 MiB and 1 s.
	AdoptMemory int64
	AdoptCPU    time.Duration
	// Most is how many times Memory, CPU and Deadline a large module may have: as many times
	// as it has Unit bytes. Default 1: all modules have the same.
	Most int
}

// Unit is the size up to which a module has the limits once. What one needs grows with its size: an engine
// of 6 MB (CPython's) takes 950 MiB and 19 s.
const Unit = 2 << 20

// of are the limits of a module of so many bytes.
func (l Limits) of(bytes int) Limits {
	times := int64(min(max(1, (bytes+Unit-1)/Unit), max(1, l.Most)))
	l.Memory *= times
	l.CPU *= time.Duration(times)
	l.Deadline *= time.Duration(times)
	return l
}

// WithDefaults fills in what is zero.
func (l Limits) WithDefaults() Limits {
	set := func(p *int64, v int64) {
		if *p == 0 {
			*p = v
		}
	}
	set(&l.Memory, 512<<20)
	set((*int64)(&l.CPU), int64(20*time.Second))
	set((*int64)(&l.Deadline), int64(2*time.Minute))
	set(&l.AdoptMemory, 128<<20)
	set((*int64)(&l.AdoptCPU), int64(time.Second))
	return l
}

// Child compiles in a child process. Its methods are safe for concurrent use.
type Child struct {
	limits  Limits
	program string
	plain   atomic.Bool // name spaces of its own cannot be had here
	test    string
	started func(pid int) // for tests: a child has been started
}

// Turn is a compilation's turn among others. A child rests while others have theirs.
type Turn interface {
	// Wanted says whether others wait for it.
	Wanted() bool
	// Pass lets them have it, and returns when it has come back, or with an error.
	Pass(ctx context.Context) error
}

// slice is how long a child works before it passes its turn to those who wait.
const slice = 500 * time.Millisecond

// turned is a compiler whose children have a turn.
type turned struct {
	*Child
	turn Turn
}

// ErrUnprepared is why a program cannot compile in children.
var ErrUnprepared = errors.New("this program cannot compile plugins in a child process: its main has to call compiler.MaybeRun first; a test or tool may compile in its own process by the option InProcess")

// NewChild makes a compiler that runs this program again for each module.
func NewChild(l Limits) (*Child, error) {
	if !inChild.Prepared() {
		return nil, ErrUnprepared
	}
	program, err := confine.Program()
	if err != nil {
		return nil, fmt.Errorf("find the program to compile plugins with: %w", err)
	}
	return &Child{limits: l.WithDefaults(), program: program}, nil
}

// Usage is what a child used.
type Usage struct {
	CPU    time.Duration
	Memory int64 // bytes that were resident at the most; 0 where the child was killed
}

// Exceeded is the error of a module that needs more than a limit.
type Exceeded struct {
	What string // memory, processor time, ...
	Text string
}

func (e *Exceeded) Error() string { return "the module is too expensive to compile: " + e.Text }

// LimitName says which limit.
func (e *Exceeded) LimitName() string { return "compiling: " + e.What }

func exceeded(what, format string, args ...any) error {
	return &Exceeded{What: what, Text: fmt.Sprintf(format, args...)}
}

// InTurn implements Compiler.
func (c *Child) InTurn(t Turn) Compiler { return turned{c, t} }

// Measure is Compile, and says what the child used.
func (c *Child) Measure(ctx context.Context, wasm []byte, s Spec) (*Artifact, Usage, error) {
	return c.ask(ctx, nil, request{Spec: s, Wasm: len(wasm)}, wasm)
}

// Compile implements Compiler.
func (c *Child) Compile(ctx context.Context, wasm []byte, s Spec) (*Artifact, error) {
	return turned{Child: c}.Compile(ctx, wasm, s)
}

// Rego implements Compiler.
func (c *Child) Rego(ctx context.Context, p rego.Policy) ([]byte, error) {
	return turned{Child: c}.Rego(ctx, p)
}

// Compile implements Compiler.
func (c turned) Compile(ctx context.Context, wasm []byte, s Spec) (*Artifact, error) {
	a, _, err := c.ask(ctx, c.turn, request{Spec: s, Wasm: len(wasm)}, wasm)
	return a, err
}

// Rego implements Compiler.
func (c turned) Rego(ctx context.Context, p rego.Policy) ([]byte, error) {
	text, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	a, _, err := c.ask(ctx, c.turn, request{Rego: true, Wasm: len(text)}, text)
	if err != nil {
		return nil, err
	}
	return a.Metered, nil
}

// ask has a child answer one request.
func (c *Child) ask(ctx context.Context, t Turn, q request, body []byte) (*Artifact, Usage, error) {
	bounded, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	p := &child{limits: c.limits.of(len(body)), request: q, wasm: body, turn: t, end: cancel, started: c.started}
	err := c.run(bounded, p)
	if err != nil && context.Cause(bounded) != nil {
		err = context.Cause(bounded)
	}
	return p.artifact, p.usage, err
}

// run starts the child, with name spaces of its own where they can be had.
func (c *Child) run(ctx context.Context, p *child) error {
	if !c.plain.Load() {
		started, err := c.start(ctx, p, true)
		if started {
			return err
		}
		c.plain.Store(true)
	}
	_, err := c.start(ctx, p, false)
	return err
}

// start runs one child to its end.
func (c *Child) start(ctx context.Context, p *child, private bool) (started bool, err error) {
	scratch, remove, err := confine.Scratch(private)
	if err != nil {
		return true, err
	}
	defer remove()
	encoded, err := json.Marshal(role{
		Bounds: confine.Bounds{
			Memory: p.limits.Memory, CPU: int64(p.limits.CPU / time.Second), File: codeLimit, Scratch: scratch, Private: private,
		},
		Test: c.test,
	})
	if err != nil {
		return true, err
	}
	cmd := exec.Command(c.program) //nolint:noctx // its end is awaited with a bound, below
	cmd.Args = []string{"wasmplane-compiler"}
	cmd.Env = []string{inChild.Variable + "=" + string(encoded), "GOMAXPROCS=2"}
	cmd.Dir = "/"
	cmd.SysProcAttr = confine.Attributes(private)
	return p.run(ctx, cmd)
}

// child is one compilation in a process of its own.
type child struct {
	limits   Limits
	request  request
	wasm     []byte
	turn     Turn // nil = it need not rest
	end      context.CancelCauseFunc
	started  func(pid int) // nil = nobody wants to know
	artifact *Artifact
	usage    Usage
}

// pace lets the process rest while others have their turn, and ends it after its time, of which
// rests are no part. It returns when ctx ends.
func (p *child) pace(ctx context.Context, process *os.Process) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for left := p.limits.Deadline; left > 0; {
		began := time.Now()
		timer.Reset(min(slice, left))
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		left -= time.Since(began)
		if p.turn == nil || !p.turn.Wanted() {
			continue
		}
		if process.Signal(unix.SIGSTOP) != nil {
			return // it has ended
		}
		if err := p.turn.Pass(ctx); err != nil {
			if ctx.Err() == nil {
				p.end(err)
			}
			return
		}
		if process.Signal(unix.SIGCONT) != nil {
			return
		}
	}
	p.end(exceeded("time", "it took longer than %s", p.limits.Deadline))
}

// run starts the process, speaks with it, and ends it when ctx ends. It says whether the
// process could be started at all.
func (p *child) run(ctx context.Context, cmd *exec.Cmd) (started bool, err error) {
	out, answers, err := os.Pipe()
	if err != nil {
		return true, fmt.Errorf("make a pipe to the compiler: %w", err)
	}
	defer func() { _ = out.Close() }()
	header := &bytes.Buffer{}
	if err := writeHeader(header, p.request); err != nil {
		return true, errors.Join(err, answers.Close())
	}
	last := &confine.Head{}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = io.MultiReader(header, bytes.NewReader(p.wasm)), answers, last
	cmd.WaitDelay = confine.Dying
	ended, err := confine.Launch(cmd)
	_ = answers.Close() // the child's now
	if err != nil {
		return !confine.Unavailable(err), fmt.Errorf("start the compiler's process: %w", err)
	}
	if p.started != nil {
		p.started(cmd.Process.Pid)
	}
	stop := context.AfterFunc(ctx, func() {
		_ = cmd.Process.Kill()
		_ = out.SetReadDeadline(time.Now().Add(confine.Dying))
	})
	defer stop()
	pacing, done := context.WithCancel(ctx)
	var pacer sync.WaitGroup
	pacer.Go(func() { p.pace(pacing, cmd.Process) })
	defer pacer.Wait()
	defer done()
	rep, failure := p.read(out)
	if failure != nil {
		_ = cmd.Process.Kill()
	}
	select {
	case <-ended:
	case <-time.After(confine.Dying):
		return true, errors.New("the compiler's process could not be ended")
	}
	p.usage.CPU = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	if rep != nil {
		p.usage.Memory = rep.Peak
	}
	switch {
	case failure != nil:
		p.artifact = nil
		return true, p.diagnose(failure, cmd.ProcessState, last.String())
	case rep.Error != "":
		p.artifact = nil
		if slices.Contains(fuel.LimitNames(), rep.Limit) { // the child is not believed
			return true, wasmformat.OverLimit(rep.Limit, "%s", rep.Error)
		}
		return true, errors.New(rep.Error)
	}
	return true, p.judge(rep)
}

// read takes the reply, which is believed only as far as it is bounded.
func (p *child) read(r io.Reader) (*reply, error) {
	var rep reply
	if err := readHeader(r, &rep); err != nil {
		return nil, err
	}
	if rep.Error != "" {
		return &rep, nil
	}
	if rep.Metered < 0 || rep.Metered > p.request.most() || rep.Code < 0 || rep.Code > codeLimit ||
		rep.Name != "" && !codeName.MatchString(rep.Name) {
		return nil, fmt.Errorf("an answer that makes no sense: %d bytes metered, %d bytes of code in %q", rep.Metered, rep.Code, rep.Name)
	}
	a := &Artifact{Name: rep.Name, Metered: make([]byte, rep.Metered), Code: make([]byte, rep.Code)}
	for _, b := range [][]byte{a.Metered, a.Code} {
		if _, err := io.ReadFull(r, b); err != nil {
			return nil, err
		}
	}
	p.artifact = a
	return &rep, nil
}

// growth is the most that a module of n bytes becomes by metering.
func growth(n int) int { return 8*n + 1<<16 }

// most is how large the answer to a request may be. A policy's module holds the
// library of Rego, however short its text is.
func (q *request) most() int {
	if q.Rego {
		return 4<<20 + 64*q.Wasm
	}
	return growth(q.Wasm)
}

// codeName is how the engine names the file of a module's code.
var codeName = regexp.MustCompile(`^wazero-[A-Za-z0-9.+_-]{1,80}/[0-9a-f]{64}$`)

// judge holds what the takeover costs against its limits.
func (p *child) judge(rep *reply) error {
	l := &p.limits
	if rep.AdoptBytes > uint64(l.AdoptMemory) {
		p.artifact = nil
		return exceeded("memory", "reading its declarations takes %d MiB of memory, at most %d MiB are allowed", rep.AdoptBytes>>20,
			l.AdoptMemory>>20)
	}
	if rep.AdoptTime > l.AdoptCPU {
		p.artifact = nil
		return exceeded("processor time", "checking it takes %s, at most %s are allowed", rep.AdoptTime.Round(time.Millisecond), l.AdoptCPU)
	}
	return nil
}

// diagnose says why a child ended without an answer.
func (p *child) diagnose(failure error, state *os.ProcessState, last string) error {
	first, _, _ := strings.Cut(strings.TrimSpace(last), "\n")
	status, _ := state.Sys().(syscall.WaitStatus)
	switch {
	case strings.Contains(last, "out of memory") || strings.Contains(last, "cannot allocate memory") || strings.Contains(last,
		"failed to create new OS thread"):
		return exceeded("memory", "it needs more than %d MiB of memory", p.limits.Memory>>20)
	case strings.Contains(last, "stack overflow") || strings.Contains(last, "stack exceeds"):
		return exceeded("memory", "it is nested too deeply")
	case status.Signaled() && p.usage.CPU >= p.limits.CPU-time.Second:
		return exceeded("processor time", "it needs more than %s of processor time", p.limits.CPU)
	case strings.HasPrefix(first, "compiler: "):
		return fmt.Errorf("the compiler's process failed: %s", strings.TrimPrefix(first, "compiler: "))
	}
	return fmt.Errorf("the compiler crashed on this module (%s, %w): %s", state, failure, first)
}
