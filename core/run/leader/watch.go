// SPDX-License-Identifier: Apache-2.0

package leader

import (
	"fmt"
	"net/http"
	"sync"
	"time"
)

// overdue is how long work may take to end once it leads no more.
const overdue = 20 * time.Second

// Watch says whether a leader renews its lease in time, or stops. The zero value is ready to use.
type Watch struct {
	mu   sync.Mutex
	term *term
}

func (w *Watch) follow(t *term) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.term = t
}

// Name is the check's, upstream's.
func (w *Watch) Name() string { return "leaderElection" }

// Check fails while work goes on though the leadership ended some time ago.
func (w *Watch) Check(*http.Request) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.term != nil && time.Since(w.term.endsAt()) > overdue {
		return fmt.Errorf("failed election to renew leadership on lease %s", w.term.Name)
	}
	return nil
}
