// SPDX-License-Identifier: Apache-2.0

// Package wasip2 is the host's side of WASI 0.2 for a component that is the process of a container: standard input and
// output, arguments, environment, clocks, random numbers, the files of the directories that it is
// given, the container's network (TCP), and HTTP, as a client and as a server. What a container may do with its network is decided
// where it is for every container: by its network namespace and by network policies.
//
// Interfaces are found by name and compatible version: 0.2.0 to 0.2.12 are one. UDP is refused.
package wasip2

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
	"strings"
	"time"

	experimentalsys "github.com/tetratelabs/wazero/experimental/sys"
	"github.com/tetratelabs/wazero/sys"

	"github.com/wasmplane/wasmplane/plugins/component/canon"
	"github.com/wasmplane/wasmplane/plugins/component/ctype"
	"github.com/wasmplane/wasmplane/plugins/component/link"
	"github.com/wasmplane/wasmplane/plugins/workload/wasifiles"
	"github.com/wasmplane/wasmplane/plugins/workload/wasihttp"
	"github.com/wasmplane/wasmplane/plugins/workload/wasiio"
	"github.com/wasmplane/wasmplane/plugins/workload/wasisockets"
)

// Config is what the instances of a component are given.
type Config struct {
	// Args are the arguments; the first one is the program's name.
	Args []string
	// Env is the environment, as NAME=VALUE.
	Env []string
	// In is standard input.
	In io.Reader
	// Out and Err are standard output and error. Several instances may write at a time.
	Out, Err io.Writer
	// Directories are the ones that are opened beforehand.
	Directories []Directory
}

// Directory is a directory with everything below it.
type Directory struct {
	Path string // what the component knows it by
	FS   experimentalsys.FS
}

// Host gives components their functions. It implements link.Host.
type Host struct{}

// Func implements link.Host.
func (Host) Func(iface, name string) link.HostFunc {
	f := functions[ctype.Compatible(iface)+"#"+name]
	if f == nil {
		return nil
	}
	return func(c *link.Call, args []any) any {
		w, ok := c.Instance.Data().(*wasiio.Table)
		if !ok {
			canon.Fail("the instance was made without a world")
		}
		return f(w, c, args)
	}
}

// Drop implements link.Host.
func (Host) Drop(c *link.Call, _, _ string, rep uint32) {
	if w, ok := c.Instance.Data().(*wasiio.Table); ok {
		w.Drop(rep)
	}
}

// world is what one instance has besides its resources.
type world struct {
	Config
	began time.Time
	stdin *wasiio.PipeSource // of all who ask for it: what one of them doesn't read is there for the next
}

func (v *world) End() { v.stdin.End() }

// New makes what one instance has, for link.Config.Data. It is closed after the instance.
func New(c Config) *wasiio.Table {
	return &wasiio.Table{Data: &world{Config: c, began: time.Now(), stdin: wasiio.Pump("standard input", c.In)}}
}

func of(w *wasiio.Table) *world {
	v, ok := w.Data.(*world)
	if !ok {
		canon.Fail("the instance was made without a world")
	}
	return v
}

