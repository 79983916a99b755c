// SPDX-License-Identifier: Apache-2.0

// Package fence lets a policy judge a write by other objects so that no other write comes in between: of two
// objects that exclude each other, written in the same moment by whatever servers, one is judged by the other.
//
// Whoever judges raises the fences of the API groups that it is going to read, and reads their newest state
// then. Whoever writes holds the write against them: if something that was judged this way has been written to
// one of these groups since, the request is judged again. Writes that no such policy has judged move no fence.
package fence

import (
	"context"
	"maps"
	"sync"
)

// prefix of the keys in the store, beside what the API keeps.
const prefix = "/wasmplane.dev/fences/"

// Key is a group's fence in the store.
func Key(group string) string {
	if group == "" {
		group = "core"
	}
	return prefix + group
}

// Revisions answers at which revision a key is; 0 = it has never been written.
type Revisions func(ctx context.Context, key string) (int64, error)

// judgement collects the fences that were raised while one request was judged.
type judgement struct {
	revisions Revisions

	mu   sync.Mutex
	seen map[string]int64
}

type contextKey struct{}

// Begin is a context in which a request is judged, once.
func Begin(ctx context.Context, revisions Revisions) context.Context {
	return context.WithValue(ctx, contextKey{}, &judgement{revisions: revisions})
}

// Judging says whether a request is judged in ctx: whether what is read has to be the newest state.
func Judging(ctx context.Context) bool {
	_, ok := ctx.Value(contextKey{}).(*judgement)
	return ok
}

// Raise is called before objects of groups are read. Outside of a judgement, such as in a dry run of a tool, it
// does nothing.
func Raise(ctx context.Context, groups ...string) error {
	j, ok := ctx.Value(contextKey{}).(*judgement)
	if !ok {
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, g := range groups {
		key := Key(g)
		if _, raised := j.seen[key]; raised {
			continue // what was read after the first time counts from then on
		}
		revision, err := j.revisions(ctx, key)
		if err != nil {
			return err
		}
		if j.seen == nil {
			j.seen = map[string]int64{}
		}
		j.seen[key] = revision
	}
	return nil
}

// Seen are the fences that were raised in ctx, with the revisions that they had; nil = none was.
func Seen(ctx context.Context) map[string]int64 {
	j, ok := ctx.Value(contextKey{}).(*judgement)
	if !ok {
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	return maps.Clone(j.seen)
}
