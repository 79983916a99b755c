// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	crand "crypto/rand"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/tetratelabs/wazero/api"

	"github.com/wasmplane/wasmplane/plugins/fuel"
)

// hostFunction is one function that modules may import.
type hostFunction struct {
	params, results []api.ValueType
	cost            int64 // fuel for each call, besides what it charges by size
	run             func(in *Instance, stack []uint64)
}

const (
	i32 = api.ValueTypeI32
	i64 = api.ValueTypeI64
)

const wasiModule = "wasi_snapshot_preview1"

// WASI error numbers.
const (
	wasiOK     = 0
	wasiBadFd  = 8
	wasiInval  = 28
	wasiNoSys  = 52
	wasiNotSup = 58
)

func errno(f func(in *Instance, s []uint64) uint64) func(in *Instance, s []uint64) {
	return func(in *Instance, s []uint64) { s[0] = f(in, s) }
}

func answer(n uint64) func(in *Instance, s []uint64) {
	return func(_ *Instance, s []uint64) { s[0] = n }
}

// hostFunctions is everything that a module can import, by "module.name". All of
// WASI preview 1 is there, so that modules of ordinary toolchains load; what would
// need files or the network answers that there are none.
var hostFunctions = func() map[string]hostFunction {
	all := map[string]hostFunction{
		"wasmplane.call": {params: []api.ValueType{i32, i32, i32, i32, i32, i32}, results: []api.ValueType{i64}, cost: 100, run: hostCall},
		"env.abort":      {params: []api.ValueType{i32, i32, i32, i32}, run: abort},
	}
	wasi := func(name string, params []api.ValueType, run func(in *Instance, s []uint64)) {
		all[wasiModule+"."+name] = hostFunction{params: params, results: []api.ValueType{i32}, cost: 50, run: run}
	}
	p := func(t ...api.ValueType) []api.ValueType { return t }
	wasi("args_get", p(i32, i32), errno(wasiArgs))
	wasi("args_sizes_get", p(i32, i32), errno(wasiArgSizes))
	wasi("environ_get", p(i32, i32), answer(wasiOK))
	wasi("environ_sizes_get", p(i32, i32), errno(wasiNoStrings))
	wasi("clock_res_get", p(i32, i32), errno(func(in *Instance, s []uint64) uint64 { return in.put64(uint32(s[1]), 1) }))
	wasi("clock_time_get", p(i32, i64, i32), errno(wasiClock))
	wasi("random_get", p(i32, i32), errno(wasiRandom))
	wasi("fd_write", p(i32, i32, i32, i32), errno(wasiWrite))
	wasi("fd_read", p(i32, i32, i32, i32), errno(wasiRead))
	wasi("fd_fdstat_get", p(i32, i32), errno(wasiFdStat))
	wasi("poll_oneoff", p(i32, i32, i32, i32), errno(wasiPoll))
	wasi("sched_yield", nil, answer(wasiOK))
	exit := hostFunction{params: p(i32), cost: 50, run: func(_ *Instance, s []uint64) {
		panic(&stop{kind: Exit, detail: fmt.Sprintf("it exited with code %d", uint32(s[0])), code: uint32(s[0])})
	}}
	all[wasiModule+".proc_exit"] = exit
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
		wasi(name, params, answer(wasiBadFd))
	}
	wasi("proc_raise", p(i32), answer(wasiNoSys))
	return all
}()

// defineHostModules makes the modules that guests import from. They are stateless:
// the instance that calls is found in the context of its call.
func (h *Host) defineHostModules() error {
	yield := h.runtime.NewHostModuleBuilder(fuel.ImportModule)
	yield.NewFunctionBuilder().WithGoModuleFunction(api.GoModuleFunc(func(ctx context.Context, mod api.Module, s []uint64) {
		instanceOf(ctx, mod).safePoint(uint32(s[0]))
	}), []api.ValueType{i32}, nil).Export(fuel.ImportYield)
	if _, err := yield.Instantiate(h.base); err != nil {
		return fmt.Errorf("define %s: %w", fuel.ImportModule, err)
	}
	for _, module := range []string{wasiModule, "wasmplane", "env"} {
		b := h.runtime.NewHostModuleBuilder(module)
		for name, f := range hostFunctions {
			if len(name) <= len(module) || name[:len(module)+1] != module+"." {
				continue
			}
			b.NewFunctionBuilder().WithGoModuleFunction(api.GoModuleFunc(func(ctx context.Context, mod api.Module, s []uint64) {
				in := instanceOf(ctx, mod)
				in.enterHost(f.cost)
				f.run(in, s)
			}), f.params, f.results).Export(name[len(module)+1:])
		}
		if _, err := b.Instantiate(h.base); err != nil {
			return fmt.Errorf("define %s: %w", module, err)
		}
	}
	return nil
}

// put64 and put32 write to the guest; a bad pointer is the guest's fault.
func (in *Instance) put64(at uint32, v uint64) uint64 {
	if !in.memory.WriteUint64Le(at, v) {
		return wasiInval
	}
	return wasiOK
}

