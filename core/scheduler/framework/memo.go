// SPDX-License-Identifier: Apache-2.0

package framework

// Memo is what plugins keep from one snapshot of a cache to the next, because working it
// out anew would cost more than following what changed. It never changes an answer: a
// snapshot without one has the same. It belongs to the one goroutine that decides.
type Memo struct{ m map[any]any }

// NewMemo makes an empty one.
func NewMemo() *Memo { return &Memo{m: map[any]any{}} }

// Kept is what a plugin keeps under a key of its own unexported type; the first time, and
// where the snapshot has no memo, it is what first makes.
func Kept[T any](s *Snapshot, key any, first func() T) T {
	if s == nil || s.Memo == nil {
		return first()
	}
	if kept, ok := s.Memo.m[key].(T); ok {
		return kept
	}
	made := first()
	s.Memo.m[key] = made
	return made
}
