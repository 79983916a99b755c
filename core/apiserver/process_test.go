// SPDX-License-Identifier: Apache-2.0

package apiserver_test

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"github.com/wasmplane/wasmplane/core/apiserver/apiservertest"
)

// serverProcess is a server in a process of its own, for tests that kill it:
// data in the first argument, the URL and the CA on the standard output.
func serverProcess() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	s, err := apiservertest.Run(ctx, os.Args[1], apiservertest.Options{Fsync: true})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Printf("%s\n%s\n", s.URL, s.CA)
	<-ctx.Done()
	s.Stop()
}
