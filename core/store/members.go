// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
)

// Member is one of the servers that keep a store together. A write is acknowledged once
// more than half of those that vote have it.
type Member struct {
	// ID tells members apart that had the same name one after the other; hexadecimal.
	ID   string `json:"id"`
	Name string `json:"name"` // "" = it has never started
	// Peer is the URL by which the other members reach it; "" = by none.
	Peer string `json:"peer,omitempty"`
	// Learner follows and does not vote yet.
	Learner bool `json:"learner,omitempty"`
	Leader  bool `json:"leader,omitempty"`
	// Self is the member of the process that answers.
	Self bool `json:"self,omitempty"`
	// Alive: it has answered just now.
	Alive bool `json:"alive"`
}

// Membership is an optional power of a store: to have more members, or fewer.
type Membership interface {
	// Members are all of them, by name.
	Members(ctx context.Context) ([]Member, error)
	// Open has other members reach this one at address, HOST:PORT, from now on.
	Open(ctx context.Context, address string) error
	// Add makes room for a member that will be reached at address, and does not vote until
	// it has everything: one that never comes harms nobody.
	Add(ctx context.Context, address string) error
	// Removable says why the member cannot be removed; nil = it can be.
	Removable(ctx context.Context, id string) error
	// Remove takes a member out.
	Remove(ctx context.Context, id string) error
}

// ErrQuorum means that fewer than half of those who vote would be left to agree, or are.
var ErrQuorum = errors.New("too few members of the store answer")

// ErrRemoved means that the store went on without this member.
var ErrRemoved = errors.New("this server was removed from its cluster, which went on without it, so that its data are of the past: run `wasmplane down --purge` here, and join again with a new token (`wasmplane token create --server` on a server)")
