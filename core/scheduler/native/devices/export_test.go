// SPDX-License-Identifier: Apache-2.0

package devices

import "time"

// SetLongest bounds the look for devices in one try.
func (d *Plugin) SetLongest(longest time.Duration) { d.longest = longest }

// Searches is how often devices were looked for on a node.
func (l *Ledger) Searches() int { return int(l.searches.Load()) }

// Answers is how many answers are kept.
func (l *Ledger) Answers() (count int) {
	for _, k := range l.answers.all {
		count += len(k.nodes)
	}
	if count != l.answers.count {
		return -1
	}
	return count
}

// Forget what was found.
func (l *Ledger) Forget() { l.answers = newAnswers() }

// MostAnswers are kept.
const MostAnswers = mostAnswers

// Found is which devices the plugin has found for a pod on a node, by the order of its claims.
func Found(s interface{ Get(any) any }, node string) (names [][]string) {
	c, _ := s.Get(cycleKey{}).(*cycle)
	if c == nil || c.nodes[node] == nil {
		return nil
	}
	for _, w := range c.claims {
		var of []string
		if a := c.nodes[node].allocations[w]; a != nil {
			for _, r := range a.Devices.Results {
				of = append(of, r.Request+"="+r.Pool+"/"+r.Device)
			}
		}
		names = append(names, of)
	}
	return names
}

// Remembered are the answers; what it returns brings them back.
func Remembered(l *Ledger) (restore func()) {
	kept := l.answers
	return func() { l.answers = kept }
}
