// SPDX-License-Identifier: Apache-2.0

// Package logind asks systemd's login manager, over D-Bus, to wait with shutdowns of the machine, and hears of them. It is
// a shutdown.Power. Nothing is changed on the machine but how long logind waits, until the machine's next start.
package logind

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"

	"github.com/wasmplane/wasmplane/core/run"
)

// Names on the bus, as systemd has them.
const (
	service   = "org.freedesktop.login1"
	object    = dbus.ObjectPath("/org/freedesktop/login1")
	manager   = "org.freedesktop.login1.Manager"
	signal    = "PrepareForShutdown"
	systemd   = "org.freedesktop.systemd1"
	systemdAt = dbus.ObjectPath("/org/freedesktop/systemd1")
)

// Drop is the file that says how long logind waits. All clusters of a machine share it, and it is gone with the
// machine's next start.
const Drop = "/run/systemd/logind.conf.d/99-wasmplane.conf"

// Config of a connection.
type Config struct {
	// Address of the bus; empty: the system's.
	Address string
	// Drop is the file (the constant Drop if empty).
	Drop string
	// Who holds shutdowns up, for people: "systemd-inhibit --list" shows it.
	Who string
}

// Manager is a connection to logind.
type Manager struct {
	cfg  Config
	conn *dbus.Conn
}

// Connect to the login manager.
func Connect(ctx context.Context, cfg Config) (*Manager, error) {
	if cfg.Drop == "" {
		cfg.Drop = Drop
	}
	var conn *dbus.Conn
	var err error
	if cfg.Address != "" {
		conn, err = dbus.Connect(cfg.Address, dbus.WithContext(ctx))
	} else {
		conn, err = dbus.ConnectSystemBus(dbus.WithContext(ctx))
	}
	if err != nil {
		return nil, fmt.Errorf("connect to D-Bus: %w", err)
	}
	return &Manager{cfg: cfg, conn: conn}, nil
}

// Close the connection. What holds shutdowns up goes on.
func (m *Manager) Close() error { return m.conn.Close() }

// property of the manager.
func property[T any](ctx context.Context, m *Manager, name string) (out T, err error) {
	var v dbus.Variant
	call := m.conn.Object(service, object).CallWithContext(ctx, "org.freedesktop.DBus.Properties.Get", 0, manager, name)
	if err := call.Store(&v); err != nil {
		return out, fmt.Errorf("ask logind for %s: %w", name, err)
	}
	out, ok := v.Value().(T)
	if !ok {
		return out, fmt.Errorf("logind's %s is %v, a %T", name, v, v.Value())
	}
	return out, nil
}

// Delay is how long logind waits for those that hold a shutdown up.
func (m *Manager) Delay(ctx context.Context) (time.Duration, error) {
	micros, err := property[uint64](ctx, m, "InhibitDelayMaxUSec")
	const most = uint64(1<<63-1) / 1000
	return time.Duration(min(micros, most)) * time.Microsecond, err //nolint:gosec // bounded
}

// Lengthen has logind wait so long: by a file that it reads, and a signal to read it.
func (m *Manager) Lengthen(ctx context.Context, delay time.Duration) error {
	if err := os.MkdirAll(filepath.Dir(m.cfg.Drop), 0o755); err != nil {
		return fmt.Errorf("have logind wait longer: %w", err)
	}
	text := fmt.Sprintf("# Pods end before this machine goes down: node.shutdownGracePeriod of wasmplane.\n[Login]\nInhibitDelayMaxSec=%d\n",
		int64((delay+time.Second-1)/time.Second))
	if err := os.WriteFile(m.cfg.Drop, []byte(text), 0o644); err != nil { //nolint:gosec // as all of logind's files
		return fmt.Errorf("have logind wait longer: %w", err)
	}
	call := m.conn.Object(systemd, systemdAt).
		CallWithContext(ctx, systemd+".Manager.KillUnit", 0, "systemd-logind.service", "main", int32(unix.SIGHUP))
	if call.Err != nil {
		return fmt.Errorf("have logind read %s: %w", m.cfg.Drop, call.Err)
	}
	const attempts = 8 // some 6 s
	look := run.Backoff{First: 50 * time.Millisecond, Longest: 2 * time.Second}
	for range attempts {
		now, err := m.Delay(ctx)
		if err != nil || now >= delay {
			return err
		}
		if !look.Wait(ctx) {
			return ctx.Err()
		}
	}
	return fmt.Errorf("logind waits less than %v all the same: a later file than %s sets InhibitDelayMaxSec; set it there", delay, m.cfg.Drop)
}

// Hold up shutdowns, until let is called.
func (m *Manager) Hold(ctx context.Context) (let func() error, err error) {
	var fd dbus.UnixFD
	call := m.conn.Object(service, object).
		CallWithContext(ctx, manager+".Inhibit", 0, "shutdown", m.cfg.Who, "Pods end before the machine goes down", "delay")
	if err := call.Store(&fd); err != nil {
		return nil, fmt.Errorf("have logind wait with shutdowns: %w", err)
	}
	return func() error { return unix.Close(int(fd)) }, nil
}

// Shutdowns says at first whether one has begun, then true when one begins and false when it is taken back. It is closed
// when the connection breaks off.
func (m *Manager) Shutdowns(ctx context.Context) (<-chan bool, error) {
	if err := m.conn.AddMatchSignalContext(ctx, dbus.WithMatchInterface(manager), dbus.WithMatchMember(signal),
		dbus.WithMatchObjectPath(object), dbus.WithMatchSender(service)); err != nil {
		return nil, fmt.Errorf("hear of shutdowns from logind: %w", err)
	}
	heard := make(chan *dbus.Signal, 16)
	m.conn.Signal(heard)
	began, err := property[bool](ctx, m, "PreparingForShutdown")
	if err != nil {
		return nil, err
	}
	out := make(chan bool, 1)
	out <- began
	done := run.Go("kubelet: shutdowns", func() error {
		defer close(out)
		return pass(ctx, heard, out)
	})
	_ = done // it ends with ctx, or with the connection
	return out, nil
}

// pass signals on, until there are no more.
func pass(ctx context.Context, heard <-chan *dbus.Signal, out chan<- bool) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case s, ok := <-heard:
			if !ok {
				return errors.New("the connection to D-Bus broke off")
			}
			if s == nil || s.Name != manager+"."+signal || len(s.Body) == 0 {
				continue
			}
			going, is := s.Body[0].(bool)
			if !is {
				continue
			}
			select {
			case out <- going:
			case <-ctx.Done():
				return nil
			}
		}
	}
}
