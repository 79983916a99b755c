// SPDX-License-Identifier: Apache-2.0

package ownership

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestItemsOfLongListsAreFoundByTheirKeys: each of a list was compared with all others, a dozen seconds of a processor for 30,000
// variables. What is found is what a look through the list finds.
func TestItemsOfLongListsAreFoundByTheirKeys(t *testing.T) {
	type port struct {
		Port     int32
		Name     *string
		Protocol corev1.Protocol
	}
	l := &layout{keys: []keyPath{{index: []int{0}}, {index: []int{1}}, {index: []int{2}}}}
	for _, n := range []int{short, short + 1, 10 * short} {
		var list []port
		for i := range n {
			p := port{Port: int32(i / 3), Protocol: corev1.ProtocolTCP} //nolint:gosec // small
			if i%3 > 0 {
				p.Name = new(fmt.Sprint(i % 2))
			}
			list = append(list, p)
		}
		v := reflect.ValueOf(list)
		x := l.index(v)
		if indexed := x.at != nil; indexed != (n > short) {
			t.Errorf("%d items: indexed %v", n, indexed)
		}
		others := slices.Concat(list, []port{{Port: 1, Name: new("other")}, {Protocol: corev1.ProtocolUDP}, {Name: new("1"), Port: -1}})
		for i, item := range others {
			v := reflect.ValueOf(item)
			if got, want := x.find(v), l.find(x.list, v); got != want || i < 3 && want < 0 || i >= n && want >= 0 {
				t.Errorf("%d items: %d is found at %d, want %d", n, i, got, want)
			}
		}
	}
}
