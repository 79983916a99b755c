// SPDX-License-Identifier: Apache-2.0

// Package pathlength bounds the paths by which fields are named in errors and warnings, such as spec.a[0].b. Each error is told with its
// path: below a name of 500 KB each of 5,000 fields has it in its path, and in each text that is made of that, which are gigabytes for a
// body of half a MiB.
package pathlength

import "fmt"

const (
	// Max is how many bytes a path has. Texts are made of many errors by adding one after the other, so this is for their square.
	Max = 16 << 10
	// MaxAll is how many bytes all paths have together. Those of an object of a MiB that people use have some 10 MB.
	MaxAll = 64 << 20
)

// Sum is what the paths of an object have. Its zero value is that of none.
type Sum struct{ longest, all int }

// Add adds a path of so many bytes, by which so many things are named.
func (s *Sum) Add(bytes, times int) {
	s.longest, s.all = max(s.longest, bytes), s.all+bytes*times
}

// Over says whether one of them is longer than Max, or all are longer than MaxAll.
func (s *Sum) Over() bool { return s.longest > Max || s.all > MaxAll }

// Refusal says that the paths of something are too long, and what helps.
func Refusal(whose string) string {
	return fmt.Sprintf("the paths of %s are too long: one may have %d bytes, and all together %d; shorten the names of fields "+
		"that have others in them", whose, Max, MaxAll)
}
