// SPDX-License-Identifier: Apache-2.0

package wasip1

import (
	"bytes"
	"context"
	"encoding/binary"
	"math"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	experimentalsys "github.com/tetratelabs/wazero/experimental/sys"
	"github.com/tetratelabs/wazero/sys"
	"golang.org/x/sys/unix"

	"github.com/wasmplane/wasmplane/plugins/plugintest/wat"
)

// guest is an instance whose calls the test makes.
type guest struct {
	t *testing.T
	*Host
	m    api.Memory
	stop func()
}

const (
	listening = 4 // after standard input and output and one directory, which has a file "data" of ten bytes
	pages     = 80
	scratch   = 64 << 10 // from there on the memory is the calls' own
)

func newGuest(t *testing.T, stdin *os.File) *guest {
	t.Helper()
	wasm, err := wat.Assemble(`(module (memory (export "memory") 80))`)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "data"), []byte("0123456789"), 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	r := wazero.NewRuntime(ctx)
	h, err := New(ctx, [3]*os.File{stdin})
	if err == nil {
		err = h.Instantiate(ctx, r)
	}
	if err != nil {
		t.Fatal(err)
	}
	cfg := wazero.NewModuleConfig().WithFSConfig(wazero.NewFSConfig().WithDirMount(dir, "/"))
	if stdin != nil {
		cfg = cfg.WithStdin(stdin)
	}
	m, err := r.InstantiateWithConfig(ctx, wasm, cfg)
	if err == nil {
		err = h.Listen(ctx, m, "127.0.0.1:0")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop()
		_ = r.Close(context.WithoutCancel(ctx))
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return &guest{t: t, Host: h, m: m.Memory(), stop: stop}
}

func (g *guest) write(at uint32, b []byte) {
	g.t.Helper()
	if !g.m.Write(at, b) {
		g.t.Fatalf("%d bytes at %d are not in the memory", len(b), at)
	}
}

// happened is an event as the specification lays it out.
type happened struct {
	User  uint64
	Err   uint16
	Kind  uint8
	_     [5]byte
	Bytes uint64
	Flags uint16
	_     [6]byte
}

func ofClock(user uint64, id uint32, timeout time.Duration, flags uint16) []byte {
	b := make([]byte, 48)
	binary.LittleEndian.PutUint64(b, user)
	binary.LittleEndian.PutUint32(b[16:], id)
	binary.LittleEndian.PutUint64(b[24:], uint64(timeout))
	binary.LittleEndian.PutUint16(b[40:], flags)
	return b
}

func ofFile(user uint64, kind byte, fd int32) []byte {
	b := make([]byte, 48)
	binary.LittleEndian.PutUint64(b, user)
	b[8] = kind
	binary.LittleEndian.PutUint32(b[16:], uint32(fd))
	return b
}

// poll subscribes, and answers the events.
func (g *guest) poll(subscriptions ...[]byte) []happened {
	g.t.Helper()
	list := slices.Concat(subscriptions...)
	g.write(scratch, list)
	out := uint32(scratch + len(list))
	if e := g.pollOneoff(g.m, []uint64{scratch, uint64(out), uint64(len(subscriptions)), 0}); e != success {
		g.t.Fatalf("poll_oneoff answered %d", e)
	}
	n, _ := g.m.ReadUint32Le(0)
	b, _ := g.m.Read(out, n*32)
	events := make([]happened, n)
	if _, err := binary.Decode(b, binary.LittleEndian, events); err != nil {
		g.t.Fatal(err)
	}
	return events
}

func (g *guest) expect(what string, got []happened, want ...happened) {
	g.t.Helper()
	if !slices.Equal(got, want) {
		g.t.Errorf("%s: the events are %+v, want %+v", what, got, want)
	}
}

// connect makes a connection to the guest's socket, and answers the descriptor it was accepted as.
func (g *guest) connect() (net.Conn, int32) {
	g.t.Helper()
	name, err := unix.Getsockname(g.lookup(listening).raw)
	if err != nil {
		g.t.Fatal(err)
	}
	c, err := (&net.Dialer{}).DialContext(g.t.Context(), "tcp", (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: name.(*unix.SockaddrInet4).Port}).String()) //nolint:forcetypeassert // of IPv4
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { _ = c.Close() })
	if e := g.sockAccept(g.m, []uint64{listening, flagNonblock, 0}); e != success {
		g.t.Fatalf("sock_accept answered %d", e)
	}
	fd, _ := g.m.ReadUint32Le(0)
	return c, int32(fd)
}

