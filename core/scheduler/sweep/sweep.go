// SPDX-License-Identifier: Apache-2.0

// Package sweep looks at many nodes on several goroutines, so that what comes of it does not
// depend on how many there are.
package sweep

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

// Enough is how many feasible nodes end a search: looking at all of thousands
// would cost much and gain little. The rule is upstream's.
func Enough(nodes, percent int) int {
	if nodes < 100 {
		return nodes
	}
	if percent == 0 {
		percent = max(50-nodes/125, 5)
	}
	return max(nodes*percent/100, 100)
}

// FirstFailure is the one of the lowest number, whichever goroutine came first.
type FirstFailure struct {
	any    atomic.Bool
	mu     sync.Mutex
	index  int
	Status *framework.Status
}

// None says whether there is none yet.
func (f *FirstFailure) None() bool { return !f.any.Load() }

// At is told of one.
func (f *FirstFailure) At(i int, st *framework.Status) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.Status == nil || i < f.index {
		f.index, f.Status = i, st
	}
	f.any.Store(true)
}

// Best picks the highest total; among equals by the seed, so that equal nodes fill alike.
func Best(totals []int64, seed uint64) int {
	chance := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // fairness, not secrecy
	at, ties := 0, 1
	for i := 1; i < len(totals); i++ {
		switch {
		case totals[i] > totals[at]:
			at, ties = i, 1
		case totals[i] == totals[at]:
			ties++
			if chance.IntN(ties) == 0 {
				at = i
			}
		}
	}
	return at
}

// Each calls do for 0, 1, 2, ... below n for as long as more says so; small n stay
// on this goroutine. What it has begun it finishes, so that do was called for every
// number up to the last one.
func Each(n, workers int, more func() bool, do func(i int)) {
	const chunk = 16
	if workers <= 1 || n <= 2*chunk {
		for i := 0; i < n && more(); i++ {
			do(i)
		}
		return
	}
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(workers, (n+chunk-1)/chunk) {
		wg.Go(func() {
			for more() {
				from := int(next.Add(chunk)) - chunk
				if from >= n {
					return
				}
				for i := from; i < min(from+chunk, n); i++ {
					do(i)
				}
			}
		})
	}
	wg.Wait()
}
