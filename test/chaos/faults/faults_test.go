// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/wasmplane/wasmplane/test/internal/harness"
)

// classTakes is what a class takes at the most, with what follows when all fails: it must not be cut off, since
// nobody would clean up.
const classTakes = recoversWithin + 2*time.Minute

// TestFaults lives through the classes that are chosen.
func TestFaults(t *testing.T) {
	hello := harness.HelloImage(t)
	kept, err := openResults(os.Getenv("CHAOS_RESULTS"), harness.Binary(t))
	must(t, err)
	for _, on := range []topology{alone, many, clocked, manyClocked, growing} {
		t.Run(on.name, func(t *testing.T) { through(t, on, hello, kept) })
	}
	t.Logf("what clients noticed:\n%s", kept.table())
}

// through has clusters live through the classes of a topology. One that does not come back is replaced by another.
func through(t *testing.T, on topology, hello string, kept *results) {
	t.Helper()
	var left []class
	for _, c := range chosen(t, on) {
		if kept.passed(c.id()) {
			t.Logf("%s has passed before", c.id())
			continue
		}
		left = append(left, c)
	}
	for life := 1; len(left) > 0; life++ {
		before := len(left)
		t.Run(fmt.Sprintf("cluster-%d", life), func(t *testing.T) {
			w := newWorld(t, on, hello)
			for lives := true; lives && len(left) > 0; left = left[1:] {
				if deadline, ok := t.Deadline(); ok && time.Until(deadline) < classTakes {
					t.Errorf("no time is left for %d classes: run it again, it goes on here", len(left))
					left = nil
					return
				}
				lives = one(t, w, left[0], kept)
			}
		})
		if len(left) == before {
			t.Fatal("no cluster could be made")
		}
	}
}

// one lives through one class, and says whether the cluster is of use for another.
func one(t *testing.T, w *world, c class, kept *results) bool {
	t.Helper()
	r, err := w.undergo(c)
	if err != nil {
		r.Breaches = append(r.Breaches, err.Error())
	}
	if dir := os.Getenv("CHAOS_LOGS"); dir != "" {
		must(t, w.keepLogs(filepath.Join(dir, strings.ReplaceAll(c.id(), "/", "-"))))
	}
	must(t, kept.add(r))
	t.Logf("%s: failed %d of %d, lost %d, writes %s, scheduler %s, controllers %s, service %s (%d of %d failed), wrong watches %d, restarts %d, recovery %s", c.id(),
		r.Failed, r.Failed+r.Acknowledged, r.Lost, r.Writes, r.Scheduler, r.Controllers, r.Service, r.CallsFailed, r.CallsFailed+r.Calls,
		r.WrongWatches,
		r.Restarts, r.Recovery)
	for _, breach := range r.Breaches {
		t.Errorf("%s: %s", c.id(), breach)
	}
	return err == nil
}