const long = time.Hour

func TestClocksRunOut(t *testing.T) {
	g := newGuest(t, nil)
	began := time.Now()
	g.expect("the shorter one", g.poll(
		ofClock(1, clockMonotonic, long, 0), ofClock(2, clockRealtime, 20*time.Millisecond, 0),
	), happened{User: 2})
	if took := time.Since(began); took < 20*time.Millisecond {
		t.Errorf("it waited for %v", took)
	}
	at := time.Duration(g.Nanotime()) + 20*time.Millisecond
	g.expect("an absolute time", g.poll(
		ofClock(3, clockMonotonic, at, absolute), ofClock(4, clockMonotonic, at+long, absolute),
	), happened{User: 3})
	if now := time.Duration(g.Nanotime()); now < at {
		t.Errorf("it is %v, and was to be %v", now, at)
	}
	wall := time.Duration(time.Now().Add(20 * time.Millisecond).UnixNano())
	g.expect("an absolute time of the day", g.poll(
		ofClock(5, clockRealtime, wall, absolute), ofClock(6, clockMonotonic, math.MaxInt64, absolute),
	), happened{User: 5})
	if now := time.Duration(time.Now().UnixNano()); now < wall {
		t.Errorf("it is %v, and was to be %v", now, wall)
	}
	g.expect("times that have passed", g.poll(
		ofClock(7, clockMonotonic, 0, 0), ofClock(8, clockRealtime, 1, absolute), ofClock(9, clockMonotonic, math.MaxInt64, 0),
	),
		happened{User: 7}, happened{User: 8})
	g.expect("a time that never comes", g.poll(
		ofClock(1, clockMonotonic, -1, 0), ofClock(2, clockRealtime, -1, absolute), ofClock(3, clockMonotonic, 1, 0),
	),
		happened{User: 3})
	g.expect("clocks that cannot be waited for", g.poll(
		ofClock(1, 2, 1, 0), ofClock(2, 3, 1, 0), ofClock(3, 4, 1, 0), ofClock(4, clockMonotonic, 1, 2), ofClock(5, clockMonotonic, long, 0),
	),
		happened{User: 1, Err: 58}, happened{User: 2, Err: 58}, happened{User: 3, Err: 28}, happened{User: 4, Err: 28})
}

