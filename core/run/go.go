// SPDX-License-Identifier: Apache-2.0

package run

import (
	"context"
	"runtime/pprof"
	"sync"
)

// Go runs f in a goroutine and returns a channel that has f's result once and is
// then closed. The caller owns the goroutine: it makes f return, and where it
// matters waits for that. The name says whose it is ("kubelet server"); profiles
// and dumps of goroutines show it under the label "task".
func Go(name string, f func() error) <-chan error {
	done := make(chan error, 1)
	go labelled(name, func() {
		defer close(done)
		done <- f()
	})
	return done
}

// Tasks owns goroutines that come and go with their owner's work. The zero value
// is ready to use.
type Tasks struct{ group sync.WaitGroup }

// Go runs f in a goroutine of this name; see Go.
func (t *Tasks) Go(name string, f func()) {
	t.group.Go(func() { labelled(name, f) })
}

// Wait waits until all of them have returned. The owner makes them return first.
func (t *Tasks) Wait() { t.group.Wait() }

// labelled runs f with a label for profiles. The context carries the label and
// nothing else: the goroutine's work has its own.
//
//nolint:contextcheck,nolintlint // see above; the linter reads this at the function, where it reports nothing
func labelled(name string, f func()) {
	none := context.Background() //nolint:forbidigo // ends nothing
	pprof.SetGoroutineLabels(pprof.WithLabels(none, pprof.Labels("task", name)))
	f()
}
