// SPDX-License-Identifier: Apache-2.0

package workload_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/wasmplane/wasmplane/core/run"
	ct "github.com/wasmplane/wasmplane/plugins/component/componenttest"
	"github.com/wasmplane/wasmplane/plugins/workload"
)

// exporting is a component that exports a function without parameters in an interface, and imports one of its host.
func exporting(iface, name, imported, result, body string) []byte {
	c := ct.New()
	exit := &ct.InstanceType{}
	none := ct.Ref(exit.Type(byte(0x6a), byte(0), byte(0)))
	exit.Func("exit", "", none)
	host := c.ImportInstance(imported, c.InstanceType(exit))
	lowered := c.Bundle(ct.Arg{Name: "exit", Index: c.Lower(c.Alias(ct.Func, host, "exit"))})
	main := c.Instantiate(c.Core(`(module (import "h" "exit" (func $exit (param i32)))
  (func (export "main") `+result+body+`))`), ct.Arg{Name: "h", Index: lowered})
	var typ ct.Type
	if result != "" {
		typ = ct.Ref(c.Type(byte(0x6a), byte(0), byte(0)))
	}
	f := c.Lift(c.CoreFunc(main, "main"), c.FuncType(typ))
	c.Raw(5, 1, byte(1), 1, byte(0), name, ct.Func, f)
	c.Export(iface, ct.Instances, 1)
	return c.Bytes()
}

func TestAComponentEndsAsItSays(t *testing.T) {
	const exit, result = "wasi:cli/exit@0.2.6", "(result i32) "
	command := func(body string) []byte { return exporting("wasi:cli/run@0.2.0", "run", exit, result, body) }
	for _, c := range []struct {
		name    string
		binary  []byte
		command string
		code    int
		problem string
	}{
		{"succeeds", command("i32.const 0"), "/main.wasm", 0, ""},
		{"fails", command("i32.const 1"), "/main.wasm#run", 1, ""},
		{"exits", command("(call $exit (i32.const 0)) unreachable"), "/main.wasm", 0, ""},
		{"exits with an error", command("(call $exit (i32.const 1)) unreachable"), "/main.wasm", 1, ""},
		{"traps", command("unreachable"), "/main.wasm", workload.ExitTrap, "unreachable"},
		{"is no server", command("i32.const 0"), "/main.wasm#handle", workload.ExitCannotRun, `names "handle"`},
		{"another function", command("i32.const 0"), "/main.wasm#other", workload.ExitCannotRun, `names "other"`},
		{"of another world", exporting("acme:app/run@1.0.0", "run", exit, result, "i32.const 0"), "/main.wasm", workload.ExitCannotRun, "neither wasi:cli/run@0.2"},
		{"of WASI 0.3", exporting("wasi:cli/run@0.3.0", "run", exit, result, "i32.const 0"), "/main.wasm", workload.ExitCannotRun, "neither wasi:cli/run@0.2"},
		{"imports what nobody gives", exporting("wasi:cli/run@0.2.0", "run", "acme:host/exit@1.0.0", result, "i32.const 0"), "/main.wasm", workload.ExitCannotRun, "acme:host/exit@1.0.0"},
		{"cut off", command("i32.const 0")[:40], "/main.wasm", workload.ExitCannotRun, "decode the component"},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, _, err := execute(t, workload.Config{Root: container(t, c.binary)}, c.command)
			if code != c.code || (err == nil) != (c.problem == "") || err != nil && !strings.Contains(err.Error(), c.problem) {
				t.Errorf("it ended with %d, %v; want %d, %q", code, err, c.code, c.problem)
			}
		})
	}
}

// TestAServerListensOnTheContainersPorts, until it is told to stop, and ends with 0 then.
func TestAServerListensOnTheContainersPorts(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port //nolint:forcetypeassert // of TCP
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	serving := make(chan struct{})
	c := workload.Config{
		Root:   container(t, exporting("wasi:http/incoming-handler@0.2.2", "handle", "wasi:cli/exit@0.2.0", "", "")),
		Listen: []workload.Port{{Name: "http", Port: port}}, Serving: func() { close(serving) },
	}
	var code int
	done := run.Go("the component", func() (err error) {
		code, err = workload.Run(ctx, c, []string{"main.wasm"}, nil, workload.Stdio{In: strings.NewReader(""), Out: io.Discard, Err: io.Discard})
		return err
	})
	select {
	case <-serving:
	case err := <-done:
		t.Fatalf("it ended with %d, %v", code, err)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+l.Addr().String(), http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	// It has a handler of other parameters, so that what it does is no answer; that it was asked is enough.
	if err := answer.Body.Close(); err != nil || answer.StatusCode != http.StatusInternalServerError {
		t.Errorf("it answered %d, %v", answer.StatusCode, err)
	}
	stop()
	if err := <-done; err != nil || code != 0 {
		t.Errorf("it ended with %d, %v", code, err)
	}
	c.Serving, c.Listen = nil, []workload.Port{{Port: 1 << 20}}
	if code, _, err := execute(t, c, "main.wasm"); code != workload.ExitCannotRun || !errors.As(err, new(*net.OpError)) && !strings.Contains(err.Error(), "listen") {
		t.Errorf("on no port it ended with %d, %v", code, err)
	}
}
