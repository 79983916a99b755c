// SPDX-License-Identifier: Apache-2.0

package job

import (
	"slices"
	"strconv"
	"strings"
)

// indexes is a set of completion indexes as a status writes it: "1,3-5,7".
// Spans are in order, apart from each other and not empty.
type indexes []span

type span struct{ first, last int }

// parseIndexes reads what a status or a success policy says; what is malformed or
// beyond the number of completions is left out.
func parseIndexes(text string, completions int) indexes {
	var set indexes
	for part := range strings.SplitSeq(text, ",") {
		from, to, isSpan := strings.Cut(part, "-")
		first, err := strconv.Atoi(from)
		if err != nil || first < 0 || first >= completions {
			continue
		}
		last := first
		if isSpan {
			if last, err = strconv.Atoi(to); err != nil || last < first {
				continue
			}
		}
		set = append(set, span{first, min(last, completions-1)})
	}
	return set.normal()
}

func (s indexes) normal() indexes {
	slices.SortFunc(s, func(a, b span) int { return a.first - b.first })
	var out indexes
	for _, x := range s {
		if n := len(out); n > 0 && x.first <= out[n-1].last+1 {
			out[n-1].last = max(out[n-1].last, x.last)
			continue
		}
		out = append(out, x)
	}
	return out
}

func (s indexes) with(more ...int) indexes {
	all := slices.Clone(s)
	for _, i := range more {
		all = append(all, span{i, i})
	}
	return all.normal()
}

func (s indexes) union(t indexes) indexes { return append(slices.Clone(s), t...).normal() }

func (s indexes) has(i int) bool {
	n, found := slices.BinarySearchFunc(s, i, func(x span, i int) int {
		switch {
		case x.last < i:
			return -1
		case x.first > i:
			return 1
		}
		return 0
	})
	return found && n < len(s)
}

func (s indexes) count() int {
	n := 0
	for _, x := range s {
		n += x.last - x.first + 1
	}
	return n
}

// overlap is how many indexes are in both sets.
func (s indexes) overlap(t indexes) int {
	n := 0
	for i, j := 0, 0; i < len(s) && j < len(t); {
		n += max(min(s[i].last, t[j].last)-max(s[i].first, t[j].first)+1, 0)
		if s[i].last < t[j].last {
			i++
		} else {
			j++
		}
	}
	return n
}

// String writes two neighbours as "3,4" and longer runs as "3-5", as upstream does.
func (s indexes) String() string {
	var parts []string
	for _, x := range s {
		switch x.last - x.first {
		case 0:
			parts = append(parts, strconv.Itoa(x.first))
		case 1:
			parts = append(parts, strconv.Itoa(x.first), strconv.Itoa(x.last))
		default:
			parts = append(parts, strconv.Itoa(x.first)+"-"+strconv.Itoa(x.last))
		}
	}
	return strings.Join(parts, ",")
}

// missing are the first n indexes below limit that are not in the set.
func (s indexes) missing(n, limit int) []int {
	var out []int
	next := 0
	for _, x := range s {
		for ; next < min(x.first, limit) && len(out) < n; next++ {
			out = append(out, next)
		}
		next = max(next, x.last+1)
	}
	for ; next < limit && len(out) < n; next++ {
		out = append(out, next)
	}
	return out
}
