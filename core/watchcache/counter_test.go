// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"fmt"
	"testing"
)

// Every page of a list tells how many items are behind it, in its scope and no other.
func TestAPageCountsWhatIsBehindIt(t *testing.T) {
	r := newPaced(t).resource
	var items []*Item
	for _, namespace := range []string{"a", "b", "c"} {
		for i := range map[string]int{"a": 3, "b": 200, "c": 70}[namespace] {
			items = append(items, &Item{Key: fmt.Sprintf("/registry/things/%s/%04d", namespace, i)})
		}
	}
	r.replace(items, 2)
	for prefix, count := range map[string]int{
		"/registry/things/": 273, "/registry/things/a/": 3, "/registry/things/b/": 200, "/registry/things/c/": 70, "/registry/things/d/": 0,
		"/registry/things/b/0007": 1,
	} {
		for limit := 1; limit <= count+1; limit++ {
			l := r.List(ListOptions{Prefix: prefix, Limit: limit})
			behind := max(0, count-limit)
			if len(l.Items) != min(limit, count) || l.More != (behind > 0) || l.Remaining != int64(behind) {
				t.Fatalf("%s by %d: %d items, more %t, %d behind; want %d behind", prefix, limit, len(l.Items), l.More, l.Remaining, behind)
			}
		}
	}
}
