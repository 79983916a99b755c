// SPDX-License-Identifier: Apache-2.0

// Package preview1 has the imports of modules of ordinary toolchains: all of WASI preview 1,
// with clocks, randomness and output of the guest's own; what would need files or the
// network answers that there are none.
package preview1

import (
	"encoding/binary"
	"strings"
	"time"

	"github.com/tetratelabs/wazero/api"
)

// The modules from which guests import it: Unstable is an older version, of which Functions leaves out what has changed.
const (
	Module   = "wasi_snapshot_preview1"
	Unstable = "wasi_unstable"
)

// Guest is the instance that calls. What ends it does not return to the functions here.
type Guest interface {
	// Linear is its memory.
	Linear() api.Memory
	// Charge takes fuel for work that is done for it.
	Charge(units int64)
	// Clock is its time in nanoseconds. Where it has no real one, Pass lets that time go by.
	Clock() int64
	Pass(d time.Duration)
	// Fill makes random bytes.
	Fill(b []byte)
	// Standard are its arguments and standard files; nil = it is no command and has only those to write to.
	Standard() *Standard
	// Output writes to standard output (1) or error (2).
	Output(fd uint32, data []byte)
	// Exit ends it.
	Exit(code uint32)
}

// Standard is what a command begins with.
type Standard struct {
	Args  []string
	Stdin []byte // what is left to read
}

// Function is one function that guests may import.
type Function struct {
	Params, Results []api.ValueType
	Cost            int64 // fuel for each call, besides what it charges by size
	Run             func(g Guest, stack []uint64)
}

// Error numbers of WASI.
const (
	ok     = 0
	badFd  = 8
	inval  = 28
	noSys  = 52
	mostIO = 1024 // buffers of one call
)

const (
	i32 = api.ValueTypeI32
	i64 = api.ValueTypeI64
)

// Functions are those of a module, by name; nil where it is none of WASI's.
func Functions(module string) map[string]Function {
	switch module {
	case Module:
		return functions
	case Unstable:
		return unstable
	}
	return nil
}

var functions = all()

// unstable has no polls: their subscriptions had another layout.
var unstable = func() map[string]Function {
	out := all()
	poll := out["poll_oneoff"]
	poll.Run = answer(noSys)
	out["poll_oneoff"] = poll
	return out
}()

func errno(f func(g Guest, s []uint64) uint64) func(g Guest, s []uint64) {
	return func(g Guest, s []uint64) { s[0] = f(g, s) }
}

func answer(n uint64) func(g Guest, s []uint64) {
	return func(_ Guest, s []uint64) { s[0] = n }
}

func all() map[string]Function {
	out := map[string]Function{}
	wasi := func(name string, params []api.ValueType, run func(g Guest, s []uint64)) {
		out[name] = Function{Params: params, Results: []api.ValueType{i32}, Cost: 50, Run: run}
	}
	p := func(t ...api.ValueType) []api.ValueType { return t }
	wasi("args_get", p(i32, i32), errno(args))
	wasi("args_sizes_get", p(i32, i32), errno(argSizes))
	wasi("environ_get", p(i32, i32), answer(ok))
	wasi("environ_sizes_get", p(i32, i32), errno(noStrings))
	wasi("clock_res_get", p(i32, i32), errno(func(g Guest, s []uint64) uint64 { return put64(g, uint32(s[1]), 1) }))
	wasi("clock_time_get", p(i32, i64, i32), errno(clock))
	wasi("random_get", p(i32, i32), errno(random))
	wasi("fd_write", p(i32, i32, i32, i32), errno(write))
	wasi("fd_read", p(i32, i32, i32, i32), errno(read))
	wasi("fd_fdstat_get", p(i32, i32), errno(fdStat))
	wasi("poll_oneoff", p(i32, i32, i32, i32), errno(poll))
	wasi("sched_yield", nil, answer(ok))
	wasi("proc_raise", p(i32), answer(noSys))
	out["proc_exit"] = Function{Params: p(i32), Cost: 50, Run: func(g Guest, s []uint64) { g.Exit(uint32(s[0])) }}
	for name, params := range map[string][]api.ValueType{
		"fd_close": p(i32), "fd_datasync": p(i32), "fd_sync": p(i32), "fd_fdstat_set_flags": p(i32, i32),
		"fd_fdstat_set_rights": p(i32, i64, i64), "fd_filestat_get": p(i32, i32), "fd_filestat_set_size": p(i32, i64),
		"fd_filestat_set_times": p(i32, i64, i64, i32), "fd_advise": p(i32, i64, i64, i32), "fd_allocate": p(i32, i64, i64),
		"fd_pread": p(i32, i32, i32, i64, i32), "fd_pwrite": p(i32, i32, i32, i64, i32), "fd_prestat_get": p(i32, i32),
		"fd_prestat_dir_name": p(i32, i32, i32), "fd_readdir": p(i32, i32, i32, i64, i32),
		"fd_renumber": p(i32, i32), "fd_seek": p(i32, i64, i32, i32), "fd_tell": p(i32, i32),
		"path_create_directory": p(i32, i32, i32), "path_filestat_get": p(i32, i32, i32, i32, i32),
		"path_filestat_set_times": p(i32, i32, i32, i32, i64, i64, i32), "path_link": p(i32, i32, i32, i32, i32, i32, i32),
		"path_open": p(i32, i32, i32, i32, i32, i64, i64, i32, i32), "path_readlink": p(i32, i32, i32, i32, i32, i32),
		"path_remove_directory": p(i32, i32, i32), "path_rename": p(i32, i32, i32, i32, i32, i32),
		"path_symlink": p(i32, i32, i32, i32, i32), "path_unlink_file": p(i32, i32, i32),
		"sock_accept": p(i32, i32, i32), "sock_recv": p(i32, i32, i32, i32, i32, i32), "sock_send": p(i32, i32, i32, i32, i32),
		"sock_shutdown": p(i32, i32),
	} {
		wasi(name, params, answer(badFd))
	}
	return out
}

