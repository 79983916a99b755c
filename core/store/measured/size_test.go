// SPDX-License-Identifier: Apache-2.0

package measured

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestTheSizeIsFollowedAndStaysWhereTheStoreDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		answer, failure := int64(10), error(nil)
		s, err := NewSize(func(context.Context) (int64, error) { return answer, failure }, prometheus.NewRegistry())
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error)
		go func() { ended <- s.Run(ctx) }()
		for _, step := range []struct {
			answer int64
			err    error
			want   float64
		}{{10, nil, 10}, {20, nil, 20}, {0, errors.New("away"), 20}, {5, nil, 5}} {
			answer, failure = step.answer, step.err
			time.Sleep(sizeInterval)
			synctest.Wait()
			if got := testutil.ToFloat64(s.gauge); got != step.want {
				t.Errorf("%v: the metric says %v", step, got)
			}
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