// functions are what is given, by interface and name.
var functions = wasiio.Join(
	wasiio.In("wasi:cli/environment", map[string]wasiio.Function{
		"get-environment": environment,
		"get-arguments":   func(w *wasiio.Table, _ *link.Call, _ []any) any { return texts(of(w).Args) },
		"initial-cwd":     wasiio.Constant(canon.Some("/")),
	}),
	wasiio.In("wasi:cli/exit", map[string]wasiio.Function{
		"exit": func(_ *wasiio.Table, _ *link.Call, args []any) any {
			panic(sys.NewExitError(link.Arg[canon.Variant](args, 0).Case))
		},
		"exit-with-code": func(_ *wasiio.Table, _ *link.Call, args []any) any {
			panic(sys.NewExitError(uint32(link.Arg[uint8](args, 0))))
		},
	}),
	wasiio.In("wasi:cli/stdin", map[string]wasiio.Function{"get-stdin": func(w *wasiio.Table, c *link.Call, _ []any) any {
		return w.Give(c, wasiio.Streams, wasiio.InputStream, struct{ wasiio.Source }{of(w).stdin}) // it ends with the world
	}}),
	wasiio.In("wasi:cli/stdout", map[string]wasiio.Function{"get-stdout": func(w *wasiio.Table, c *link.Call, _ []any) any {
		return w.Give(c, wasiio.Streams, wasiio.OutputStream, wasiio.Direct{W: of(w).Out})
	}}),
	wasiio.In("wasi:cli/stderr", map[string]wasiio.Function{"get-stderr": func(w *wasiio.Table, c *link.Call, _ []any) any {
		return w.Give(c, wasiio.Streams, wasiio.OutputStream, wasiio.Direct{W: of(w).Err})
	}}),
	wasiio.In("wasi:cli/terminal-stdin", map[string]wasiio.Function{"get-terminal-stdin": wasiio.Constant(canon.None())}),
	wasiio.In("wasi:cli/terminal-stdout", map[string]wasiio.Function{"get-terminal-stdout": wasiio.Constant(canon.None())}),
	wasiio.In("wasi:cli/terminal-stderr", map[string]wasiio.Function{"get-terminal-stderr": wasiio.Constant(canon.None())}),
	wasiio.In("wasi:clocks/monotonic-clock", map[string]wasiio.Function{
		"now":        func(w *wasiio.Table, _ *link.Call, _ []any) any { return uint64(time.Since(of(w).began)) },
		"resolution": wasiio.Constant(uint64(1)),
		"subscribe-instant": func(w *wasiio.Table, c *link.Call, args []any) any {
			return w.Give(c, wasiio.Polls, wasiio.PollableName, wasiio.Timer(of(w).began.Add(wasiio.Duration(link.Arg[uint64](args, 0)))))
		},
		"subscribe-duration": func(w *wasiio.Table, c *link.Call, args []any) any {
			return w.Give(c, wasiio.Polls, wasiio.PollableName, wasiio.Timer(time.Now().Add(wasiio.Duration(link.Arg[uint64](args, 0)))))
		},
	}),
	wasiio.In("wasi:clocks/wall-clock", map[string]wasiio.Function{
		"now":        func(*wasiio.Table, *link.Call, []any) any { return wasiio.Datetime(time.Now()) },
		"resolution": wasiio.Constant([]any{uint64(0), uint32(1)}),
	}),
	wasiio.In("wasi:random/random", map[string]wasiio.Function{"get-random-bytes": randomBytes, "get-random-u64": randomNumber}),
	wasiio.In("wasi:random/insecure", map[string]wasiio.Function{
		"get-insecure-random-bytes": randomBytes,
		"get-insecure-random-u64":   randomNumber,
	}),
	wasiio.In("wasi:random/insecure-seed", map[string]wasiio.Function{"insecure-seed": func(w *wasiio.Table, c *link.Call, _ []any) any {
		return []any{randomNumber(w, c, nil), randomNumber(w, c, nil)}
	}}),
	wasiio.In("wasi:filesystem/preopens", map[string]wasiio.Function{"get-directories": func(w *wasiio.Table, c *link.Call, _ []any) any {
		out := []any{}
		for _, d := range of(w).Directories {
			out = append(out, []any{wasifiles.Open(w, c, d.FS), d.Path})
		}
		return out
	}}),
	wasiio.Functions, wasifiles.Functions, wasisockets.Functions, wasihttp.Functions,
)

func environment(w *wasiio.Table, _ *link.Call, _ []any) any {
	out := []any{}
	for _, kv := range of(w).Env {
		if k, v, ok := strings.Cut(kv, "="); ok && k != "" {
			out = append(out, []any{k, v})
		}
	}
	return out
}

func texts(in []string) []any {
	out := []any{}
	for _, s := range in {
		out = append(out, s)
	}
	return out
}

// mostRandom bounds one request of random bytes: more than a component has a use for.
const mostRandom = 16 << 20

func randomBytes(_ *wasiio.Table, _ *link.Call, args []any) any {
	n := link.Arg[uint64](args, 0)
	if n > mostRandom {
		canon.Fail("it wants %d random bytes at once: at most %d are given", n, mostRandom)
	}
	b := make([]byte, n)
	fill(b)
	return b
}

func randomNumber(*wasiio.Table, *link.Call, []any) any {
	b := make([]byte, 8)
	fill(b)
	return binary.LittleEndian.Uint64(b)
}

func fill(b []byte) {
	if _, err := rand.Read(b); err != nil {
		canon.Fail("read random numbers: %v", err)
	}
}

// Runs says whether a component is a command.
func Runs(p *link.Program) bool { return wasiio.Export(p, "wasi:cli/run", "run") != nil }

// Serves says whether a component is a server of HTTP.
func Serves(p *link.Program) bool { return wasihttp.Serves(p) }

// NewServer makes a server of HTTP. memory bounds how many instances there are at a time, by what the first of them
// has, in bytes; 0 = no bound but a constant.
func NewServer(ctx context.Context, l *link.Linked, cfg Config, memory int64) (*wasihttp.Server, error) {
	return wasihttp.NewServer(ctx, l, wasihttp.Config{
		World: func() *wasiio.Table { return New(cfg) }, Log: cfg.Err, Memory: memory,
	})
}

// Run runs a command: a component that exports wasi:cli/run. The code is its exit code; the
// error is the trap that ended it.
func Run(ctx context.Context, l *link.Linked, cfg Config) (code int, err error) {
	f := wasiio.Export(l.Program(), "wasi:cli/run", "run")
	if f == nil {
		return 0, fmt.Errorf("the component does not export wasi:cli/run%s", wasiio.Version)
	}
	w := New(cfg)
	defer w.Close()
	in, err := l.Instantiate(ctx, link.Config{Data: w})
	if err != nil {
		return 0, err
	}
	defer func() { _ = in.Close(ctx) }()
	v, err := in.Call(ctx, f)
	if err != nil {
		return 0, err
	}
	if r, ok := v.(canon.Variant); ok && r.Case != 0 {
		return 1, nil
	}
	return 0, nil
}
