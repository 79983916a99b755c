// SPDX-License-Identifier: Apache-2.0

package oomwatch_test

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"syscall"
	"testing"

	"github.com/wasmplane/wasmplane/core/kubelet/oomwatch"
	"github.com/wasmplane/wasmplane/core/run"
)

// kernel gives out one record with each Read.
type kernel []any

func (k *kernel) Read(p []byte) (int, error) {
	if len(*k) == 0 {
		return 0, io.EOF
	}
	first := (*k)[0]
	*k = (*k)[1:]
	if err, ok := first.(error); ok {
		return 0, err
	}
	return copy(p, first.(string)), nil
}

func TestWhoTheKernelEndsForTheMachinesSake(t *testing.T) {
	const constraint = "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,"
	k := &kernel{
		"6,1,100,-;eth0: link is up\n",
		"6,2,200,-;" + constraint + "global_oom,task_memcg=/system.slice,task=hungry,pid=4711,uid=0\n SUBSYSTEM=mm\n",
		&os.PathError{Op: "read", Err: syscall.EPIPE},
		"6,3,300,-;" + constraint + "oom_memcg=/wp-a/pods/podx,task_memcg=/wp-a/pods/podx/c,task=limited,pid=5,uid=0\n",
		"6,4,300,-;" + constraint + "oom_memcg=/a,task_memcg=/a,task=a,global_oom,pid=6,uid=0\n", // its name is so
		"14,5,400,-;" + constraint + "global_oom,task_memcg=/,task=forged,pid=7,uid=0\n",         // not the kernel's
		"6,6,500,-,caller=T1;" + constraint + "global_oom,task_memcg=/,task=a,pid=1,b,pid=8,uid=0\n",
		"6,7,600,-;" + constraint + "global_oom,task_memcg=/,task=x,pid=,uid=0\n",
		"6,8,700,-;" + constraint + "global_oom,task_memcg=/\n",
		"nonsense", "", ";", "x;oom-kill:constraint=",
	}
	var got []string
	if err := oomwatch.Follow(k, func(v oomwatch.Victim) { got = append(got, v.String()) }); !errors.Is(err, io.EOF) {
		t.Errorf("it ended with %v", err)
	}
	if want := []string{
		"System OOM encountered, victim process: hungry, pid: 4711", "System OOM encountered, victim process: a,pid=1,b, pid: 8",
	}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// The kernel's log is followed until the end of the context, and says nothing of what was before. Only root reads it, where there is one.
func TestTheKernelsLogIsFollowed(t *testing.T) {
	file, err := os.Open(oomwatch.Log)
	if err != nil {
		if err := oomwatch.Watch(t.Context(), nil); err == nil {
			t.Error("a log that cannot be read is followed")
		}
		return
	}
	_ = file.Close()
	ctx, cancel := context.WithCancel(t.Context())
	done := run.Go("watch", func() error {
		return oomwatch.Watch(ctx, func(v oomwatch.Victim) { t.Errorf("told of %v", v) })
	})
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
