// SPDX-License-Identifier: Apache-2.0

// Package wasi is the host's side of WASI 0.2 for guests that are given nothing: no arguments and
// environment, no files, no network. What they print goes to a log, clocks and randomness are what the
// embedder says, and a pollable is always ready, as there is nothing to wait for.
//
// Interfaces are found by name and compatible version: 0.2.0 to 0.2.12 are one. wasi:http is not there.
package wasi

import (
	"encoding/binary"
	"strings"
	"time"

	"github.com/wasmplane/wasmplane/plugins/component/canon"
	"github.com/wasmplane/wasmplane/plugins/component/ctype"
	"github.com/wasmplane/wasmplane/plugins/component/link"
)

// Services is what a guest gets of its embedder; link.Instance.Data has it.
type Services interface {
	// Print takes what is written to standard output and error.
	Print(text string)
	Now() time.Time
	Random(b []byte)
	// Exit ends the guest; it does not return.
	Exit(ok bool)
}

// Provider is how the functions find the services of an instance.
type Provider interface{ WASI() Services }

// The versions that the functions are of.
const version = "@0.2"

const (
	streams = "wasi:io/streams" + version
	poll    = "wasi:io/poll" + version
)

// mostRandom is how many random bytes are handed out at once; a guest that wants more asks again.
const mostRandom = 64 << 10

// writable is how much a guest may write at once.
const writable = 64 << 10

// Func finds a function; nil = it is not given.
func Func(iface, name string) link.HostFunc {
	iface = ctype.Compatible(iface)
	if f := functions[iface+"#"+name]; f != nil {
		return charged(f)
	}
	switch {
	case iface == "wasi:filesystem/types"+version:
		return none("file")
	case strings.HasPrefix(iface, "wasi:sockets/") && strings.HasSuffix(iface, version):
		return none("socket")
	}
	return nil
}

// none is a method of something that nobody can have.
func none(what string) link.HostFunc {
	return func(*link.Call, []any) any {
		canon.Fail("it was given no %s to do this with", what)
		return nil
	}
}

func charged(f link.HostFunc) link.HostFunc {
	return func(c *link.Call, args []any) any {
		c.Instance.Account().Charge(50)
		return f(c, args)
	}
}

func services(c *link.Call) Services {
	p, ok := c.Instance.Data().(Provider)
	if !ok {
		canon.Fail("the host gives this component nothing of WASI")
	}
	return p.WASI()
}

func constant(v any) link.HostFunc { return func(*link.Call, []any) any { return v } }

// handle is a new resource; all of a type are the same, so that nothing has to be kept.
func handle(iface, name string, rep uint32) link.HostFunc {
	return func(c *link.Call, _ []any) any {
		return &canon.Handle{Resource: c.Resource(iface, name), Rep: rep, Own: true}
	}
}

// closed is the stream error of a stream that is at its end.
var closed = canon.Error(canon.Variant{Case: 1})

// refused is the first error of wasi:sockets that says so: access-denied.
var refused = canon.Error(canon.Variant{Case: 1})

func write(contents func(args []any) []byte) link.HostFunc {
	return func(c *link.Call, args []any) any {
		b := contents(args)
		c.Instance.Account().Charge(int64(len(b)))
		services(c).Print(string(b))
		return canon.OK(nil)
	}
}

func random(c *link.Call, n int) []byte {
	b := make([]byte, n)
	services(c).Random(b)
	return b
}

func randomBytes(c *link.Call, args []any) any {
	n := link.Arg[uint64](args, 0)
	if n > mostRandom {
		canon.Fail("it wants %d random bytes at once: at most %d are given", n, mostRandom)
	}
	c.Instance.Account().Charge(int64(n))
	return random(c, int(n))
}

func randomNumber(c *link.Call, _ []any) any { return binary.LittleEndian.Uint64(random(c, 8)) }

func now(c *link.Call, _ []any) any { return uint64(services(c).Now().UnixNano()) }

func wallClock(c *link.Call, _ []any) any {
	t := services(c).Now()
	return []any{uint64(t.Unix()), uint32(t.Nanosecond())}
}

func ready(_ *link.Call, args []any) any {
	list := link.Arg[[]any](args, 0)
	if len(list) == 0 {
		canon.Fail("it polls nothing")
	}
	out := make([]any, len(list))
	for i := range out {
		out[i] = uint32(i)
	}
	return out
}

