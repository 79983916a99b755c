// SPDX-License-Identifier: Apache-2.0

package mounttable

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/wasmplane/wasmplane/core/run"
)

// TestManyReadersShareOneRead: those who ask while the file is read share the next reading, which begins after they have asked.
func TestManyReadersShareOneRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reads, proceed := 0, make(chan struct{})
		r := newReader(func() ([]byte, error) {
			reads++
			mine := reads
			<-proceed
			return fmt.Appendf(nil, "1 1 0:%d / / rw - tmpfs tmpfs rw\n", mine), nil
		})
		device := func() <-chan error {
			return run.Go("a reader", func() error {
				mounts, err := r.read()
				if err == nil && len(mounts) == 1 {
					err = errors.New(mounts[0].Device)
				}
				return err
			})
		}
		first := device()
		synctest.Wait()
		var others []<-chan error
		for range 200 {
			others = append(others, device())
		}
		synctest.Wait()
		close(proceed)
		if got := (<-first).Error(); got != "0:1" {
			t.Errorf("the first has reading %s", got)
		}
		for _, o := range others {
			if got := (<-o).Error(); got != "0:2" {
				t.Errorf("one that asked during the first reading has %s, want 0:2", got)
			}
		}
		if reads != 2 {
			t.Errorf("the file was read %d times, want twice", reads)
		}
		if mounts, err := r.read(); err != nil || mounts[0].Device != "0:3" {
			t.Errorf("one that asked later has %v, %v", mounts, err)
		}
	})
}

func TestAnErrorIsOfOneReading(t *testing.T) {
	fails := true
	r := newReader(func() ([]byte, error) {
		if fails {
			return nil, os.ErrPermission
		}
		return nil, nil
	})
	if _, err := r.read(); !errors.Is(err, os.ErrPermission) {
		t.Errorf("%v", err)
	}
	fails = false
	if _, err := r.read(); err != nil {
		t.Errorf("%v", err)
	}
}

func TestLines(t *testing.T) {
	got := parse(`36 35 98:0 /mnt1 /mnt\040two rw,noatime master:1 - ext3 /dev/root rw,errors=continue
37 35 0:31 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 master:2 - cgroup cgroup rw,cpu,cpuacct
nonsense
38 35 0:32 / /x rw - nfs
`)
	want := []Mount{
		{Device: "98:0", Root: "/mnt1", Point: "/mnt two", Type: "ext3", Options: "rw,errors=continue"},
		{Device: "0:31", Root: "/", Point: "/sys/fs/cgroup/cpu,cpuacct", Type: "cgroup", Options: "rw,cpu,cpuacct"},
		{Device: "0:32", Root: "/", Point: "/x", Type: "nfs"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	all, err := Read()
	if err != nil || !slices.ContainsFunc(all, func(m Mount) bool { return m.Point == "/proc" && m.Type == "proc" }) {
		t.Errorf("of this process: %v, %v", all, err)
	}
}
