// SPDX-License-Identifier: Apache-2.0

// Command profiled is wasmplane with profiles, for the benchmarks alone. A CPU
// profile begins with the process, and again at SIGUSR1; SIGUSR2 ends it, and
// writes it, the heap and the goroutines to the directory that
// WASMPLANE_BENCH_PROFILE names.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"syscall"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/command"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/kubectltexts"
	"github.com/wasmplane/wasmplane/core/chart/render"
	"github.com/wasmplane/wasmplane/core/kubelet/containerd"
	"github.com/wasmplane/wasmplane/plugins/host/compiler"
)

func main() {
	compiler.MaybeRun()
	render.MaybeRun()
	if containerd.MaybeRun() {
		return
	}
	if dir := os.Getenv("WASMPLANE_BENCH_PROFILE"); dir != "" {
		signals := make(chan os.Signal, 4)
		signal.Notify(signals, syscall.SIGUSR1, syscall.SIGUSR2)
		go serve(dir, signals) // ends with the process
	}
	os.Exit(command.Main(kubectltexts.Args(os.Args), os.Stdout, os.Stderr))
}

func serve(dir string, signals <-chan os.Signal) {
	cpu, err := begin(dir)
	for s := range signals {
		if s == syscall.SIGUSR1 {
			pprof.StopCPUProfile()
			cpu, err = begin(dir)
		} else {
			err = errors.Join(err, end(dir, cpu))
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "profile:", err)
		}
	}
}

func begin(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, err
	}
	f, err := os.Create(filepath.Join(dir, "cpu.pprof"))
	if err != nil {
		return nil, err
	}
	return f, pprof.StartCPUProfile(f)
}

func end(dir string, cpu *os.File) error {
	pprof.StopCPUProfile()
	err := cpu.Close()
	runtime.GC() // the heap profile is as of the last collection
	for _, name := range []string{"heap", "allocs", "goroutine"} {
		err = errors.Join(err, write(filepath.Join(dir, name+".pprof"), func(w io.Writer) error { return pprof.Lookup(name).WriteTo(w, 0) }))
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return errors.Join(err, write(filepath.Join(dir, "done"), func(w io.Writer) error {
		_, err := fmt.Fprintf(w, "HeapAlloc %d\nHeapInuse %d\nHeapIdle %d\nHeapReleased %d\nStackInuse %d\nMSpanInuse %d\nGCSys %d\nOtherSys %d\nBuckHashSys %d\nNumGC %d\nGoroutines %d\n",
			m.HeapAlloc, m.HeapInuse, m.HeapIdle, m.HeapReleased, m.StackInuse, m.MSpanInuse, m.GCSys, m.OtherSys, m.BuckHashSys, m.NumGC,
			runtime.NumGoroutine())
		return err
	}))
}

func write(path string, to func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(to(f), f.Close())
}
