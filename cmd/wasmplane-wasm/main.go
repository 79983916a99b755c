// SPDX-License-Identifier: Apache-2.0

// Command wasmplane-wasm is the process of a container whose image is a WebAssembly module. It is
// built apart from the main binary, as each such container has one of it: it links the engine and
// nothing of containerd. The shim puts it into the container and calls it as
//
//	wasm run CONFIG -- ARGUMENTS...
//
// with a workload.Config as JSON, or, where the process has to isolate itself (plugins/workload/cell), as
//
//	wasm cell
//
// with a line of JSON on descriptor 3 that has a cell.Config, the workload.Config, the arguments and the environment; the module runs
// after a second line. Before that, outside of the container and with even fewer rights, it calls
//
//	wasm compile DIRECTORY < MODULE > ARCHIVE
//
// so that a module is compiled once for all containers of a node.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"sync/atomic"
	"syscall"

	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/plugins/workload"
	"github.com/wasmplane/wasmplane/plugins/workload/cell"
)

func main() {
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
	// A module that computes takes a processor for itself; another one ends it.
	runtime.GOMAXPROCS(max(2, runtime.GOMAXPROCS(0)))
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var code int
	var serves atomic.Bool
	done := run.Go("the module", func() error {
		code = execute(ctx, os.Args, func() { serves.Store(true) })
		return nil
	})
	for {
		select {
		case <-done:
			os.Exit(code)
		case s := <-end:
			// A server ends when its requests have ended; the second signal does not wait for them.
			if ctx.Err() != nil || !serves.Load() {
				os.Exit(workload.ExitOn(s.(syscall.Signal)))
			}
			stop()
		}
	}
}

func execute(ctx context.Context, args []string, serving func()) int {
	if len(args) == 3 && args[1] == "compile" {
		if err := workload.Compile(ctx, args[2], os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "wasm:", err)
			return workload.ExitCannotRun
		}
		return 0
	}
	if len(args) == 2 && args[1] == "cell" {
		return inCell(ctx, os.NewFile(3, "gate"), serving)
	}
	if len(args) < 4 || args[1] != "run" || args[3] != "--" {
		fmt.Fprintln(os.Stderr, "usage: wasm run CONFIG -- ARGUMENTS...; the node's containerd calls it")
		return workload.ExitCannotRun
	}
	var c workload.Config
	if err := json.Unmarshal([]byte(args[2]), &c); err != nil {
		fmt.Fprintln(os.Stderr, "wasm: read the configuration:", err)
		return workload.ExitCannotRun
	}
	return runModule(ctx, c, args[4:], os.Environ(), serving)
}

// inCell isolates the process, waits to be told to go on, and runs the module.
func inCell(ctx context.Context, gate *os.File, serving func()) int {
	var c struct {
		cell.Config
		Workload workload.Config `json:"workload"`
		Args     []string        `json:"args"`
		Env      []string        `json:"env"`
	}
	lines := bufio.NewReader(gate)
	text, err := lines.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(text, &c)
	}
	if err == nil {
		err = cell.Enter(c.Config)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "wasm: isolate the module:", err)
		return workload.ExitCannotRun
	}
	if _, err := lines.ReadBytes('\n'); err != nil {
		return workload.ExitCannotRun // the container is not started any more
	}
	_ = gate.Close()
	return runModule(ctx, c.Workload, c.Args, c.Env, serving)
}

func runModule(ctx context.Context, c workload.Config, args, env []string, serving func()) int {
	c.Serving = serving
	code, err := workload.Run(ctx, c, args, env, workload.Stdio{In: os.Stdin, Out: os.Stdout, Err: os.Stderr})
	if err != nil {
		fmt.Fprintln(os.Stderr, "wasm:", err)
	}
	return code
}
