// SPDX-License-Identifier: Apache-2.0

package run_test

import (
	"context"
	"slices"
	"sync"
	"testing"

	"k8s.io/client-go/util/workqueue"

	"github.com/wasmplane/wasmplane/core/run"
)

func TestWork(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	queue := workqueue.NewTyped[int]()
	want := make([]int, 100)
	for i := range want {
		want[i] = i
		queue.Add(i)
	}
	var mu sync.Mutex
	var did []int
	run.Work(ctx, "test", 4, queue, func(_ context.Context, i int) {
		mu.Lock()
		defer mu.Unlock()
		if did = append(did, i); len(did) == len(want) {
			cancel()
		}
	})
	if slices.Sort(did); !slices.Equal(did, want) {
		t.Fatalf("worked on %v, each of the %d once was wanted", did, len(want))
	}
	if !queue.ShuttingDown() {
		t.Fatal("the queue still takes items")
	}
}

// TestWorkEnded: what is left in the queue when the context ends is not worked on.
func TestWorkEnded(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	queue := workqueue.NewTyped[int]()
	queue.Add(1)
	queue.Add(2)
	var did []int
	run.Work(ctx, "test", 1, queue, func(_ context.Context, i int) {
		did = append(did, i)
		cancel()
	})
	if !slices.Equal(did, []int{1}) {
		t.Fatalf("worked on %v after the end", did)
	}
}
