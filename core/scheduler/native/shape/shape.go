// SPDX-License-Identifier: Apache-2.0

// Package shape is how configurations say which score a share of something in use has: as lines from point to point.
package shape

// Point is a score, of 100, at a utilization in percent.
type Point struct{ Utilization, Score int64 }

// Shape are points in the order of their utilization. Before the first one and after the last one the score stays.
type Shape []Point

// At is the score at a utilization; 0 where there is no point.
func (s Shape) At(utilization int64) int64 {
	if len(s) == 0 {
		return 0
	}
	for i, p := range s {
		switch {
		case utilization > p.Utilization:
			continue
		case i == 0:
			return p.Score
		}
		from := s[i-1]
		return from.Score + (p.Score-from.Score)*(utilization-from.Utilization)/(p.Utilization-from.Utilization)
	}
	return s[len(s)-1].Score
}
