// SPDX-License-Identifier: Apache-2.0

package run_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wasmplane/wasmplane/core/run"
)

func TestToFinish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		term, over := context.WithCancel(t.Context())
		ctx, stop := context.WithCancel(run.Within(t.Context(), term))
		last, cancel := run.ToFinish(context.WithoutCancel(ctx), time.Minute) // whatever detaches it on the way
		defer cancel()
		stop()
		synctest.Wait()
		if last.Err() != nil {
			t.Error("it ends with the work")
		}
		over()
		synctest.Wait()
		if last.Err() == nil {
			t.Error("it outlives the term")
		}
		after, cancel := run.ToFinish(ctx, time.Minute)
		defer cancel()
		synctest.Wait()
		if after.Err() == nil {
			t.Error("it begins after the term has ended")
		}
		alone, cancel := run.ToFinish(t.Context(), time.Minute)
		defer cancel()
		time.Sleep(time.Minute - 1)
		if alone.Err() != nil {
			t.Error("it ends before its time")
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if alone.Err() == nil {
			t.Error("it has no end")
		}
	})
}
