// SPDX-License-Identifier: Apache-2.0

// Package wasip1 completes what the engine has of WASI 0.1 (preview 1), for servers: sockets that do not block, and a poll_oneoff that
// waits for several of them, for standard input and for clocks at the same time. All other functions are the engine's own, and the
// descriptors are those of its table: a socket is a file of ours in it.
//
// A Host serves one instance, which has one thread. Everything in it is called by that thread, but for what ends the context.
//
// The source of what each function answers is the specification:
// https://github.com/WebAssembly/WASI/blob/snapshot-01/phases/snapshot/docs.md
package wasip1

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	experimentalsys "github.com/tetratelabs/wazero/experimental/sys"
	"github.com/tetratelabs/wazero/imports/wasi_snapshot_preview1"
	"github.com/tetratelabs/wazero/sys"
	"golang.org/x/sys/unix"
)

// Host is the host's side of one instance.
type Host struct {
	stdio [3]*os.File
	base  time.Time // zero of the instance's monotonic clock
	wake  int       // can be read from the end of the context on
	stop  func() bool
	polls atomic.Int64

	fds   table
	find  reflect.Value // the method LookupFile of fds, whose result is a type of the engine's own
	known map[int32]*open

	// Kept from one call to the next, so that a server that waits makes no garbage.
	subs    []subscription
	waiting []unix.PollFd
	vectors [][]byte
	round   uint64
}

// table is what we need of the engine's table of open files.
type table interface {
	OpenFile(fs experimentalsys.FS, path string, flag experimentalsys.Oflag, perm fs.FileMode) (int32, experimentalsys.Errno)
	CloseFile(fd int32) experimentalsys.Errno
	Renumber(from, to int32) experimentalsys.Errno
}

// open is an open file of the table. It is forgotten when its descriptor is closed.
type open struct {
	file   experimentalsys.File
	socket *socket // nil = it is none
	raw    int     // the system's descriptor that can be waited for; -1 = it is always ready

	round uint64 // the call of poll_oneoff that has it at slot of Host.waiting
	slot  int
}

// New makes a host. The standard files are those that the instance has: nil stands for one that is always ready. When the context ends, the
// instance does as soon as it waits.
func New(ctx context.Context, stdio [3]*os.File) (*Host, error) {
	wake, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make a descriptor that ends waiting: %w", err)
	}
	h := &Host{stdio: stdio, base: time.Now(), wake: wake, known: map[int32]*open{}}
	signalled := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(signalled)
		_, _ = unix.Write(wake, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // it cannot be full
	})
	h.stop = func() bool {
		stopped := stop()
		if !stopped {
			<-signalled // not into a descriptor that has become another's
		}
		return stopped
	}
	return h, nil
}

// Close gives back what the host has; its instance must have ended.
func (h *Host) Close() error {
	h.stop()
	return unix.Close(h.wake)
}

// Nanotime is the monotonic clock that the instance must have, so that absolute times of poll_oneoff mean what it has read.
func (h *Host) Nanotime() int64 { return int64(time.Since(h.base)) }

// Instantiate makes the module that the instance imports.
func (h *Host) Instantiate(ctx context.Context, r wazero.Runtime) error {
	b := r.NewHostModuleBuilder(wasi_snapshot_preview1.ModuleName)
	wasi_snapshot_preview1.NewFunctionExporter().ExportFunctions(b)
	export := func(name string, params int, f func(m api.Memory, p []uint64) errno) {
		types := make([]api.ValueType, params)
		for i := range types {
			types[i] = api.ValueTypeI32
		}
		b.NewFunctionBuilder().WithGoModuleFunction(api.GoModuleFunc(func(_ context.Context, m api.Module, stack []uint64) {
			if err := h.attach(m); err != nil {
				panic(err)
			}
			stack[0] = uint64(f(m.Memory(), stack))
		}), types, []api.ValueType{api.ValueTypeI32}).Export(name)
	}
	export("poll_oneoff", 4, h.pollOneoff)
	export("fd_read", 4, h.fdRead)
	export("fd_write", 4, h.fdWrite)
	export("fd_close", 1, h.fdClose)
	export("fd_renumber", 2, h.fdRenumber)
	export("sock_accept", 3, h.sockAccept)
	export("sock_recv", 6, h.sockRecv)
	export("sock_send", 5, h.sockSend)
	export("sock_shutdown", 2, h.sockShutdown)
	_, err := b.Instantiate(ctx)
	return err
}

