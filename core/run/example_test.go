// SPDX-License-Identifier: Apache-2.0

package run_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/wasmplane/wasmplane/core/run"
)

// Units start in order, each when the one before is ready, and stop in reverse.
func ExampleGroup() {
	g := run.Group{Progress: func(name string, ready bool, _ time.Duration) {
		if ready {
			fmt.Println(name, "is ready")
		}
	}}
	for _, name := range []string{"store", "server"} {
		ready := make(chan struct{})
		g.Add(run.Unit{Name: name, Ready: ready, Run: func(ctx context.Context) error {
			close(ready)
			<-ctx.Done()
			fmt.Println(name, "stops")
			return nil
		}})
	}
	ctx, cancel := context.WithCancel(context.Background())
	err := g.Run(ctx, cancel) // as soon as all are ready, this process ends
	fmt.Println("error:", err)
	// Output:
	// store is ready
	// server is ready
	// server stops
	// store stops
	// error: <nil>
}

// A unit that fails stops the others, and is named in the error.
func ExampleGroup_failure() {
	var g run.Group
	g.Add(run.Unit{Name: "store", Run: func(ctx context.Context) error { <-ctx.Done(); return nil }})
	g.Add(run.Unit{Name: "server", Run: func(context.Context) error { return errors.New("port 6443 is taken") }})
	fmt.Println(g.Run(context.Background(), nil))
	// Output: server: port 6443 is taken
}

func ExampleBackoff() {
	b := run.Backoff{First: time.Second, Longest: 3 * time.Second, Jitter: -1}
	fmt.Println(b.Next(), b.Next(), b.Next(), b.Next())
	b.Reset() // an attempt succeeded
	fmt.Println(b.Next())
	// Output:
	// 1s 2s 3s 3s
	// 1s
}

// Loops that need each other end together, and their owner waits for both.
func ExampleTogether() {
	err := run.Together(
		context.Background(),
		func(ctx context.Context) error { <-ctx.Done(); return nil },
		func(context.Context) error { return errors.New("the watch ended") },
	)
	fmt.Println(err)
	// Output: the watch ended
}
