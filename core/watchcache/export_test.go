// SPDX-License-Identifier: Apache-2.0

package watchcache

// TryNext is Next without waiting: it may return no events.
func (w *Watcher) TryNext() ([]Event, error) {
	clear(w.out)
	w.out = w.out[:0]
	select {
	case <-w.stop:
		return nil, ErrStopped
	case <-w.resource.over:
		return nil, ErrStopped
	default:
	}
	err := w.collect()
	return w.out, err
}
