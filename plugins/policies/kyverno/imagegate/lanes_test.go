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