func exit(c *link.Call, args []any) any {
	services(c).Exit(link.Arg[canon.Variant](args, 0).Case == 0)
	return nil
}

func exitCode(c *link.Call, args []any) any {
	services(c).Exit(link.Arg[uint8](args, 0) == 0)
	return nil
}

// functions are what is given, by interface and name.
var functions = table()

func table() map[string]link.HostFunc {
	functions := map[string]link.HostFunc{}
	give := func(iface string, of map[string]link.HostFunc) {
		for name, f := range of {
			functions[iface+version+"#"+name] = f
		}
	}
	pollable := handle(poll, "pollable", 0)
	give("wasi:cli/environment", map[string]link.HostFunc{
		"get-environment": constant([]any{}), "get-arguments": constant([]any{}), "initial-cwd": constant(canon.None()),
	})
	give("wasi:cli/exit", map[string]link.HostFunc{"exit": exit, "exit-with-code": exitCode})
	give("wasi:cli/stdin", map[string]link.HostFunc{"get-stdin": handle(streams, "input-stream", 0)})
	give("wasi:cli/stdout", map[string]link.HostFunc{"get-stdout": handle(streams, "output-stream", 1)})
	give("wasi:cli/stderr", map[string]link.HostFunc{"get-stderr": handle(streams, "output-stream", 2)})
	for _, name := range []string{"stdin", "stdout", "stderr"} {
		give("wasi:cli/terminal-"+name, map[string]link.HostFunc{"get-terminal-" + name: constant(canon.None())})
	}
	give("wasi:io/error", map[string]link.HostFunc{"[method]error.to-debug-string": constant("")})
	give("wasi:io/poll", map[string]link.HostFunc{
		"[method]pollable.ready": constant(true), "[method]pollable.block": constant(nil), "poll": ready,
	})
	in, out := "[method]input-stream.", "[method]output-stream."
	contents := write(func(args []any) []byte { return link.Arg[[]byte](args, 1) })
	zeroes := write(func(args []any) []byte { return make([]byte, min(link.Arg[uint64](args, 1), writable)) })
	give("wasi:io/streams", map[string]link.HostFunc{
		in + "read": constant(closed), in + "blocking-read": constant(closed), in + "skip": constant(closed),
		in + "blocking-skip": constant(closed),
		in + "subscribe":     pollable, out + "subscribe": pollable,
		out + "check-write": constant(canon.OK(uint64(writable))), out + "write": contents, out + "blocking-write-and-flush": contents,
		out + "flush": constant(canon.OK(nil)), out + "blocking-flush": constant(canon.OK(nil)),
		out + "write-zeroes": zeroes, out + "blocking-write-zeroes-and-flush": zeroes,
		out + "splice": constant(closed), out + "blocking-splice": constant(closed),
	})
	give("wasi:clocks/monotonic-clock", map[string]link.HostFunc{
		"now": now, "resolution": constant(uint64(1)), "subscribe-instant": pollable, "subscribe-duration": pollable,
	})
	give("wasi:clocks/wall-clock", map[string]link.HostFunc{"now": wallClock, "resolution": constant([]any{uint64(0), uint32(1)})})
	give("wasi:random/random", map[string]link.HostFunc{"get-random-bytes": randomBytes, "get-random-u64": randomNumber})
	give("wasi:random/insecure", map[string]link.HostFunc{"get-insecure-random-bytes": randomBytes, "get-insecure-random-u64": randomNumber})
	give("wasi:random/insecure-seed", map[string]link.HostFunc{"insecure-seed": func(c *link.Call, _ []any) any {
		return []any{randomNumber(c, nil), randomNumber(c, nil)}
	}})
	give("wasi:filesystem/preopens", map[string]link.HostFunc{"get-directories": constant([]any{})})
	give("wasi:filesystem/types", map[string]link.HostFunc{"filesystem-error-code": constant(canon.None())})
	give("wasi:sockets/tcp-create-socket", map[string]link.HostFunc{"create-tcp-socket": constant(refused)})
	give("wasi:sockets/udp-create-socket", map[string]link.HostFunc{"create-udp-socket": constant(refused)})
	give("wasi:sockets/ip-name-lookup", map[string]link.HostFunc{"resolve-addresses": constant(refused)})
	give("wasi:sockets/instance-network", map[string]link.HostFunc{"instance-network": handle("wasi:sockets/network"+version, "network", 0)})
	return functions
}
