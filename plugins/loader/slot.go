// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"bytes"
	"cmp"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/point"
	pointadmission "github.com/wasmplane/wasmplane/plugins/point/admission"
)

// slot is one entry with its plugin. What has been published of it is never changed, but
// replaced by another.
type slot struct {
	entry    manifest.Entry
	origin   Origin
	place    int // among the entries of its origin
	plugin   *point.Plugin
	content  string // digest of the local file that was loaded last, or was to be; "" = none could be read
	err      error  // of the last load
	unused   bool   // it takes no part at this process's points
	adapters adapters
	since    time.Time // of the version in force
	replaced string    // digest of the version before that

	verdicts *pointadmission.Verdicts // of a group

	fetched   fetched // of a source that is followed
	candidate candidate
	stale     atomic.Bool            // the source holds something else than was fetched
	moved     atomic.Pointer[string] // digest at which the tag points now, instead of what is pinned
	looked    atomic.Int64           // when that was looked for, in Unix seconds
}

// fetched is what a source held that is followed.
type fetched struct{ digest, tag string }

// candidate is what became of an entry's candidate.
type candidate struct {
	content string
	err     error
}

// inOrder: by order, then the file's as they stand there, then the API's by name.
func inOrder(a, b *slot) int {
	if c := cmp.Compare(a.entry.Order, b.entry.Order); c != 0 {
		return c
	}
	if a.origin != b.origin {
		return cmp.Compare(slices.Index(origins(), a.origin), slices.Index(origins(), b.origin))
	}
	if a.origin != File {
		return cmp.Compare(a.entry.Name, b.entry.Name)
	}
	return cmp.Compare(a.place, b.place)
}

// with is the slot for another entry of the same plugin.
func (s *slot) with(e manifest.Entry) *slot {
	out := &slot{
		entry: e, origin: s.origin, place: s.place, plugin: s.plugin, content: s.content, err: s.err, unused: s.unused, adapters: s.adapters,
		since: s.since, replaced: s.replaced, candidate: s.candidate, verdicts: s.verdicts,
		fetched: s.fetched,
	}
	out.looked.Store(s.looked.Load())
	out.moved.Store(s.moved.Load())
	return out
}

// same compares entries as they are written, but for their line.
func same(a, b manifest.Entry) bool {
	if !reflect.DeepEqual(a.Writer, b.Writer) {
		return false // another's rights hold
	}
	a.Line, b.Line = 0, 0
	bx, err1 := yaml.Marshal(a)
	by, err2 := yaml.Marshal(b)
	return err1 == nil && err2 == nil && bytes.Equal(bx, by)
}

// elsewhere says that none of the points is asked in this process.
func (l *Loader) elsewhere(points []string) bool {
	if l.cfg.Points == nil || len(points) == 0 {
		return false
	}
	return !slices.ContainsFunc(l.cfg.Points, func(p abi.Point) bool { return slices.Contains(points, string(p)) })
}

// pointsOf are the points at which a version takes part.
func pointsOf(v *point.Version) []string {
	var out []string
	for _, p := range v.Manifest.Points() {
		if v.Hook(p) != nil {
			out = append(out, string(p))
		}
	}
	return out
}