func (in *Instance) put32(at uint32, v uint32) uint64 {
	if !in.memory.WriteUint32Le(at, v) {
		return wasiInval
	}
	return wasiOK
}

func wasiNoStrings(in *Instance, s []uint64) uint64 {
	return max(in.put32(uint32(s[0]), 0), in.put32(uint32(s[1]), 0))
}

// fakeEpoch is what a clock that was not granted starts at: 2024-01-01T00:00:00Z.
const fakeEpoch = 1704067200 * int64(time.Second)

func wasiClock(in *Instance, s []uint64) uint64 {
	return in.put64(uint32(s[2]), uint64(in.now()))
}

// now is the granted clock, or one that goes on by a microsecond at each look.
func (in *Instance) now() int64 {
	if in.module.opts.Clock {
		return time.Now().UnixNano()
	}
	in.fakeClock += 1000
	return fakeEpoch + in.fakeClock
}

func wasiRandom(in *Instance, s []uint64) uint64 {
	at, n := uint32(s[0]), uint32(s[1])
	in.charge(int64(n) / 4)
	b, ok := in.memory.Read(at, n)
	if !ok {
		return wasiInval
	}
	in.random(b)
	return wasiOK
}

// random fills b with the granted randomness, or with the same numbers each time.
func (in *Instance) random(b []byte) {
	if in.module.opts.Random {
		_, _ = crand.Read(b) // never fails
		return
	}
	for i := range b {
		in.fakeRandom ^= in.fakeRandom << 13
		in.fakeRandom ^= in.fakeRandom >> 7
		in.fakeRandom ^= in.fakeRandom << 17
		b[i] = byte(in.fakeRandom >> 32)
	}
}

func wasiWrite(in *Instance, s []uint64) uint64 {
	fd, vec, count, result := uint32(s[0]), uint32(s[1]), uint32(s[2]), uint32(s[3])
	if fd != 1 && fd != 2 {
		return wasiBadFd
	}
	in.charge(int64(count) * 4)
	if count > 1024 {
		return wasiInval
	}
	var total uint32
	for i := uint32(0); i < count; i++ {
		v, ok := in.memory.Read(vec+8*i, 8)
		if !ok {
			return wasiInval
		}
		data, ok := in.memory.Read(binary.LittleEndian.Uint32(v), binary.LittleEndian.Uint32(v[4:]))
		if !ok {
			return wasiInval
		}
		if in.command != nil && fd == 1 {
			in.stdout(data)
		} else {
			in.printed(data)
		}
		total += uint32(len(data))
	}
	return in.put32(result, total)
}

// wasiFdStat says that 0, 1 and 2 are there and cannot be sought.
func wasiFdStat(in *Instance, s []uint64) uint64 {
	if uint32(s[0]) > 2 {
		return wasiBadFd
	}
	b, ok := in.memory.Read(uint32(s[1]), 24)
	if !ok {
		return wasiInval
	}
	clear(b)
	b[0] = 2 // character device
	binary.LittleEndian.PutUint64(b[8:], 1<<6)
	return wasiOK
}

// wasiPoll answers that every clock has run out: a guest cannot sleep. File
// descriptors are always ready.
func wasiPoll(in *Instance, s []uint64) uint64 {
	from, to, n, result := uint32(s[0]), uint32(s[1]), uint32(s[2]), uint32(s[3])
	in.charge(int64(n) * 8)
	if n == 0 || n > 64 {
		return wasiInval
	}
	for i := uint32(0); i < n; i++ {
		sub, ok := in.memory.Read(from+48*i, 48)
		if !ok {
			return wasiInval
		}
		event, ok := in.memory.Read(to+32*i, 32)
		if !ok {
			return wasiInval
		}
		if sub[8] == 0 && binary.LittleEndian.Uint16(sub[40:])&1 == 0 { // a relative clock
			in.fakeClock += int64(min(binary.LittleEndian.Uint64(sub[24:]), uint64(time.Hour)))
		}
		clear(event)
		copy(event, sub[:8]) // user data
		event[10] = sub[8]   // kind of event
	}
	return in.put32(result, n)
}

// abort is what AssemblyScript calls where its code throws: message and file
// are UTF-16 strings with their length in bytes before them.
func abort(in *Instance, s []uint64) {
	panic(&stop{kind: Trap, detail: fmt.Sprintf("abort: %s at %s:%d:%d",
		in.utf16(uint32(s[0])), in.utf16(uint32(s[1])), uint32(s[2]), uint32(s[3]))})
}

func (in *Instance) utf16(at uint32) string {
	if at < 4 {
		return ""
	}
	n, ok := in.memory.ReadUint32Le(at - 4)
	if !ok || n > 1024 {
		return ""
	}
	b, ok := in.memory.Read(at, n)
	if !ok {
		return ""
	}
	var out []rune
	for i := 0; i+1 < len(b); i += 2 {
		out = append(out, rune(binary.LittleEndian.Uint16(b[i:])))
	}
	return string(out)
}
