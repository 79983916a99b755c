// SPDX-License-Identifier: Apache-2.0

package command

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"testing"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
)

// The process of a cluster gives up its directory before it ends. Who stops it, and
// removes the data then, waits for its end.
func TestStopWaitsForTheEndOfTheProcess(t *testing.T) {
	const ofTheProcess = "WASMPLANE_TEST_STOPPED"
	if dir := os.Getenv(ofTheProcess); dir != "" {
		beStopped(t, datadir.Dir(dir))
		return
	}
	dir, err := datadir.Open(t.TempDir(), func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), ofTheProcess+"="+string(dir))
	cmd.Stderr = os.Stderr
	goOn, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	says, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if said := bufio.NewScanner(says); !said.Scan() {
		t.Fatal("it said nothing")
	}
	await, err := interrupt(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := dir.AwaitRelease(t.Context().Done()); err != nil {
		t.Fatal(err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := await(over); err == nil || !strings.Contains(err.Error(), "has not ended") {
		t.Errorf("its end was awaited while it runs: %v", err)
	}
	if await, err = interrupt(cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	if err := goOn.Close(); err != nil {
		t.Fatal(err)
	}
	if err := await(t.Context()); err != nil {
		t.Fatal(err)
	}
	// One that has ended, and for which nobody has waited, has no command line.
	if line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", cmd.Process.Pid)); len(line) > 0 {
		t.Error("it runs still")
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if await, err := interrupt(cmd.Process.Pid); err != nil || await(t.Context()) != nil {
		t.Errorf("one that is gone: %v", err)
	}
}

// beStopped is the process that is stopped. It has the directory until it is interrupted,
// and runs on until its input ends.
func beStopped(t *testing.T, dir datadir.Dir) {
	t.Helper()
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt)
	lock, err := dir.Lock()
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println("it runs")
	<-interrupted
	lock.Release()
	fmt.Println("the directory is free")
	_, _ = io.Copy(io.Discard, os.Stdin)
}
