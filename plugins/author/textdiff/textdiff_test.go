// SPDX-License-Identifier: Apache-2.0

package textdiff

import (
	"slices"
	"strings"
	"testing"
)

func TestDiffShowsLinesAndNothingWhereNothingDiffers(t *testing.T) {
	for _, c := range []struct {
		want, got any
		diff      string
	}{
		{map[string]any{"a": 1}, map[string]any{"a": int64(1)}, ""},
		{nil, []int{}, "- (nothing)\n+ []"},
		{"deny", "allow", "- deny\n+ allow"},
		{map[string]any{"a": 1, "b": 2}, map[string]any{"a": 1, "c": 2}, "  a: 1\n- b: 2\n+ c: 2"},
	} {
		if got := Diff(c.want, c.got); got != c.diff {
			t.Errorf("%v and %v:\n%s\nwant\n%s", c.want, c.got, got, c.diff)
		}
	}
	// The table of lines is quadratic: what is longer is cut off.
	long := slices.Repeat([]string{"x"}, 100_000)
	if n := strings.Count(Diff(long, append(long, "y")), "\n"); n > 4000 {
		t.Errorf("%d lines", n)
	}
}
