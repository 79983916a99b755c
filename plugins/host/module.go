// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tetratelabs/wazero"

	"github.com/wasmplane/wasmplane/plugins/host/breaker"
	"github.com/wasmplane/wasmplane/plugins/host/linear"
	"github.com/wasmplane/wasmplane/plugins/host/pool"
	"github.com/wasmplane/wasmplane/plugins/host/printed"
)

// Module is one compiled version of one plugin, with its instances.
type Module struct {
	host      *Host
	name      string
	opts      Options
	code      wazero.CompiledModule
	component *component // instead of code
	pool      *pool.Pool[*Instance]
	breaker   breaker.Breaker
	lines     *printed.Rate // of its instances together
	shared    linear.Shared // what the memories of its instances have in common
}

func newModule(h *Host, code wazero.CompiledModule, o Options) *Module {
	m := &Module{host: h, name: o.Name, opts: o, code: code, lines: printed.NewRate()}
	m.pool = pool.New(pool.Config[*Instance]{
		Size: o.Limits.Instances, Patience: o.Limits.Deadline, Start: m.instantiate, Stop: (*Instance).close,
		LastUsed: func(in *Instance) time.Time { return in.meter.lastPoint },
		Failed: func(err error) {
			h.cfg.Logger.Warn("could not start a fresh instance of a plugin", "plugin", o.Name, "error", err)
		},
	})
	h.mu.Lock()
	defer h.mu.Unlock()
	h.modules[m] = struct{}{}
	return m
}

// ErrClosed is what calls of a closed module get.
var ErrClosed = pool.ErrClosed

// Limits are the bounds in force, defaults filled in.
func (m *Module) Limits() Limits { return m.opts.Limits }

// Instances says how many exist.
func (m *Module) Instances() int { return m.pool.Alive() }

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
// instance away and counts against the breaker, unless nobody waits for the call (WithAside).
func (m *Module) With(ctx context.Context, f func(in *Instance) error) error {
	return m.Guard(ctx, func() error {
		in, err := m.acquire(ctx)
		if err != nil {
			return err
		}
		// Also where f panics: an instance that nobody gives back is missing to others, and Close waits for it.
		err = errUnfinished
		defer func() { m.Release(in, err) }()
		err = f(in)
		return err
	})
}

// errUnfinished throws the instance of a call away that did not come back.
var errUnfinished = errors.New("the call did not come back")

// Guard runs f unless the breaker is open, and counts its faults, unless nobody waits for the call (WithAside). It is for
// holders of leased instances; With does it by itself.
func (m *Module) Guard(ctx context.Context, f func() error) error {
	if err := m.allowed(); err != nil {
		return err
	}
	failed := true // unless f comes back
	defer func() {
		if (failed || m.breaker.Failing()) && Aside(ctx) {
			m.breaker.Forget()
		} else {
			m.breaker.Done(failed)
		}
	}()
	err := f()
	failed = counts(err)
	return err
}

// allowed says why the breaker lets no call through.
func (m *Module) allowed() error {
	ok, wait := m.breaker.Allow()
	if ok {
		return nil
	}
	return &Fault{Plugin: m.name, Kind: BreakerOpen, Detail: fmt.Sprintf("it failed %d times in a row and is left alone for %s",
		breaker.Threshold, wait.Round(10*time.Millisecond))}
}

// counts says whether an error counts against the breaker.
func counts(err error) bool {
	var fault *Fault
	return errors.As(err, &fault) && fault.Kind != Canceled && fault.Kind != Busy
}

// Lease takes an instance out of the pool for good: its holder keeps state in it
// (a node table) and ends that with Discard or Release. For a call for which nobody waits (WithAside) the
// instance is one beside those of the limits: of these one is perhaps the scheduler's, and requests need the others.
func (m *Module) Lease(ctx context.Context) (*Instance, error) {
	if !Aside(ctx) {
		return m.acquire(ctx)
	}
	in, err := m.pool.TakeExtra(ctx)
	if err != nil {
		return nil, m.notLent(ctx, err, pool.MostExtra, "those of trials, in which nobody waits")
	}
	in.beside = true
	return in, nil
}

// Discard closes a leased instance.
func (m *Module) Discard(in *Instance) {
	if in.beside {
		m.pool.DropExtra(in)
		return
	}
	m.pool.Drop(in)
}

// Release puts a leased instance back into the pool, as With does: after a fault it is thrown
// away, and another is made in the background.
func (m *Module) Release(in *Instance, err error) {
	if in.beside {
		m.Discard(in)
		return
	}
	if sound(err) && !m.opts.ABI.once() && in.restore() == nil {
		m.pool.Give(in)
		return
	}
	m.pool.Replace(m.host.base, in)
}

// acquire takes an idle instance or makes one, as soon as fewer than the limit run.
func (m *Module) acquire(ctx context.Context) (*Instance, error) {
	in, err := m.pool.Take(ctx)
	if err != nil {
		return nil, m.notLent(ctx, err, m.opts.Limits.Instances, "limits.instances")
	}
	return in, nil
}

// notLent is why there is no instance of so many.
func (m *Module) notLent(ctx context.Context, err error, of int, which string) error {
	switch {
	case errors.Is(err, pool.ErrBusy):
		return &Fault{Plugin: m.name, Kind: Busy, Detail: fmt.Sprintf("all %d instances were busy for %s (%s)", of, m.opts.Limits.Deadline,
			which)}
	case errors.Is(err, pool.ErrEnded):
		return &Fault{Plugin: m.name, Kind: Canceled, Detail: "the request ended while it waited for an instance", Err: ctx.Err()}
	}
	return err
}

// Warm makes the first instance, so that the first request finds one, and
// reports what is wrong with it.
func (m *Module) Warm(ctx context.Context) error {
	in, err := m.acquire(ctx)
	if err != nil {
		return err
	}
	m.Release(in, nil)
	return nil
}

// Close refuses new calls, waits for those that run, and frees everything.
func (m *Module) Close() error {
	if !m.pool.Close() {
		return nil
	}
	m.host.forget(m)
	m.shared.Close()
	if m.component != nil {
		return m.component.close(m.host)
	}
	return m.host.engine.Release(m.code)
}

// Name is the plugin's name.
func (m *Module) Name() string { return m.name }
