// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"context"
	"os"
	"regexp"
	"strconv"
	"testing"
	"testing/synctest"
	"time"
)

func TestProgramPagesAreTheReadOnlyOnesOfTheProgram(t *testing.T) {
	for line, want := range map[string]bool{
		"00400000-0461a000 r-xp 00000000 fe:00 10086753                           /opt/my wasmplane":           true,
		"0461a000-0964f000 r--p 0421a000 fe:00 10086753                           /opt/my wasmplane":           true,
		"0964f000-097e2000 rw-p 0924f000 fe:00 10086753                           /opt/my wasmplane":           false,
		"7f7235800000-7f7475800000 r--s 00000000 fe:00 10552098                   /data/etcd/member/snap/db":   false,
		"71390800000-71397400000 rw-p 00000000 00:00 0 ":                                                       false,
		"00400000-0461a000 r-xp 00000000 fe:00 10086753                           /opt/my wasmplane (deleted)": false,
		"nonsense": false,
	} {
		from, to, ok := programPages(line, "/opt/my wasmplane")
		if ok != want || ok && from >= to {
			t.Errorf("%s\ngot %x-%x %t, want %t", line, from, to, ok, want)
		}
	}
}

func TestUnmappedProgramRunsOn(t *testing.T) {
	before := mapped(t)
	if err := unmapProgram(); err != nil {
		t.Fatal(err)
	}
	if after := mapped(t); after >= before {
		t.Errorf("%d kB of files were mapped, and now %d kB", before, after)
	}
}

// mapped is how many kB of files are in this process's memory.
func mapped(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	kb, err := strconv.Atoi(regexp.MustCompile(`RssFile:\s+(\d+) kB`).FindStringSubmatch(string(status))[1])
	if err != nil {
		t.Fatal(err)
	}
	return kb
}

// What first requests wait for is made once, after the start and not during it.
func TestTheStartIsOverBeforeAnythingIsMadeAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		ready, ended, warmed := make(chan struct{}), make(chan error), []time.Time{}
		go func() {
			ended <- Startup{Ready: ready, Warm: func(context.Context) { warmed = append(warmed, time.Now()) }}.Run(ctx)
		}()
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(warmed) != 0 {
			t.Error("something was made before the process was ready")
		}
		begin := time.Now()
		close(ready)
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(warmed) != 1 || warmed[0].Sub(begin) < time.Second {
			t.Errorf("made at %v, ready at %v", warmed, begin)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
