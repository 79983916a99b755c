// SPDX-License-Identifier: Apache-2.0

// Package oomwatch reads from the kernel's log which processes it has ended because the whole machine was out of memory.
// Those that had more than their own cgroup allows are none of it. It only reads, from what is logged after it has begun.
package oomwatch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/wasmplane/wasmplane/core/run"
)

// Log is the kernel's.
const Log = "/dev/kmsg"

// longest is the largest record that the kernel has, with room.
const longest = 16 << 10

// Victim is a process that the kernel ended.
type Victim struct {
	Process string
	PID     int
}

// String is upstream's wording.
func (v Victim) String() string {
	return fmt.Sprintf("System OOM encountered, victim process: %s, pid: %d", v.Process, v.PID)
}

// Watch the kernel's log and tell of victims until ctx ends. That the log cannot be read is an error at once.
func Watch(ctx context.Context, tell func(Victim)) error {
	file, err := os.OpenFile(Log, os.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("read the kernel's log: %w", err)
	}
	if _, err := file.Seek(0, io.SeekEnd); err != nil {
		return errors.Join(fmt.Errorf("read the kernel's log from its end: %w", err), file.Close())
	}
	done := run.Go("kubelet: kernel's log", func() error { return Follow(file, tell) })
	select {
	case <-ctx.Done():
		_ = file.Close() // ends Follow
		<-done
		return nil
	case err := <-done:
		return errors.Join(err, file.Close())
	}
}

// Follow reads records, one with each Read, as the kernel gives them out.
func Follow(records io.Reader, tell func(Victim)) error {
	buf := make([]byte, longest)
	for {
		n, err := records.Read(buf)
		switch {
		case errors.Is(err, unix.EPIPE): // the kernel has overwritten what was to come next
			continue
		case err != nil:
			return fmt.Errorf("read the kernel's log: %w", err)
		}
		if v, ok := parse(string(buf[:n])); ok {
			tell(v)
		}
	}
}

// parse a record: "PRIORITY,SEQUENCE,MICROSECONDS,FLAGS[,...];MESSAGE\n", where lines of a dictionary may follow. The priority
// has the facility above its lowest three bits; 0 is the kernel's own, which no process can write. Of an end for lack of memory
// the kernel says in one message (from Linux 4.19 on)
//
//	oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/a,task=NAME,pid=1,uid=0
//
// with oom_memcg=/a in the place of global_oom where a cgroup, and not the machine, was out of it.
func parse(record string) (v Victim, ok bool) {
	head, message, ok := strings.Cut(record, ";")
	if !ok {
		return v, false
	}
	priority, _, _ := strings.Cut(head, ",")
	if n, err := strconv.Atoi(priority); err != nil || n>>3 != 0 {
		return v, false
	}
	message, _, _ = strings.Cut(message, "\n")
	message, ok = strings.CutPrefix(message, "oom-kill:constraint=")
	if !ok {
		return v, false
	}
	before, after, ok := strings.Cut(message, ",task_memcg=")
	if !ok || !strings.HasSuffix(before, ",global_oom") {
		return v, false
	}
	// A process has its name from itself: commas, too.
	_, after, ok = strings.Cut(after, ",task=")
	if !ok {
		return v, false
	}
	at := strings.LastIndex(after, ",pid=")
	if at < 0 {
		return v, false
	}
	pid, _, _ := strings.Cut(after[at+len(",pid="):], ",")
	n, err := strconv.Atoi(pid)
	if err != nil || n <= 0 {
		return v, false
	}
	return Victim{Process: strings.ToValidUTF8(after[:at], "\uFFFD"), PID: n}, true
}
