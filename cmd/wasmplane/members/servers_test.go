// SPDX-License-Identifier: Apache-2.0

package members

import (
	"testing"
	"time"

	"github.com/wasmplane/wasmplane/core/store"
	"github.com/wasmplane/wasmplane/core/store/etcd/diskspeed"
)

func TestTheDiskInAServersMetrics(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"": 0, "# HELP " + diskspeed.Metric + " what\n": 0, diskspeed.Metric + " 0\n": 0,
		"a 1\n" + diskspeed.Metric + " 0.128\nb 2\n": 128 * time.Millisecond, diskspeed.Metric + " 1.6e-05": 16 * time.Microsecond,
	} {
		if l := diskOf(text); l.P99 != want || (l.Writes > 0) != (want > 0) {
			t.Errorf("%q: %+v", text, l)
		}
	}
}

// A server ends before it leaves where the others are more than half without it.
func TestWhoEndsBeforeItLeaves(t *testing.T) {
	member := func(name string, alive, learner bool) store.Member {
		return store.Member{Name: name, Alive: alive, Learner: learner}
	}
	a, b, c := member("a", true, false), member("b", true, false), member("c", true, false)
	for name, one := range map[string]struct {
		all  []store.Member
		want bool
	}{
		"of two":                   {[]store.Member{a, b}, false},
		"of three":                 {[]store.Member{a, b, c}, true},
		"of three, one is away":    {[]store.Member{a, b, member("c", false, false)}, false},
		"of two that vote":         {[]store.Member{a, b, member("c", true, true)}, false},
		"of five, one is away":     {[]store.Member{a, b, c, member("d", true, false), member("e", false, false)}, true},
		"one that does not answer": {[]store.Member{member("a", false, false), b, c}, true},
	} {
		if is := agreeWithout(one.all, "a"); is != one.want {
			t.Errorf("%s: %t", name, is)
		}
	}
}