func TestHostilePolls(t *testing.T) {
	g := newGuest(t, nil)
	end := uint64(pages << 16)
	clock := ofClock(1, clockMonotonic, 0, 0)
	g.write(scratch, clock)
	for what, c := range map[string]struct {
		from, to, n, result uint64
		want                errno
	}{
		"nothing":                     {scratch, 0, 0, 0, inval},
		"four billion":                {scratch, 0, math.MaxUint32, 0, inval},
		"as many as overflow":         {scratch, 0, 1<<32/48 + 1, 0, inval},
		"too many":                    {0, 0, mostSubscriptions + 1, 0, inval},
		"subscriptions at the end":    {end - 47, 0, 1, 0, fault},
		"subscriptions beyond":        {math.MaxUint32, 0, 1, 0, fault},
		"more than the memory has":    {end - 48, 0, 2, 0, fault},
		"events at the end":           {scratch, end - 31, 1, 0, fault},
		"a result at the end":         {scratch, 0, 1, end - 3, fault},
		"events over the list":        {scratch, scratch, 1, 0, success},
		"a result over the list":      {scratch, 0, 1, scratch + 8, success},
		"a result over its own event": {scratch, 0, 1, 0, success},
	} {
		g.write(scratch, clock)
		if e := g.pollOneoff(g.m, []uint64{c.from, c.to, c.n, c.result}); e != c.want {
			t.Errorf("%s: it answered %d, want %d", what, e, c.want)
		}
	}
	bad := slices.Clone(clock)
	bad[8] = 3
	g.write(scratch, bad)
	if e := g.pollOneoff(g.m, []uint64{scratch, 0, 1, 0}); e != inval {
		t.Errorf("an unknown kind: it answered %d", e)
	}
	// Events are shorter than subscriptions: where they overlap, the second list entry would be lost to the first event.
	g.write(scratch, slices.Concat(ofClock(1, clockMonotonic, 0, 0), ofFile(2, kindRead, 77), ofClock(3, clockMonotonic, 0, 0)))
	if e := g.pollOneoff(g.m, []uint64{scratch, scratch + 16, 3, 0}); e != success {
		t.Fatal(e)
	}
	for i, want := range []uint64{1, 2, 3} {
		if user, _ := g.m.ReadUint64Le(scratch + 16 + 32*uint32(i)); user != want {
			t.Errorf("event %d is of %d", i, user)
		}
	}
	g.expect("descriptors that are not there", g.poll(
		ofFile(1, kindRead, 77), ofFile(2, kindWrite, -1), ofFile(3, kindRead, math.MinInt32), ofClock(4, clockMonotonic, long, 0),
	),
		happened{User: 1, Err: 8, Kind: 1}, happened{User: 2, Err: 8, Kind: 2}, happened{User: 3, Err: 8, Kind: 1})
	// The most that is allowed, all of one socket: the system waits for it once.
	c, fd := g.connect()
	say(t, c, "x")
	var many []byte
	for i := range mostSubscriptions {
		many = append(many, ofFile(uint64(i), kindRead+byte(i%2), fd)...)
	}
	g.write(scratch, many)
	if e := g.pollOneoff(g.m, []uint64{scratch, scratch, mostSubscriptions, 0}); e != success {
		t.Fatal(e)
	}
	if n, _ := g.m.ReadUint32Le(0); n < mostSubscriptions/2 {
		t.Errorf("there are %d events", n)
	}
	if len(g.waiting) > 2 || cap(g.subs) > keepSubscriptions {
		t.Errorf("%d descriptors were waited for, and room for %d subscriptions is kept", len(g.waiting), cap(g.subs))
	}
}

func TestDescriptorsAreReady(t *testing.T) {
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	g := newGuest(t, in)
	soon, never := ofClock(98, clockMonotonic, 0, 0), ofClock(99, clockMonotonic, long, 0)
	idle := happened{User: 98}

	g.expect("standard input without data", g.poll(ofFile(1, kindRead, 0), soon), idle)
	say(t, out, "hello")
	g.expect("standard input", g.poll(ofFile(1, kindRead, 0), never), happened{User: 1, Kind: 1, Bytes: 5})
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	g.expect("standard input at its end", g.poll(ofFile(1, kindRead, 0), never), happened{User: 1, Kind: 1, Bytes: 5, Flags: hangup})
	g.expect("standard output", g.poll(ofFile(1, kindWrite, 1), never), happened{User: 1, Kind: 2})

	file, e := g.fds.OpenFile(g.directory(), "data", 0, 0)
	if e != 0 {
		t.Fatal(e)
	}
	g.expect("a file", g.poll(
		ofFile(1, kindRead, file), ofFile(2, kindWrite, file), never,
	), happened{User: 1, Kind: 1, Bytes: 10}, happened{User: 2, Kind: 2})
	g.read(file, 4)
	g.expect("its rest", g.poll(ofFile(1, kindRead, file), never), happened{User: 1, Kind: 1, Bytes: 6})
	if e := g.fdRenumber(g.m, []uint64{uint64(file), 20}); e != success {
		t.Fatal(e)
	}
	g.expect("a file with another number", g.poll(ofFile(1, kindRead, file), ofFile(2, kindRead, 20), never),
		happened{User: 1, Err: 8, Kind: 1}, happened{User: 2, Kind: 1, Bytes: 6})
	if e := g.fdRenumber(g.m, []uint64{20, 20}); e != success {
		t.Fatal(e)
	}
	g.expect("itself", g.poll(ofFile(2, kindRead, 20), never), happened{User: 2, Kind: 1, Bytes: 6})
	if e := g.fdClose(g.m, []uint64{20}); e != success {
		t.Fatal(e)
	}
	g.expect("a closed file", g.poll(ofFile(1, kindRead, 20), never), happened{User: 1, Err: 8, Kind: 1})

	g.expect("nobody connects", g.poll(ofFile(1, kindRead, listening), soon), idle)
	c, fd := g.connect()
	g.expect("a connection", g.poll(ofFile(1, kindRead, fd), ofFile(2, kindWrite, fd), never), happened{User: 2, Kind: 2, Bytes: 1})
	say(t, c, "hello")
	g.expect("data", g.poll(ofFile(1, kindRead, fd), never), happened{User: 1, Kind: 1, Bytes: 5})
	if got := g.read(fd, 100); got != "hello" {
		t.Errorf("it read %q", got)
	}
	g.expect("no data", g.poll(ofFile(1, kindRead, fd), soon), idle)
	if err := c.(*net.TCPConn).CloseWrite(); err != nil { //nolint:forcetypeassert // of TCP
		t.Fatal(err)
	}
	// It can be read, and gives its end. It is no hangup: the other side still reads.
	g.expect("the end of data", g.poll(ofFile(1, kindRead, fd), never), happened{User: 1, Kind: 1})
	if e := g.sockShutdown(g.m, []uint64{uint64(fd), shutWrite}); e != success {
		t.Fatal(e)
	}
	g.expect("both sides have ended", g.poll(ofFile(1, kindRead, fd), never), happened{User: 1, Kind: 1, Flags: hangup})

	c, fd = g.connect()
	if err := c.(*net.TCPConn).SetLinger(0); err != nil { //nolint:forcetypeassert // of TCP
		t.Fatal(err)
	}
	_ = c.Close()
	got := g.poll(ofFile(1, kindRead, fd), never)
	g.expect("a connection that was reset", got, happened{User: 1, Kind: 1, Flags: hangup})
	if e := g.fdRead(g.m, []uint64{uint64(fd), g.vector(10), 1, 0}); e != 15 {
		t.Errorf("reading it answered %d, want ECONNRESET", e)
	}
}

