// SPDX-License-Identifier: Apache-2.0

package loader

import "context"

// Bounded is what an entry of an origin may ask of fetching.
var Bounded = bounded

// LookNow looks whether sources have moved or changed, whenever that was done last.
func (l *Loader) LookNow(ctx context.Context) {
	for _, s := range l.list() {
		s.looked.Store(0)
	}
	l.lookForMoved(ctx)
}
