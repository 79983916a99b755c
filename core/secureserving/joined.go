// SPDX-License-Identifier: Apache-2.0

package secureserving

import (
	"errors"
	"net"
	"sync"
)

// Join makes one listener of several, whose address is the first one's. Closing it
// closes them all; a connection that cannot be accepted at one of them ends nothing.
func Join(all ...net.Listener) net.Listener {
	j := &joined{all: all, accepted: make(chan net.Conn), done: make(chan struct{})}
	j.accept()
	return j
}

type joined struct {
	all      []net.Listener
	accepted chan net.Conn
	done     chan struct{}
	once     sync.Once
	running  sync.WaitGroup
}

func (j *joined) accept() {
	for _, l := range j.all {
		j.running.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					if errors.Is(err, net.ErrClosed) {
						return
					}
					continue // one connection that failed; the listener lives
				}
				select {
				case j.accepted <- c:
				case <-j.done:
					_ = c.Close()
				}
			}
		})
	}
}

// Accept implements net.Listener.
func (j *joined) Accept() (net.Conn, error) {
	select {
	case c := <-j.accepted:
		return c, nil
	case <-j.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (j *joined) Close() error {
	var errs []error
	j.once.Do(func() {
		close(j.done)
		for _, l := range j.all {
			errs = append(errs, l.Close())
		}
		j.running.Wait()
	})
	return errors.Join(errs...)
}

// Addr implements net.Listener; it is the first one's.
func (j *joined) Addr() net.Addr { return j.all[0].Addr() }
