// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tetratelabs/wazero"

	"github.com/wasmplane/wasmplane/plugins/host/breaker"
	"github.com/wasmplane/wasmplane/plugins/host/printed"
)

// Module is one compiled version of one plugin, with its instances.
type Module struct {
	host      *Host
	name      string
	opts      Options
	code      wazero.CompiledModule
	component *component    // instead of code
	slots     chan struct{} // one for each instance that may run at once
	breaker   breaker.Breaker
	lines     *printed.Rate // of its instances together

	mu     sync.Mutex
	idle   []*Instance // last in, first out: the warm ones are used again
	closed bool
	live   int            // instances that exist
	work   sync.WaitGroup // calls and refills

	startTook time.Duration // of the instance that was started last
}

func newModule(h *Host, code wazero.CompiledModule, o Options) *Module {
	m := &Module{host: h, name: o.Name, opts: o, code: code, slots: make(chan struct{}, o.Limits.Instances), lines: printed.NewRate()}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.modules[m] = struct{}{}
	return m
}

// ErrClosed is what calls of a closed module get.
var ErrClosed = errors.New("the plugin has been unloaded")

// Limits are the bounds in force, defaults filled in.
func (m *Module) Limits() Limits { return m.opts.Limits }

// Instances says how many exist.
func (m *Module) Instances() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.live
}

// IsComponent says whether it is a component, whose memories are its own.
func (m *Module) IsComponent() bool { return m.component != nil }

// Breaker says whether the breaker is open, and how often it has opened.
func (m *Module) Breaker() (open bool, opened int64) { return m.breaker.State(time.Now()) }

// Call runs one call on a pooled instance.
func (m *Module) Call(ctx context.Context, op int32, input []byte) (out []byte, u Usage, err error) {
	err = m.With(ctx, func(in *Instance) error {
		out, u, err = in.Call(ctx, op, input)
		return err
	})
	return out, u, err
}

// With lends an instance to f. An error of f that is no GuestError throws the
// instance away and counts against the breaker.
func (m *Module) With(ctx context.Context, f func(in *Instance) error) error {
	return m.Guard(func() error {
		in, err := m.acquire(ctx)
		if err == nil {
			err = f(in)
			m.release(in, err)
		}
		return err
	})
}

// Guard runs f unless the breaker is open, and counts its faults. It is for
// holders of leased instances; With does it by itself.
func (m *Module) Guard(f func() error) error {
	if ok, wait := m.breaker.Allow(); !ok {
		return &Fault{Plugin: m.name, Kind: BreakerOpen, Detail: fmt.Sprintf("it failed %d times in a row and is left alone for %s",
			breaker.Threshold, wait.Round(10*time.Millisecond))}
	}
	err := f()
	var fault *Fault
	failed := errors.As(err, &fault) && fault.Kind != Canceled && fault.Kind != Busy
	m.breaker.Done(failed)
	return err
}

// Lease takes an instance out of the pool for good: its holder keeps state in it
// (a node table) and ends that with Discard or Release.
func (m *Module) Lease(ctx context.Context) (*Instance, error) { return m.acquire(ctx) }

// Discard closes a leased instance.
func (m *Module) Discard(in *Instance) {
	m.drop(in)
	<-m.slots
	m.work.Done()
}

// Release puts a leased instance back into the pool, as With does: after a
// fault it is thrown away.
func (m *Module) Release(in *Instance, err error) { m.release(in, err) }

// acquire takes an idle instance or makes one, as soon as fewer than the limit run.
func (m *Module) acquire(ctx context.Context) (*Instance, error) {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil, ErrClosed
	}
	m.work.Add(1)
	m.mu.Unlock()
	in, err := m.acquireSlot(ctx)
	if err != nil {
		m.work.Done()
	}
	return in, err
}

func (m *Module) acquireSlot(ctx context.Context) (*Instance, error) {
	select {
	case m.slots <- struct{}{}:
	default:
		timer := time.NewTimer(m.opts.Limits.Deadline)
		defer timer.Stop()
		select {
		case m.slots <- struct{}{}:
		case <-timer.C:
			return nil, &Fault{Plugin: m.name, Kind: Busy, Detail: fmt.Sprintf("all %d instances were busy for %s (limits.instances)", cap(m.slots),
				m.opts.Limits.Deadline)}
		case <-ctx.Done():
			return nil, &Fault{Plugin: m.name, Kind: Canceled, Detail: "the request ended while it waited for an instance", Err: ctx.Err()}
		}
	}
	m.mu.Lock()
	if n := len(m.idle); n > 0 {
		in := m.idle[n-1]
		m.idle = m.idle[:n-1]
		m.mu.Unlock()
		return in, nil
	}
	m.live++
	m.mu.Unlock()
	in, err := m.instantiate(ctx)
	if err != nil {
		m.mu.Lock()
		m.live--
		m.mu.Unlock()
		<-m.slots
		return nil, err
	}
	return in, nil
}

// release puts an instance back, or throws it away after a fault and makes
// another in the background.
func (m *Module) release(in *Instance, err error) {
	defer m.work.Done()
	defer func() { <-m.slots }()
	if sound(err) && !m.opts.ABI.once() && in.restore() == nil {
		m.mu.Lock()
		if !m.closed {
			m.idle = append(m.idle, in)
			m.mu.Unlock()
			return
		}
		m.mu.Unlock()
	}
	m.drop(in)
	m.refill()
}

func (m *Module) drop(in *Instance) {
	in.close()
	m.mu.Lock()
	m.live--
	m.mu.Unlock()
}

// refill makes an idle instance in the background where there is none.
func (m *Module) refill() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed || len(m.idle) > 0 || m.live >= cap(m.slots) {
		return
	}
	m.live++
	m.work.Go(func() {
		in, err := m.instantiate(m.host.base)
		m.mu.Lock()
		defer m.mu.Unlock()
		if err != nil {
			m.live--
			m.host.cfg.Logger.Warn("could not start a fresh instance of a plugin", "plugin", m.name, "error", err)
			return
		}
		if m.closed {
			in.close()
			m.live--
			return
		}
		m.idle = append(m.idle, in)
	})
}

// Warm makes the first instance, so that the first request finds one, and
// reports what is wrong with it.
func (m *Module) Warm(ctx context.Context) error {
	in, err := m.acquire(ctx)
	if err != nil {
		return err
	}
	m.release(in, nil)
	return nil
}

// Close refuses new calls, waits for those that run, and frees everything.
func (m *Module) Close() error {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil
	}
	m.closed = true
	m.mu.Unlock()
	m.host.forget(m)
	m.work.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, in := range m.idle {
		in.close()
		m.live--
	}
	m.idle = nil
	if m.component != nil {
		return m.component.close(m.host)
	}
	return m.host.codes.Release(m.host.base, m.code)
}

// Name is the plugin's name.
func (m *Module) Name() string { return m.name }
