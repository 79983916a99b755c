// SPDX-License-Identifier: Apache-2.0

package worlds

// mostTries bounds the runs by which a failure is made smaller.
const mostTries = 40

// shrink finds faults without which it goes wrong all the same, by leaving out ever
// smaller parts of them, and answers a run with few of them.
func shrink(o outcome, again func(skip map[int]bool) outcome) outcome {
	best, skip, tries := o, map[int]bool{}, 0
	for size := max(1, len(best.faults)/2); ; size /= 2 {
		for at := 0; at < len(best.faults); {
			try := map[int]bool{}
			for n := range skip {
				try[n] = true
			}
			for _, f := range best.faults[at:min(at+size, len(best.faults))] {
				try[f.number] = true
			}
			if tries++; tries > mostTries {
				return best
			}
			if next := again(try); len(next.wrong) > 0 {
				best, skip = next, try
				continue
			}
			at += size
		}
		if size <= 1 {
			return best
		}
	}
}