// directory is the file system of the guest's directory.
func (g *guest) directory() experimentalsys.FS {
	g.t.Helper()
	d, ok := g.find.Call([]reflect.Value{reflect.ValueOf(int32(3))})[0].Elem().FieldByName("FS").Interface().(experimentalsys.FS)
	if !ok {
		g.t.Fatal("descriptor 3 is no directory")
	}
	return d
}

// vector puts one vector into the memory, of a buffer at twice scratch.
func (g *guest) vector(n uint32) uint64 {
	g.write(8, binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, 2*scratch), n))
	return 8
}

// read reads once.
func (g *guest) read(fd int32, most uint32) string {
	g.t.Helper()
	if e := g.fdRead(g.m, []uint64{uint64(fd), g.vector(most), 1, 0}); e != success {
		g.t.Fatalf("fd_read answered %d", e)
	}
	n, _ := g.m.ReadUint32Le(0)
	b, _ := g.m.Read(2*scratch, n)
	return string(bytes.Clone(b))
}

// TestTheEndOfTheContextEndsWhatWaits, for ever as it may.
func TestTheEndOfTheContextEndsWhatWaits(t *testing.T) {
	for what, wait := range map[string]func(g *guest) errno{
		"polling": func(g *guest) errno {
			g.write(scratch, ofClock(1, clockMonotonic, -1, 0))
			return g.pollOneoff(g.m, []uint64{scratch, 0, 1, 0})
		},
		"polling in a loop": func(g *guest) errno {
			g.write(scratch, ofClock(1, clockMonotonic, 0, 0))
			for {
				if e := g.pollOneoff(g.m, []uint64{scratch, 2 * scratch, 1, 0}); e != success {
					return e
				}
			}
		},
		"accepting": func(g *guest) errno { return g.sockAccept(g.m, []uint64{listening, 0, 0}) },
	} {
		t.Run(what, func(t *testing.T) {
			g := newGuest(t, nil)
			ended := time.AfterFunc(10*time.Millisecond, g.stop)
			defer ended.Stop()
			defer func() {
				exit, ok := recover().(*sys.ExitError)
				if !ok || exit.ExitCode() != sys.ExitCodeContextCanceled {
					t.Errorf("it ended with %v", exit)
				}
			}()
			t.Errorf("it answered %d", wait(g))
		})
	}
}
