// SPDX-License-Identifier: Apache-2.0

package differential

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// difference is one place in which two answers differ.
type difference struct {
	// at is `status`, `header`, or a path in the body.
	at           string
	ours, theirs string
}

func (d difference) String() string {
	return fmt.Sprintf("  %s\n    wasmplane: %.1500s\n    upstream:  %.1500s", d.at, d.ours, d.theirs)
}

// compare lists the differences of two answers.
func compare(r request, ours, theirs answer) []difference {
	var all []difference
	if ours.status != theirs.status {
		all = append(all, difference{"status", said(ours), said(theirs)})
	}
	if r.quiet || len(all) != 0 {
		return all // the rest follows from it
	}
	if a, b := without(ours.header, theirs.header), without(theirs.header, ours.header); len(a)+len(b) != 0 {
		all = append(all, difference{"header", strings.Join(a, "; "), strings.Join(b, "; ")})
	}
	return differ(all, "body", ours.body, theirs.body)
}

// said is the status of an answer, and what it says about it.
func said(a answer) string {
	if body, ok := a.body.(map[string]any); ok {
		if message, ok := body["message"]; ok {
			return fmt.Sprintf("%d %v", a.status, message)
		}
	}
	return fmt.Sprint(a.status)
}

func without(list, others []string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(s string) bool { return slices.Contains(others, s) })
}

func differ(all []difference, at string, ours, theirs any) []difference {
	switch a := ours.(type) {
	case map[string]any:
		b, ok := theirs.(map[string]any)
		if !ok {
			break
		}
		names := map[string]bool{}
		for name := range a {
			names[name] = true
		}
		for name := range b {
			names[name] = true
		}
		for _, name := range slices.Sorted(maps.Keys(names)) {
			va, inA := a[name]
			vb, inB := b[name]
			switch {
			case inA && inB:
				all = differ(all, at+"."+name, va, vb)
			case inA:
				all = append(all, difference{at + "." + name, text(va), "(absent)"})
			default:
				all = append(all, difference{at + "." + name, "(absent)", text(vb)})
			}
		}
		return all
	case []any:
		b, ok := theirs.([]any)
		if !ok {
			break
		}
		if len(a) != len(b) {
			return append(all, different(at, a, b))
		}
		for i := range a {
			all = differ(all, fmt.Sprintf("%s[%d]", at, i), a[i], b[i])
		}
		return all
	}
	if text(ours) != text(theirs) {
		all = append(all, difference{at, text(ours), text(theirs)})
	}
	return all
}

// different shows of two lists only what the other has not.
func different(at string, a, b []any) difference {
	lines := func(list []any) []string {
		all := make([]string, 0, len(list))
		for _, v := range list {
			all = append(all, text(v))
		}
		return all
	}
	la, lb := lines(a), lines(b)
	return difference{
		at, fmt.Sprintf("%d items, of its own: %s", len(a), strings.Join(without(la, lb), "\n      ")),
		fmt.Sprintf("%d items, of its own: %s", len(b), strings.Join(without(lb, la), "\n      ")),
	}
}