// attach finds the table of the instance's files. The engine has no public way to it: its fields and methods are public, but their types'
// package is internal.
func (h *Host) attach(m api.Module) error {
	if h.fds != nil {
		return nil
	}
	instance := reflect.Indirect(reflect.ValueOf(m))
	if instance.Kind() != reflect.Struct {
		return errNoTable
	}
	context := instance.FieldByName("Sys")
	if !context.IsValid() || context.Kind() != reflect.Pointer || context.IsNil() {
		return errNoTable
	}
	get := context.MethodByName("FS")
	if !get.IsValid() || get.Type().NumIn() != 0 || get.Type().NumOut() != 1 {
		return errNoTable
	}
	found := get.Call(nil)[0]
	fds, ok := found.Interface().(table)
	find := found.MethodByName("LookupFile")
	if !ok || !find.IsValid() || find.Type().NumIn() != 1 || find.Type().NumOut() != 2 {
		return errNoTable
	}
	h.fds, h.find = fds, find
	return nil
}

var errNoTable = errors.New("this version of the engine keeps open files in another way than WASI's sockets expect: see plugins/workload/wasip1")

// lookup is the file of a descriptor; nil if there is none.
func (h *Host) lookup(fd int32) *open {
	if o, ok := h.known[fd]; ok {
		return o
	}
	out := h.find.Call([]reflect.Value{reflect.ValueOf(fd)})
	if !out[1].Bool() {
		return nil
	}
	entry := out[0].Elem()
	file, ok := entry.FieldByName("File").Interface().(experimentalsys.File)
	if !ok {
		return nil
	}
	o := &open{file: file, raw: -1}
	if s, ok := file.(*socket); ok {
		o.socket, o.raw = s, s.fd
	} else if fd >= 0 && int(fd) < len(h.stdio) && entry.FieldByName("IsPreopen").Bool() && h.stdio[fd] != nil {
		o.raw = int(h.stdio[fd].Fd())
	}
	h.known[fd] = o
	return o
}

// insert gives a socket a descriptor of the instance.
func (h *Host) insert(s *socket) (int32, errno) {
	fd, e := h.fds.OpenFile(only{socket: s}, "", 0, 0)
	if e != 0 {
		_ = s.Close()
		return 0, numberOf(e)
	}
	h.known[fd] = &open{file: s, socket: s, raw: s.fd}
	return fd, success
}

// only is a file system with one file, which is how the table takes it.
type only struct {
	experimentalsys.UnimplementedFS
	socket *socket
}

// OpenFile implements experimentalsys.FS.
func (o only) OpenFile(string, experimentalsys.Oflag, fs.FileMode) (experimentalsys.File, experimentalsys.Errno) {
	return o.socket, 0
}

// Listen gives the instance a listening socket on each of some addresses, as the descriptors after those that it has. They block, until the
// instance wants them not to.
func (h *Host) Listen(ctx context.Context, m api.Module, addresses ...string) error {
	if err := h.attach(m); err != nil {
		return err
	}
	for _, address := range addresses {
		s, err := listen(ctx, address)
		if err != nil {
			return fmt.Errorf("listen on the container's port: %w", err)
		}
		if _, e := h.insert(s); e != success {
			return fmt.Errorf("give the module its socket: error %d of WASI", e)
		}
	}
	return nil
}

// await waits until a descriptor of the system has one of some events, or the context ends, which ends the instance.
func (h *Host) await(fd int, events int16) {
	fds := [2]unix.PollFd{{Fd: int32(h.wake), Events: unix.POLLIN}, {Fd: int32(fd), Events: events}}
	for {
		_, err := unix.Ppoll(fds[:], nil, nil)
		h.endIf(fds[0].Revents != 0)
		if !errors.Is(err, unix.EINTR) {
			return // whatever is wrong with the descriptor, the next use of it says
		}
	}
}

// endIf ends the instance, as the end of its context does.
func (h *Host) endIf(ended bool) {
	if ended {
		panic(sys.NewExitError(sys.ExitCodeContextCanceled))
	}
}
