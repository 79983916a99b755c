// SPDX-License-Identifier: Apache-2.0

package imagegate

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestLanesDoNotWaitForOneAnother: who fills one lane leaves the others free, and lanes that nobody uses go.
func TestLanesDoNotWaitForOneAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l lanes
		var ends []func()
		for range 2 {
			done, err := l.take(t.Context(), "slow", 2)
			if err != nil {
				t.Fatal(err)
			}
			ends = append(ends, done)
		}
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := l.take(short, "slow", 2); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("a third took a slot of two: %v", err)
		}
		done, err := l.take(t.Context(), "other", 2)
		if err != nil {
			t.Fatal(err)
		}
		done()
		waited := make(chan error, 1)
		go func() {
			done, err := l.take(t.Context(), "slow", 2)
			if err == nil {
				done()
			}
			waited <- err
		}()
		synctest.Wait()
		ends[0]()
		if err := <-waited; err != nil {
			t.Fatal(err)
		}
		ends[1]()
		if len(l.by) > 0 {
			t.Errorf("%d lanes are left, which nobody uses", len(l.by))
		}
	})
}

// TestNobodyHasAllOfALane: of a lane that namespaces share each has a part.
func TestNobodyHasAllOfALane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l lanes
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var ends []func()
		for {
			done, err := l.both(short, "evil", 2, "all", 3)
			if err != nil {
				break
			}
			ends = append(ends, done)
		}
		done, err := l.both(t.Context(), "other", 2, "all", 3)
		if len(ends) != 2 || err != nil {
			t.Fatalf("one has %d of 3, and another: %v", len(ends), err)
		}
		done()
		for _, end := range ends {
			end()
		}
		if len(l.by) > 0 {
			t.Errorf("%d lanes are left, which nobody uses", len(l.by))
		}
	})
}
