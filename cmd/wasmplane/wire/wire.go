// SPDX-License-Identifier: Apache-2.0

// Package wire puts the components together by ordinary calls: what runs in one
// process, what in several, with which identity each, and in which order. It is
// the only place that knows all of them.
package wire

import (
	"time"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/process"
)

// Options are those of a process.
type Options = process.Options

// Info is what a ready process gives.
type Info = process.Info

// stopTimeout bounds how long one part may take to stop: longer than a graceful
// end of the requests in flight, shorter than the patience of a person at Ctrl-C.
const stopTimeout = 15 * time.Second
