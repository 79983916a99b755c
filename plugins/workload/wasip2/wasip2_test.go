// SPDX-License-Identifier: Apache-2.0

package wasip2_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/experimental/sysfs"
	"github.com/tetratelabs/wazero/sys"

	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/plugins/component/binary"
	"github.com/wasmplane/wasmplane/plugins/component/canon"
	ct "github.com/wasmplane/wasmplane/plugins/component/componenttest"
	"github.com/wasmplane/wasmplane/plugins/component/link"
	"github.com/wasmplane/wasmplane/plugins/workload/wasip2"
)

// guest calls the functions as a component does that has no code of its own.
type guest struct {
	t   *testing.T
	ctx context.Context //nolint:containedctx // of its calls
	in  *link.Instance
}

func newGuest(t *testing.T, cfg wasip2.Config) *guest {
	t.Helper()
	w := wasip2.New(cfg)
	t.Cleanup(w.Close)
	in, err := linked(t, ct.New()).Instantiate(t.Context(), link.Config{Data: w})
	if err != nil {
		t.Fatal(err)
	}
	return &guest{t: t, ctx: t.Context(), in: in}
}

// linked is a component that is linked with the host.
func linked(t *testing.T, c *ct.Component) *link.Linked {
	t.Helper()
	decoded, _, err := binary.Decode(c.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	p, err := link.Plan(decoded)
	if err != nil {
		t.Fatal(err)
	}
	texts, err := p.Modules()
	if err != nil {
		t.Fatal(err)
	}
	r := wazero.NewRuntimeWithConfig(t.Context(), wazero.NewRuntimeConfigInterpreter())
	t.Cleanup(func() { _ = r.Close(context.Background()) })
	var modules []wazero.CompiledModule
	for _, m := range texts {
		code, err := r.CompileModule(t.Context(), m)
		if err != nil {
			t.Fatal(err)
		}
		modules = append(modules, code)
	}
	l, err := link.Link(t.Context(), r, p, modules, wasip2.Host{})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// try calls a function; a trap is an error.
func (g *guest) try(iface, name string, args ...any) (v any, err error) {
	g.t.Helper()
	f := wasip2.Host{}.Func(iface+"@0.2.3", name)
	if f == nil {
		g.t.Fatalf("%s#%s is not given", iface, name)
	}
	defer func() {
		if r := recover(); r != nil {
			err, _ = r.(error)
		}
	}()
	return f(&link.Call{Context: g.ctx, Instance: g.in}, args), nil
}

func (g *guest) call(iface, name string, args ...any) any {
	g.t.Helper()
	v, err := g.try(iface, name, args...)
	if err != nil {
		g.t.Fatalf("%s#%s traps: %v", iface, name, err)
	}
	return v
}

// good calls a function whose result is no error.
func (g *guest) good(iface, name string, args ...any) any {
	g.t.Helper()
	v, is := g.call(iface, name, args...).(canon.Variant)
	if !is || v.Case != 0 {
		g.t.Fatalf("%s#%s answers %v", iface, name, v)
	}
	return v.Value
}

// code is the error-code that a function answers.
func (g *guest) code(iface, name string, args ...any) uint32 {
	g.t.Helper()
	v, _ := g.call(iface, name, args...).(canon.Variant)
	e, is := v.Value.(canon.Variant)
	if v.Case != 1 || !is {
		g.t.Fatalf("%s#%s answers %v, want an error", iface, name, v)
	}
	return e.Case
}

func (g *guest) drop(h any) {
	wasip2.Host{}.Drop(&link.Call{Context: g.ctx, Instance: g.in}, "", "", h.(*canon.Handle).Rep) //nolint:forcetypeassert // a test's own
}

// all reads a stream to its end.
func (g *guest) all(stream any) string {
	g.t.Helper()
	var out []byte
	for {
		v, _ := g.call(streams, "[method]input-stream.blocking-read", stream, uint64(1<<20)).(canon.Variant)
		if v.Case != 0 {
			if e, _ := v.Value.(canon.Variant); e.Case != 1 {
				g.t.Fatalf("the stream fails: %v", v)
			}
			return string(out)
		}
		out = append(out, v.Value.([]byte)...) //nolint:forcetypeassert // as the interface says
	}
}

const (
	streams = "wasi:io/streams"
	polls   = "wasi:io/poll"
	files   = "wasi:filesystem/types"
	tcp     = "wasi:sockets/tcp"
)

func enum(n uint32) canon.Variant { return canon.Variant{Case: n} }

func TestACommandHasItsArgumentsEnvironmentAndStreams(t *testing.T) {
	var out, errs bytes.Buffer
	g := newGuest(t, wasip2.Config{
		Args: []string{"main", "-v"}, Env: []string{"A=1", "B=x=y", "nonsense"}, In: strings.NewReader("hello"), Out: &out, Err: &errs,
	})
	if got := g.call("wasi:cli/environment", "get-arguments"); !reflect.DeepEqual(got, []any{"main", "-v"}) {
		t.Errorf("arguments %v", got)
	}
	if got := g.call("wasi:cli/environment", "get-environment"); !reflect.DeepEqual(got, []any{[]any{"A", "1"}, []any{"B", "x=y"}}) {
		t.Errorf("environment %v", got)
	}
	first := g.call("wasi:cli/stdin", "get-stdin")
	if got := g.good(streams, "[method]input-stream.blocking-read", first, uint64(2)); string(got.([]byte)) != "he" { //nolint:forcetypeassert // as the interface says
		t.Errorf("standard input %q", got)
	}
	g.drop(first)
	stdin := g.call("wasi:cli/stdin", "get-stdin")
	if got := g.all(stdin); got != "llo" {
		t.Errorf("the rest of standard input %q", got)
	}
	stdout, stderr := g.call("wasi:cli/stdout", "get-stdout"), g.call("wasi:cli/stderr", "get-stderr")
	g.good(streams, "[method]output-stream.write", stdout, []byte("one "))
	g.good(streams, "[method]output-stream.blocking-write-zeroes-and-flush", stdout, uint64(2))
	g.good(streams, "[method]output-stream.blocking-write-and-flush", stderr, []byte("two"))
	if out.String() != "one \x00\x00" || errs.String() != "two" {
		t.Errorf("printed %q and %q", out.String(), errs.String())
	}
	for name, want := range map[string]uint32{"exit": 1, "exit-with-code": 7} {
		var arg any = canon.Error(nil)
		if want == 7 {
			arg = uint8(7)
		}
		var exit *sys.ExitError
		if _, err := g.try("wasi:cli/exit", name, arg); !errors.As(err, &exit) || exit.ExitCode() != want {
			t.Errorf("%s: %v, want an exit with %d", name, err, want)
		}
	}
}

// TestWaiting: what is ready is said, in its place; others are waited for; and a component whose time is over waits no more.
func TestWaiting(t *testing.T) {
	r, w := io.Pipe()
	g := newGuest(t, wasip2.Config{In: r})
	now := g.call("wasi:clocks/monotonic-clock", "subscribe-duration", uint64(0))
	later := g.call("wasi:clocks/monotonic-clock", "subscribe-duration", uint64(24*time.Hour))
	stdin := g.call("wasi:cli/stdin", "get-stdin")
	input := g.call(streams, "[method]input-stream.subscribe", stdin)
	if got := g.call(polls, "poll", []any{later, now, input}); !reflect.DeepEqual(got, []any{uint32(1)}) {
		t.Errorf("ready are %v, want the second", got)
	}
	if g.call(polls, "[method]pollable.ready", later) != false || g.call(polls, "[method]pollable.ready", now) != true {
		t.Error("the timers are not as they should be")
	}
	if got := g.good(streams, "[method]input-stream.read", stdin, uint64(10)); len(got.([]byte)) != 0 { //nolint:forcetypeassert // as above
		t.Errorf("nothing was written yet, but %q is read", got)
	}
	written := run.Go("the other end", func() error {
		_, err := w.Write([]byte("x"))
		return err
	})
	defer func() {
		if err := <-written; err != nil {
			t.Error(err)
		}
	}()
	if got := g.call(polls, "poll", []any{later, input}); !reflect.DeepEqual(got, []any{uint32(1)}) {
		t.Errorf("ready are %v, want the input", got)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	g.ctx = ctx
	cancel(errors.New("its time is over"))
	if _, err := g.try(polls, "[method]pollable.block", later); err == nil || !strings.Contains(err.Error(), "its time is over") {
		t.Errorf("waiting ends with %v", err)
	}
	for name, args := range map[string][]any{"of nothing": {[]any{}}, "of a stream": {[]any{&canon.Handle{Rep: 999}}}} {
		if _, err := g.try(polls, "poll", args...); err == nil {
			t.Errorf("a poll %s does not trap", name)
		}
	}
}

// workdir is a guest with one directory, open.
func workdir(t *testing.T) (g *guest, dir any, path string) {
	t.Helper()
	path = t.TempDir()
	g = newGuest(t, wasip2.Config{Directories: []wasip2.Directory{{Path: "/work", FS: sysfs.DirFS(path)}}})
	open, _ := g.call("wasi:filesystem/preopens", "get-directories").([]any)
	entry, _ := open[0].([]any)
	if len(open) != 1 || entry[1] != "/work" {
		t.Fatalf("directories %v", open)
	}
	return g, entry[0], path
}

const (
	create, exclusive = canon.Flags(1), canon.Flags(5)
	readWrite         = canon.Flags(3)
	follow            = canon.Flags(1)
)

func TestFiles(t *testing.T) {
	g, dir, path := workdir(t)
	f := g.good(files, "[method]descriptor.open-at", dir, follow, "a.txt", create, readWrite)
	out := g.good(files, "[method]descriptor.write-via-stream", f, uint64(0))
	g.good(streams, "[method]output-stream.blocking-write-and-flush", out, []byte("hello world"))
	end := g.good(files, "[method]descriptor.append-via-stream", f)
	g.good(streams, "[method]output-stream.write", end, []byte("!"))
	g.good(files, "[method]descriptor.write", f, []byte("HE"), uint64(0))
	g.good(files, "[method]descriptor.sync", f)
	if got, err := os.ReadFile(filepath.Join(path, "a.txt")); err != nil || string(got) != "HEllo world!" {
		t.Errorf("the file has %q, %v", got, err)
	}
	if got := g.good(files, "[method]descriptor.read", f, uint64(100), uint64(6)); !reflect.DeepEqual(got, []any{[]byte("world!"), false}) {
		t.Errorf("read %v", got)
	}
	if got := g.all(g.good(files, "[method]descriptor.read-via-stream", f, uint64(2))); got != "llo world!" {
		t.Errorf("the stream has %q", got)
	}
	g.good(files, "[method]descriptor.set-size", f, uint64(5))
	stat, _ := g.good(files, "[method]descriptor.stat-at", dir, follow, "a.txt").([]any)
	if !reflect.DeepEqual(stat[0], enum(6)) || stat[2] != uint64(5) {
		t.Errorf("status %v", stat)
	}
	g.good(files, "[method]descriptor.create-directory-at", dir, "sub")
	g.good(files, "[method]descriptor.rename-at", dir, "a.txt", dir, "sub/b.txt")
	sub := g.good(files, "[method]descriptor.open-at", dir, follow, "sub", canon.Flags(2), canon.Flags(1))
	g.good(files, "[method]descriptor.symlink-at", sub, "b.txt", "c.txt")
	if got := g.good(files, "[method]descriptor.readlink-at", sub, "c.txt"); got != "b.txt" {
		t.Errorf("the link leads to %v", got)
	}
	var names []string
	for entries := g.good(files, "[method]descriptor.read-directory", sub); ; {
		v, _ := g.good(files, "[method]directory-entry-stream.read-directory-entry", entries).(canon.Variant)
		if v.Case == 0 {
			g.drop(entries)
			break
		}
		names = append(names, v.Value.([]any)[1].(string)) //nolint:forcetypeassert // as the interface says
	}
	if len(names) != 2 {
		t.Errorf("entries %v", names)
	}
	same := g.good(files, "[method]descriptor.open-at", sub, follow, "c.txt", canon.Flags(0), canon.Flags(1))
	if g.call(files, "[method]descriptor.is-same-object", f, same) != true ||
		g.call(files, "[method]descriptor.is-same-object", f, dir) != false {
		t.Error("files are not told apart")
	}
	g.good(files, "[method]descriptor.unlink-file-at", sub, "c.txt")
	g.good(files, "[method]descriptor.unlink-file-at", sub, "b.txt")
	g.good(files, "[method]descriptor.remove-directory-at", dir, "sub")
	g.drop(f)
	if left, err := os.ReadDir(path); err != nil || len(left) != 0 {
		t.Errorf("left are %v, %v", left, err)
	}
}

func TestErrorsOfFiles(t *testing.T) {
	g, dir, path := workdir(t)
	if err := errors.Join(os.WriteFile(filepath.Join(path, "f"), nil, 0o600), os.Mkdir(filepath.Join(path, "d"), 0o700),
		os.Symlink("f", filepath.Join(path, "l"))); err != nil {
		t.Fatal(err)
	}
	const exist, invalidNoEntry, isDirectory, loop, notDirectory, notPermitted = 7, 20, 14, 15, 24, 31
	sub := g.good(files, "[method]descriptor.open-at", dir, follow, "d", canon.Flags(0), canon.Flags(1))
	file := g.good(files, "[method]descriptor.open-at", dir, follow, "f", canon.Flags(0), canon.Flags(1))
	for name, c := range map[string]struct {
		want uint32
		call string
		args []any
	}{
		"not there":            {invalidNoEntry, "open-at", []any{dir, follow, "x", canon.Flags(0), canon.Flags(1)}},
		"no name":              {invalidNoEntry, "open-at", []any{dir, follow, "", canon.Flags(0), canon.Flags(1)}},
		"above":                {notPermitted, "open-at", []any{dir, follow, "../x", canon.Flags(0), canon.Flags(1)}},
		"above a subdirectory": {notPermitted, "open-at", []any{sub, follow, "../f", canon.Flags(0), canon.Flags(1)}},
		"above, hidden":        {notPermitted, "stat-at", []any{sub, follow, "x/../../f"}},
		"absolute":             {notPermitted, "unlink-file-at", []any{dir, "/f"}},
		"there already":        {exist, "open-at", []any{dir, follow, "f", exclusive, readWrite}},
		"a link":               {loop, "open-at", []any{dir, canon.Flags(0), "l", canon.Flags(0), canon.Flags(1)}},
		"below a file":         {notDirectory, "open-at", []any{file, follow, "x", canon.Flags(0), canon.Flags(1)}},
		"a directory, read":    {isDirectory, "read", []any{sub, uint64(1), uint64(0)}},
		"a file, listed":       {notDirectory, "read-directory", []any{file}},
		"over a border":        {notPermitted, "rename-at", []any{dir, "f", sub, "../../f"}},
	} {
		if got := g.code(files, "[method]descriptor."+c.call, c.args...); got != c.want {
			t.Errorf("%s: error %d, want %d", name, got, c.want)
		}
	}
	if _, err := g.try(files, "[method]descriptor.read", &canon.Handle{Rep: 77}, uint64(1), uint64(0)); err == nil {
		t.Error("a handle of nothing does not trap")
	}
}

// address is an ip-socket-address on loopback.
func address(port uint16) any {
	return canon.Variant{Value: []any{port, []any{uint8(127), uint8(0), uint8(0), uint8(1)}}}
}

// await waits for a socket, and for others' side of it.
func (g *guest) await(socket any) {
	g.t.Helper()
	p := g.call(tcp, "[method]tcp-socket.subscribe", socket)
	g.call(polls, "[method]pollable.block", p)
	g.drop(p)
}

func (g *guest) socket() any {
	g.t.Helper()
	return g.good("wasi:sockets/tcp-create-socket", "create-tcp-socket", enum(0))
}

// TestSockets: a component connects to itself, in all the steps that the interface wants.
func TestSockets(t *testing.T) {
	g := newGuest(t, wasip2.Config{})
	const wouldBlock, refused, inUse, invalidState = 8, 14, 12, 9
	network := g.call("wasi:sockets/instance-network", "instance-network")
	server, port := g.listening(network)
	if got := g.code(tcp, "[method]tcp-socket.accept", server); got != wouldBlock {
		t.Errorf("without a client: %d", got)
	}
	if got := g.code(tcp, "[method]tcp-socket.start-bind", g.socket(), network, address(port)); got != inUse {
		t.Errorf("on a port that is taken: %d", got)
	}
	client := g.socket()
	g.good(tcp, "[method]tcp-socket.start-connect", client, network, address(port))
	g.await(client)
	ends, _ := g.good(tcp, "[method]tcp-socket.finish-connect", client).([]any)
	g.await(server)
	accepted, _ := g.good(tcp, "[method]tcp-socket.accept", server).([]any)
	g.good(streams, "[method]output-stream.blocking-write-and-flush", ends[1], []byte("ping"))
	g.good(tcp, "[method]tcp-socket.shutdown", client, enum(1))
	if got := g.all(accepted[1]); got != "ping" {
		t.Errorf("received %q", got)
	}
	g.good(streams, "[method]output-stream.blocking-write-and-flush", accepted[2], []byte("pong"))
	g.drop(accepted[0])
	if got := g.all(ends[0]); got != "pong" {
		t.Errorf("received %q", got)
	}
	g.drop(server)
	again := g.socket()
	g.good(tcp, "[method]tcp-socket.start-connect", again, network, address(port))
	g.await(again)
	if got := g.code(tcp, "[method]tcp-socket.finish-connect", again); got != refused {
		t.Errorf("where nobody listens: %d", got)
	}
	if got := g.code(tcp, "[method]tcp-socket.shutdown", g.socket(), enum(0)); got != invalidState {
		t.Errorf("a socket that is not connected: %d", got)
	}
}

// listening is a socket that listens, and its port.
func (g *guest) listening(network any) (socket any, port uint16) {
	g.t.Helper()
	socket = g.socket()
	g.good(tcp, "[method]tcp-socket.start-bind", socket, network, address(0))
	g.good(tcp, "[method]tcp-socket.finish-bind", socket)
	g.good(tcp, "[method]tcp-socket.start-listen", socket)
	g.good(tcp, "[method]tcp-socket.finish-listen", socket)
	local, _ := g.good(tcp, "[method]tcp-socket.local-address", socket).(canon.Variant)
	port, _ = local.Value.([]any)[0].(uint16)
	return socket, port
}

// TestAConnectionOutlivesItsListener: what a component has accepted is its own, however soon the listener goes.
func TestAConnectionOutlivesItsListener(t *testing.T) {
	g := newGuest(t, wasip2.Config{})
	network := g.call("wasi:sockets/instance-network", "instance-network")
	for range 50 {
		server, port := g.listening(network)
		client := g.socket()
		g.good(tcp, "[method]tcp-socket.start-connect", client, network, address(port))
		g.await(client)
		ends, _ := g.good(tcp, "[method]tcp-socket.finish-connect", client).([]any)
		g.await(server)
		accepted, _ := g.good(tcp, "[method]tcp-socket.accept", server).([]any)
		g.drop(server)
		g.good(streams, "[method]output-stream.blocking-write-and-flush", ends[1], []byte("ping"))
		g.good(tcp, "[method]tcp-socket.shutdown", client, enum(1))
		if got := g.all(accepted[1]); got != "ping" {
			t.Fatalf("received %q", got)
		}
		g.drop(accepted[0])
		g.drop(client)
	}
}

// TestASocketConnectsAgain: a connection that failed says nothing of the next one.
func TestASocketConnectsAgain(t *testing.T) {
	g := newGuest(t, wasip2.Config{})
	const refused = 14
	network := g.call("wasi:sockets/instance-network", "instance-network")
	gone, closed := g.listening(network)
	_, open := g.listening(network)
	g.drop(gone)
	client := g.socket()
	g.good(tcp, "[method]tcp-socket.start-connect", client, network, address(closed))
	g.await(client)
	if got := g.code(tcp, "[method]tcp-socket.finish-connect", client); got != refused {
		t.Errorf("where nobody listens: %d", got)
	}
	g.good(tcp, "[method]tcp-socket.start-connect", client, network, address(open))
	g.await(client)
	g.good(tcp, "[method]tcp-socket.finish-connect", client)
}

func TestNames(t *testing.T) {
	g := newGuest(t, wasip2.Config{})
	const lookup = "wasi:sockets/ip-name-lookup"
	found := g.good(lookup, "resolve-addresses", nil, "127.0.0.1")
	want := canon.Some(canon.Variant{Value: []any{uint8(127), uint8(0), uint8(0), uint8(1)}})
	for _, want := range []canon.Variant{want, canon.None()} {
		if got := g.good(lookup, "[method]resolve-address-stream.resolve-next-address", found); !reflect.DeepEqual(got, want) {
			t.Errorf("the next address is %v, want %v", got, want)
		}
	}
}

func TestOtherVersionsAndInterfacesAreNotGiven(t *testing.T) {
	for _, iface := range []string{
		"wasi:cli/environment@0.3.0", "wasi:cli/environment@0.2.0-rc-2023-12-05", "wasi:cli/environment",
		"acme:cli/environment@0.2.0",
	} {
		if (wasip2.Host{}).Func(iface, "get-environment") != nil {
			t.Errorf("%s is given", iface)
		}
	}
}
