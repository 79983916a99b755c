// SPDX-License-Identifier: Apache-2.0

// Package lent is how a watch hands its objects to a client in the server's process: a frame of the
// stream has a reference in the place of an object's bytes, and the client exchanges it for an object that was decoded
// once for all clients of the process.
//
// Everything else about such a watch is as over the network: the request is authorized, counted and audited, its selectors
// choose the same events in the same order, and the stream has the same frames, which are written, flushed and cut
// off in the same places. Bookmarks and errors are in the stream itself. A client whose request does not come
// through memory has no Lender, and is sent bytes.
//
// What an object refers to (maps, slices, pointers) is shared by all who were handed it, and nobody
// changes it. That is the contract of client-go's informers anyhow; here it also protects the other components of the process.
// The server's own objects are not among what is shared.
package lent

import (
	"context"

	"github.com/wasmplane/wasmplane/core/object"
)

// MediaType is what a client accepts that takes references, and what a watch with references says it is.
const MediaType = "application/vnd.wasmplane.lent"

// Lender is the side of a client's answer that the server writes.
type Lender interface {
	// Lend keeps o until the client takes it, and returns the reference to write in its place. size is what the
	// object would take in the stream: a client may be only so far behind. References are taken in the order in which they were made.
	Lend(o *object.Object, size int) []byte
}

type key struct{}

// With is the context of a request whose client takes references of l.
func With(ctx context.Context, l Lender) context.Context { return context.WithValue(ctx, key{}, l) }

// From is the Lender of a request; nil where its client wants bytes.
func From(ctx context.Context) Lender {
	l, _ := ctx.Value(key{}).(Lender)
	return l
}
