// SPDX-License-Identifier: Apache-2.0

package adapt

import (
	"embed"
	"fmt"
	"slices"
	"strings"

	"github.com/wasmplane/wasmplane/plugins/component/coremodule"
	"github.com/wasmplane/wasmplane/plugins/component/encode"
)

// Preview1Name is the module that guests import WASI 0.1 from.
const Preview1Name = "wasi_snapshot_preview1"

// ownPages are the most pages of an adapter's own memory: what it is given of arguments and environment has to fit.
const ownPages = 64

//go:embed preview1
var fields embed.FS

// made are the functions that do something: the other fields that they need, and the functions of WASI 0.2 that these call.
var made = map[string]struct{ fields, calls []string }{
	"args_get":          {[]string{"zero"}, []string{"get-arguments"}},
	"args_sizes_get":    {nil, []string{"get-arguments"}},
	"environ_get":       {[]string{"zero"}, []string{"get-environment"}},
	"environ_sizes_get": {nil, []string{"get-environment"}},
	"clock_time_get":    {[]string{"datetime"}, []string{"now", "wall-now"}},
	"clock_res_get":     {[]string{"datetime"}, []string{"resolution", "wall-resolution"}},
	"random_get":        {nil, []string{"get-random-bytes"}},
	"fd_fdstat_get":     {nil, nil},
	"fd_write":          {[]string{"streams", "flush"}, []string{"get-stdout", "get-stderr", "write", "drop-error"}},
	"poll_oneoff":       {[]string{"datetime"}, []string{"now", "wall-now", "subscribe-duration", "block", "drop-pollable"}},
	"proc_exit":         {nil, []string{"exit"}},
}

// Error numbers of WASI 0.1.
const (
	success = 0
	badf    = 8
	nosys   = 52
)

// constant are the functions that answer the same always, and the types of their parameters: I is an i64.
var constant = map[string]struct {
	params string
	errno  int
}{
	"sched_yield": {"", success}, "proc_raise": {"i", nosys},
	"fd_close": {"i", badf}, "fd_datasync": {"i", badf}, "fd_sync": {"i", badf}, "fd_fdstat_set_flags": {"ii", badf},
	"fd_fdstat_set_rights": {"iII", badf}, "fd_filestat_get": {"ii", badf}, "fd_filestat_set_size": {"iI", badf},
	"fd_filestat_set_times": {"iIIi", badf}, "fd_advise": {"iIIi", badf}, "fd_allocate": {"iII", badf},
	"fd_read": {"iiii", badf}, "fd_pread": {"iiiIi", badf}, "fd_pwrite": {"iiiIi", badf}, "fd_prestat_get": {"ii", badf},
	"fd_prestat_dir_name": {"iii", badf}, "fd_readdir": {"iiiIi", badf}, "fd_renumber": {"ii", badf}, "fd_seek": {"iIii", badf},
	"fd_tell": {"ii", badf}, "path_create_directory": {"iii", badf}, "path_filestat_get": {"iiiii", badf},
	"path_filestat_set_times": {"iiiiIIi", badf}, "path_link": {"iiiiiii", badf}, "path_open": {"iiiiiIIii", badf},
	"path_readlink": {"iiiiii", badf}, "path_remove_directory": {"iii", badf}, "path_rename": {"iiiiii", badf},
	"path_symlink": {"iiiii", badf}, "path_unlink_file": {"iii", badf}, "sock_accept": {"iii", badf},
	"sock_recv": {"iiiiii", badf}, "sock_send": {"iiiii", badf}, "sock_shutdown": {"ii", badf},
}

// Preview1 makes the adapter for what a module imports of WASI 0.1; it comes behind Memory. Where the module imports
// nothing of it, is false.
func Preview1(module []byte) (a encode.Adapter, is bool, err error) {
	core, err := coremodule.Module(module)
	if err != nil {
		return a, false, err
	}
	var functions []string
	for _, i := range core.Imports {
		if i.Module == Preview1Name {
			functions = append(functions, i.Name)
		}
	}
	if len(functions) == 0 {
		return a, false, nil
	}
	a, err = preview1(functions)
	return a, true, err
}

func preview1(functions []string) (encode.Adapter, error) {
	var names, calls []string
	var text strings.Builder
	for _, f := range functions {
		if c, is := constant[f]; is {
			fmt.Fprintf(&text, "(func (export %q)%s (result i32) (i32.const %d))\n", f, params(c.params), c.errno)
			continue
		}
		m, is := made[f]
		if !is {
			return encode.Adapter{}, fmt.Errorf("import %q of %s: WASI 0.1 has no such function", f, Preview1Name)
		}
		names, calls = append(append(names, m.fields...), f), append(calls, m.calls...)
	}
	slices.Sort(names) // what is imported may be in any order
	for _, name := range slices.Compact(names) {
		b, err := fields.ReadFile("preview1/" + name + ".wat")
		if err != nil {
			return encode.Adapter{}, fmt.Errorf("the text of %s: %w", name, err)
		}
		text.Write(b)
	}
	slices.Sort(calls)
	calls = slices.Compact(calls)
	a, err := WithOwnMemory(Preview1Name, imports(calls), text.String(), ownPages)
	a.Module = append(a.Module, world(calls)...)
	return a, err
}

func params(types string) (out string) {
	for _, t := range types {
		out += map[rune]string{'i': " (param i32)", 'I': " (param i64)"}[t]
	}
	return out
}
