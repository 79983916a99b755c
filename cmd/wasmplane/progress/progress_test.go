// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestASlowStartSaysWhatItWaitsFor(t *testing.T) {
	log := filepath.Join(t.TempDir(), "wasmplane.log")
	var lines strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&lines, "line %d of the log\n", i)
	}
	if err := os.WriteFile(log, []byte(lines.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		p := &Printer{W: &out, Log: log}
		p.Report("store", false, 0)
		time.Sleep(slowAfter - time.Second)
		p.Report("store", true, slowAfter-time.Second)
		p.Report("node", false, 0)
		time.Sleep(slowAfter - time.Second)
		synctest.Wait()
		if got := out.String(); strings.Contains(got, "waiting") {
			t.Errorf("too early: %s", got)
		}
		time.Sleep(100 * time.Second) // at 20, 40 and 80 s
		synctest.Wait()
		p.Stop()
		time.Sleep(time.Hour)
		got := out.String()
		if strings.Count(got, "still waiting for node after ") != 3 || !strings.Contains(got, "after 20.0 s") || !strings.Contains(got,
			"    line 999 of the log\n") || strings.Contains(got, "line 994") {
			t.Errorf("a start that waits for the node printed:\n%s", got)
		}
	})
}
