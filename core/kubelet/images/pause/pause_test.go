// SPDX-License-Identifier: Apache-2.0

package pause

import (
	"bytes"
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The program on this machine, as process 1 of a namespace as in a pod: it sleeps,
// takes little memory, reaps orphans, and ends with success on TERM and on INT.
func TestProgram(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pause")
	program, err := Program(runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, program, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		cmd := exec.Command(path)
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		pid := strconv.Itoa(cmd.Process.Pid)
		await(t, "the program sleeps", func() bool {
			return field(pid, "State") == "S (sleeping)" && field(pid, "SigIgn") != "0000000000000000"
		})
		if rss, _, _ := strings.Cut(field(pid, "VmRSS"), " "); len(rss) > 2 { // of "99 kB"
			t.Errorf("the program takes %s kB", rss)
		}
		if err := cmd.Process.Signal(syscall.SIGHUP); err != nil { // ignored by a process 1
			t.Fatal(err)
		}
		orphan(t, pid)
		if err := cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("on %v the program ends with %v", s, err)
		}
	}
}

// orphan leaves a process to the program, in its namespace, and wants it reaped.
func orphan(t *testing.T, pid string) {
	t.Helper()
	if out, err := exec.Command("nsenter", "-t", pid, "-p", "sh", "-c", "sleep 0.05 & exit 0").CombinedOutput(); err != nil {
		t.Fatalf("nsenter: %v: %s", err, out)
	}
	await(t, "the orphan is reaped", func() bool {
		children, err := os.ReadFile("/proc/" + pid + "/task/" + pid + "/children")
		return err == nil && len(bytes.TrimSpace(children)) == 0
	})
}

func field(pid, name string) string {
	status, _ := os.ReadFile("/proc/" + pid + "/status")
	for line := range strings.Lines(string(status)) {
		if v, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	end := time.Now().Add(time.Minute)
	for !holds() {
		if time.Now().After(end) {
			t.Fatalf("waited for a minute: %s", what)
		}
		<-tick.C
	}
}

// Both programs are ELF files that a loader takes.
func TestELF(t *testing.T) {
	for arch, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		program, err := Program(arch)
		if err != nil {
			t.Fatal(err)
		}
		f, err := elf.NewFile(bytes.NewReader(program))
		if err != nil {
			t.Fatalf("%s: %v", arch, err)
		}
		if f.Machine != machine || f.Type != elf.ET_EXEC || len(f.Progs) != 1 || f.Progs[0].Filesz != uint64(len(program)) {
			t.Errorf("%s: %+v %+v", arch, f.FileHeader, f.Progs)
		}
		if f.Entry < f.Progs[0].Vaddr || f.Entry >= f.Progs[0].Vaddr+f.Progs[0].Filesz || f.Entry%4 != 0 && arch == "arm64" {
			t.Errorf("%s: it begins at %#x, outside of what is loaded", arch, f.Entry)
		}
	}
	if _, err := Program("mips"); err == nil {
		t.Error("there is a program for mips")
	}
}

// The code for arm64, which this machine may not run, word by word as the
// architecture's manual encodes it.
func TestARM64(t *testing.T) {
	want := []uint32{
		0xd2800000,             // movz x0, #0
		0xd2801301, 0xf2a00801, // movz x1, #0x98; movk x1, #0x40, lsl #16
		0xd2800002, 0xd2800103, // movz x2, #0; movz x3, #8
		0xd28010e8, 0xd4000001, // movz x8, #135; svc #0
		0xd2800220,             // movz x0, #17
		0xd2800f01, 0xf2a00801, // movz x1, #0x78; movk x1, #0x40, lsl #16
		0xd2800002,             // movz x2, #0
		0xd28010c8, 0xd4000001, // movz x8, #134; svc #0
		0xd2801300, 0xf2a00800, // loop: movz x0, #0x98; movk x0, #0x40, lsl #16
		0xd2800001, 0xd2800002, // movz x1, #0; movz x2, #0
		0xd2801128, 0xd4000001, // movz x8, #137; svc #0
		0x37ffff40,             // tbnz w0, #31, loop (6 words back)
		0xd2800000,             // movz x0, #0
		0xd2800bc8, 0xd4000001, // movz x8, #94; svc #0
	}
	var got []uint32
	code := arm64(loadAddress+elfHeader+programHead, loadAddress+elfHeader+programHead+setOffset)
	for ; len(code) > 0; code = code[4:] {
		got = append(got, uint32(code[0])|uint32(code[1])<<8|uint32(code[2])<<16|uint32(code[3])<<24)
	}
	if len(got) != len(want) {
		t.Fatalf("%d words, want %d", len(got), len(want))
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("word %d is %#x, want %#x", i, got[i], want[i])
		}
	}
}
