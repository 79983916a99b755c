// SPDX-License-Identifier: Apache-2.0

package pairs_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/wasmplane/wasmplane/core/watchcache/pairs"
)

var (
	_ labels.Labels = (*pairs.Pairs)(nil)
	_ fields.Fields = (*pairs.Pairs)(nil)
)

// TestPairsAreTheMap holds random maps against the Pairs made of them, with others made at the same time.
func TestPairsAreTheMap(t *testing.T) {
	var m pairs.Maker
	var workers sync.WaitGroup
	for worker := range 4 {
		workers.Go(func() {
			r := rand.New(rand.NewPCG(uint64(worker), 7))
			for range 5000 {
				set := map[string]string{}
				for range r.IntN(12) {
					set[fmt.Sprint("name", r.IntN(20))] = strings.Repeat("v", r.IntN(300)) + fmt.Sprint(r.IntN(9))
				}
				same(t, set, m.Alike(set))
				same(t, set, m.Own(set))
				same(t, set, pairs.Of(set))
			}
		})
	}
	workers.Wait()
}

func same(t *testing.T, set map[string]string, p pairs.Pairs) {
	t.Helper()
	if p.Len() != len(set) {
		t.Errorf("%d pairs of %v", p.Len(), set)
	}
	for i := range 21 {
		name := fmt.Sprint("name", i)
		want, wanted := set[name]
		if got, has := p.Lookup(name); got != want || has != wanted || p.Get(name) != want || p.Has(name) != wanted {
			t.Errorf("%s of %v: %q, %v", name, set, got, has)
		}
	}
}

func TestAlikeShare(t *testing.T) {
	var m pairs.Maker
	set := map[string]string{"app": "web", "pod-template-hash": "7d9f"}
	a, b := m.Alike(set), m.Alike(maps.Clone(set))
	if unsafe.StringData(a.Get("app")) != unsafe.StringData(b.Get("app")) {
		t.Error("the same labels twice have two copies of their values")
	}
	one, other := m.Own(map[string]string{"metadata.name": "a"}), m.Own(map[string]string{"metadata.name": "b"})
	if one.Get("metadata.name") != "a" || other.Get("metadata.name") != "b" {
		t.Errorf("names %q and %q", one.Get("metadata.name"), other.Get("metadata.name"))
	}
	allocs := testing.AllocsPerRun(100, func() {
		if labels.SelectorFromSet(labels.Set{"app": "web"}).Matches(&a) != true {
			t.Error("a selector does not match")
		}
	})
	bare := testing.AllocsPerRun(100, func() { labels.SelectorFromSet(labels.Set{"app": "web"}) })
	if allocs > bare {
		t.Errorf("matching allocates: %v beside %v", allocs, bare)
	}
}