// put64 and put32 write to the guest; a bad pointer is the guest's fault.
func put64(g Guest, at uint32, v uint64) uint64 {
	if !g.Linear().WriteUint64Le(at, v) {
		return inval
	}
	return ok
}

func put32(g Guest, at, v uint32) uint64 {
	if !g.Linear().WriteUint32Le(at, v) {
		return inval
	}
	return ok
}

func noStrings(g Guest, s []uint64) uint64 {
	return max(put32(g, uint32(s[0]), 0), put32(g, uint32(s[1]), 0))
}

func clock(g Guest, s []uint64) uint64 { return put64(g, uint32(s[2]), uint64(g.Clock())) }

func random(g Guest, s []uint64) uint64 {
	at, n := uint32(s[0]), uint32(s[1])
	g.Charge(int64(n) / 4)
	b, found := g.Linear().Read(at, n)
	if !found {
		return inval
	}
	g.Fill(b)
	return ok
}

// vectors calls f with each buffer of a list, and writes the sum of what it returns.
func vectors(g Guest, s []uint64, f func(b []byte) int) uint64 {
	vec, count, result := uint32(s[1]), uint32(s[2]), uint32(s[3])
	g.Charge(int64(count) * 4)
	if count > mostIO {
		return inval
	}
	var total uint32
	for i := range count {
		v, found := g.Linear().Read(vec+8*i, 8)
		if !found {
			return inval
		}
		b, found := g.Linear().Read(binary.LittleEndian.Uint32(v), binary.LittleEndian.Uint32(v[4:]))
		if !found {
			return inval
		}
		total += uint32(f(b))
	}
	return put32(g, result, total)
}

func write(g Guest, s []uint64) uint64 {
	fd := uint32(s[0])
	if fd != 1 && fd != 2 {
		return badFd
	}
	return vectors(g, s, func(b []byte) int {
		g.Output(fd, b)
		return len(b)
	})
}

// read reads standard input; there is no other file.
func read(g Guest, s []uint64) uint64 {
	std := g.Standard()
	if uint32(s[0]) != 0 || std == nil {
		return badFd
	}
	return vectors(g, s, func(b []byte) int {
		n := copy(b, std.Stdin)
		g.Charge(int64(n) / 4)
		std.Stdin = std.Stdin[n:]
		return n
	})
}

// fdStat says that 0, 1 and 2 are there and cannot be sought.
func fdStat(g Guest, s []uint64) uint64 {
	if uint32(s[0]) > 2 {
		return badFd
	}
	b, found := g.Linear().Read(uint32(s[1]), 24)
	if !found {
		return inval
	}
	clear(b)
	b[0] = 2 // character device
	binary.LittleEndian.PutUint64(b[8:], 1<<6)
	return ok
}

// poll answers that every clock has run out: a guest cannot sleep. File
// descriptors are always ready.
func poll(g Guest, s []uint64) uint64 {
	from, to, n, result := uint32(s[0]), uint32(s[1]), uint32(s[2]), uint32(s[3])
	g.Charge(int64(n) * 8)
	if n == 0 || n > 64 {
		return inval
	}
	for i := range n {
		sub, found := g.Linear().Read(from+48*i, 48)
		if !found {
			return inval
		}
		event, found := g.Linear().Read(to+32*i, 32)
		if !found {
			return inval
		}
		if sub[8] == 0 && binary.LittleEndian.Uint16(sub[40:])&1 == 0 { // a relative clock
			g.Pass(time.Duration(min(binary.LittleEndian.Uint64(sub[24:]), uint64(time.Hour))))
		}
		clear(event)
		copy(event, sub[:8]) // user data
		event[10] = sub[8]   // kind of event
	}
	return put32(g, result, n)
}

func arguments(g Guest) []string {
	if std := g.Standard(); std != nil {
		return std.Args
	}
	return nil
}

func argSizes(g Guest, s []uint64) uint64 {
	list := arguments(g)
	bytes := len(strings.Join(list, "")) + len(list)
	return max(put32(g, uint32(s[0]), uint32(len(list))), put32(g, uint32(s[1]), uint32(bytes)))
}

func args(g Guest, s []uint64) uint64 {
	argv, buf := uint32(s[0]), uint32(s[1])
	for _, a := range arguments(g) {
		if put32(g, argv, buf) != ok || !g.Linear().WriteString(buf, a+"\x00") {
			return inval
		}
		argv, buf = argv+4, buf+uint32(len(a))+1
	}
	return ok
}
