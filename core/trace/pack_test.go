// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// A span is unpacked as it was packed, whatever is in it.
func TestSpansAreUnpackedAsTheyWere(t *testing.T) {
	p := newPacker()
	rapid.Check(t, func(t *rapid.T) {
		attrs := rapid.OneOf(rapid.Just[map[string]string](nil), rapid.MapOf(rapid.String(), rapid.String()))
		moment := rapid.Custom(func(t *rapid.T) time.Time {
			return time.Unix(0, rapid.Int64Range(0, 1<<61).Draw(t, "nanoseconds"))
		})
		want := Span{
			Name: rapid.String().Draw(t, "name"), Start: moment.Draw(t, "start"), End: moment.Draw(t, "end"),
			Error: rapid.String().Draw(t, "error"), Attrs: attrs.Draw(t, "attributes"),
			Events: rapid.OneOf(rapid.Just[[]SpanEvent](nil), rapid.SliceOfN(rapid.Custom(func(t *rapid.T) SpanEvent {
				return SpanEvent{Name: rapid.String().Draw(t, "event"), Time: moment.Draw(t, "time"), Attrs: attrs.Draw(t, "attributes")}
			}), 1, 3)).Draw(t, "events"),
		}
		got := Span{Start: want.Start}
		p.unpack(p.pack(&want), &got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatal(diff)
		}
	})
	if len(p.names) > maxNames {
		t.Errorf("%d names were learned", len(p.names))
	}
}
