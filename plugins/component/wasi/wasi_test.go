// SPDX-License-Identifier: Apache-2.0

package wasi_test

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tetratelabs/wazero"

	"github.com/wasmplane/wasmplane/plugins/component/binary"
	"github.com/wasmplane/wasmplane/plugins/component/canon"
	ct "github.com/wasmplane/wasmplane/plugins/component/componenttest"
	"github.com/wasmplane/wasmplane/plugins/component/link"
	"github.com/wasmplane/wasmplane/plugins/component/wasi"
)

// services remember what a guest did.
type services struct {
	printed strings.Builder
	exited  *bool
}

func (s *services) WASI() wasi.Services { return s }
func (s *services) Print(text string)   { s.printed.WriteString(text) }
func (s *services) Now() time.Time      { return time.Unix(1704067200, 42).UTC() }
func (s *services) Random(b []byte)     { copy(b, bytes.Repeat([]byte{7}, len(b))) }
func (s *services) Exit(ok bool)        { s.exited = &ok; panic(errors.New("exited")) }

type host struct{}

func (host) Func(iface, name string) link.HostFunc   { return wasi.Func(iface, name) }
func (host) Drop(*link.Call, string, string, uint32) {}

// instance is one of a component that imports the stream's resource, and nothing else.
func instance(t *testing.T, s *services) *link.Instance {
	t.Helper()
	c := ct.New()
	it := &ct.InstanceType{}
	it.Resource("output-stream")
	c.ImportInstance("wasi:io/streams@0.2.3", c.InstanceType(it))
	decoded, _, err := binary.Decode(c.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	p, err := link.Plan(decoded)
	if err != nil {
		t.Fatal(err)
	}
	r := wazero.NewRuntimeWithConfig(t.Context(), wazero.NewRuntimeConfigInterpreter())
	t.Cleanup(func() { _ = r.Close(t.Context()) })
	l, err := link.Link(t.Context(), r, p, nil, host{})
	if err != nil {
		t.Fatal(err)
	}
	in, err := l.Instantiate(t.Context(), link.Config{Data: s})
	if err != nil {
		t.Fatal(err)
	}
	return in
}

// call calls a function of WASI as a guest does; a trap is an error.
func call(t *testing.T, s *services, iface, name string, args ...any) (v any, err error) {
	t.Helper()
	f := wasi.Func(iface, name)
	if f == nil {
		t.Fatalf("%s#%s is not given", iface, name)
	}
	defer func() {
		if r := recover(); r != nil {
			err, _ = r.(error)
		}
	}()
	return f(&link.Call{Context: t.Context(), Instance: instance(t, s)}, args), nil
}

func TestNothingIsGiven(t *testing.T) {
	for _, c := range []struct {
		iface, name string
		args        []any
		want        any
	}{
		{"wasi:cli/environment@0.2.0", "get-environment", nil, []any{}},
		{"wasi:cli/environment@0.2.12", "get-arguments", nil, []any{}},
		{"wasi:cli/environment@0.2.12", "initial-cwd", nil, canon.None()},
		{"wasi:filesystem/preopens@0.2.6", "get-directories", nil, []any{}},
		{"wasi:sockets/tcp-create-socket@0.2.0", "create-tcp-socket", []any{canon.Variant{}}, canon.Error(canon.Variant{Case: 1})},
		{"wasi:sockets/ip-name-lookup@0.2.0", "resolve-addresses", nil, canon.Error(canon.Variant{Case: 1})},
		{"wasi:clocks/wall-clock@0.2.0", "now", nil, []any{uint64(1704067200), uint32(42)}},
		{"wasi:random/random@0.2.0", "get-random-u64", nil, uint64(0x0707070707070707)},
		{"wasi:random/random@0.2.0", "get-random-bytes", []any{uint64(2)}, []byte{7, 7}},
		{"wasi:io/poll@0.2.0", "poll", []any{[]any{1, 2}}, []any{uint32(0), uint32(1)}},
		{"wasi:io/streams@0.2.9", "[method]input-stream.read", []any{nil, uint64(1)}, canon.Error(canon.Variant{Case: 1})},
	} {
		if got, err := call(t, &services{}, c.iface, c.name, c.args...); err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s#%s answers %v, %v; want %v", c.iface, c.name, got, err, c.want)
		}
	}
}

func TestWhatIsWrittenIsPrinted(t *testing.T) {
	s := &services{}
	v, err := call(t, s, "wasi:io/streams@0.2.3", "[method]output-stream.blocking-write-and-flush", nil, []byte("hello"))
	if err != nil || s.printed.String() != "hello" {
		t.Errorf("printed %q, %v, %v", s.printed.String(), v, err)
	}
	h, err := call(t, s, "wasi:cli/stdout@0.2.3", "get-stdout")
	if handle, ok := h.(*canon.Handle); err != nil || !ok || handle.Resource == nil || !handle.Own {
		t.Errorf("standard output is %v, %v", h, err)
	}
}

func TestGuestsTrapOnWhatIsNotThere(t *testing.T) {
	for name, c := range map[string]struct {
		iface, name, want string
		args              []any
	}{
		"a file":               {"wasi:filesystem/types@0.2.0", "[method]descriptor.read", "given no file", nil},
		"a socket":             {"wasi:sockets/tcp@0.2.0", "[method]tcp-socket.start-bind", "given no socket", nil},
		"a gigabyte at random": {"wasi:random/random@0.2.0", "get-random-bytes", "at most 65536", []any{uint64(1 << 30)}},
		"other parameters":     {"wasi:random/random@0.2.0", "get-random-bytes", "other parameters", []any{"many"}},
		"waiting for nothing":  {"wasi:io/poll@0.2.0", "poll", "polls nothing", []any{[]any{}}},
		"an exit":              {"wasi:cli/exit@0.2.0", "exit", "exited", []any{canon.Error(nil)}},
	} {
		if _, err := call(t, &services{}, c.iface, c.name, c.args...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

func TestOtherVersionsAndInterfacesAreNotGiven(t *testing.T) {
	for _, iface := range []string{
		"wasi:cli/environment@0.3.0", "wasi:cli/environment@1.0.0", "wasi:cli/environment@0.2.0-rc-2023-12-05",
		"wasi:cli/environment", "wasi:http/outgoing-handler@0.2.0", "acme:cli/environment@0.2.0",
	} {
		if wasi.Func(iface, "get-environment") != nil {
			t.Errorf("%s is given", iface)
		}
	}
}
