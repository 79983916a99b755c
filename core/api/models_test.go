// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"errors"
	"testing"

	"github.com/wasmplane/wasmplane/core/api/kindcodec"
)

// What is warm is what the first write would have made, for every group; one that
// was written to already keeps what it has.
func TestWarmGroupsHaveTheirSchemas(t *testing.T) {
	c := newContract(t)
	pods := rowOf(t, c, "", "pods")
	before, err := c.TypeConverter(pods)
	if err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Warm(ended); !errors.Is(err, context.Canceled) || len(c.models.converters) != 1 {
		t.Errorf("after its context has ended: %v, %d groups", err, len(c.models.converters))
	}
	if err := c.Warm(t.Context()); err != nil {
		t.Fatal(err)
	}
	if after, err := c.TypeConverter(pods); err != nil || after != before {
		t.Errorf("the pods' schemas were made again: %v", err)
	}
	for _, r := range c.Resources() {
		if r.Custom != nil || r.Virtual {
			continue
		}
		if c.models.converters[r.Group] == nil {
			t.Errorf("group %q has no schemas", r.Group)
		}
		if _, err := c.FieldManager(r, r.Versions[0], ""); err != nil {
			t.Errorf("%s: %v", r.GroupResource, err)
		}
		tc, err := c.TypeConverter(r)
		if err != nil {
			t.Fatal(err)
		}
		cd := r.Codec(r.Versions[0]).(*kindcodec.Codec)
		if _, err := tc.ObjectToTyped(cd.Named(cd.Empty())); err != nil {
			t.Errorf("%s: %v", r.GroupResource, err)
		}
	}
}

// BenchmarkWarm is what making the schemas of all groups costs.
func BenchmarkWarm(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		c := newContract(b)
		b.StartTimer()
		if err := c.Warm(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
