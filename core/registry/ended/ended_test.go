// SPDX-License-Identifier: Apache-2.0

package ended

import (
	"context"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

func TestRequestsThatAreOverAreRefused(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	if err := Check(ctx); err != nil {
		t.Errorf("one that goes on: %v", err)
	}
	cancel()
	if err := Check(ctx); !apierrors.IsTimeout(err) {
		t.Errorf("one whose client has gone: %v", err)
	}
	past, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	if err := Check(past); !apierrors.IsTimeout(err) {
		t.Errorf("one past its deadline: %v", err)
	}
}

type key int

// BenchmarkCheck is what a look takes in a context as deep as a request's.
func BenchmarkCheck(b *testing.B) {
	ctx, cancel := context.WithTimeout(b.Context(), time.Hour)
	defer cancel()
	for i := range 12 {
		ctx = context.WithValue(ctx, key(i), i) //nolint:fatcontext // it is to be as deep as that
	}
	for b.Loop() {
		if err := Check(ctx); err != nil {
			b.Fatal(err)
		}
	}
}
