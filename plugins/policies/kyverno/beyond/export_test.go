// SPDX-License-Identifier: Apache-2.0

package beyond

// Idle is how many evaluators were made, and are not in use.
func (p *Policy) Idle() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.idle)
}
