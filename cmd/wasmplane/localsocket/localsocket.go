// SPDX-License-Identifier: Apache-2.0

// Package localsocket serves the API on a Unix socket in the data directory, for the
// machine's operator alone. Nothing on the network, no rule of a pod and no other process
// can block it.
//
// It guarantees that a connection comes from root or from the user as whom the server runs.
// Clients still authenticate by TLS, as at the port.
package localsocket

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// Listen makes the socket at path, which the server's data directory has to
// itself: what an earlier server left there is removed.
func Listen(ctx context.Context, path string, log *slog.Logger) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	at, done, err := short(path)
	if err != nil {
		return nil, err
	}
	defer done()
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "unix", at)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // the short name is gone by then
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("close %s to others: %w", path, err), l.Close())
	}
	return &listener{Listener: l, path: path, log: log}, nil
}

// Dial connects to the server behind the socket at path.
func Dial(ctx context.Context, path string) (net.Conn, error) {
	at, done, err := short(path)
	if err != nil {
		return nil, err
	}
	defer done()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", at)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", path, err)
	}
	return conn, nil
}

// short names the socket by a descriptor of its folder: a socket's name has 107
// bytes at most, and the folder's may be longer.
func short(path string) (at string, done func(), err error) {
	folder, err := os.OpenFile(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return "", nil, fmt.Errorf("the folder of %s: %w", path, err)
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", folder.Fd(), filepath.Base(path)), func() { _ = folder.Close() }, nil
}

type listener struct {
	net.Listener
	path string
	log  *slog.Logger
}

// Accept implements net.Listener. Connections of other users end here.
func (l *listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		uid, err := peer(conn.(*net.UnixConn))
		if err == nil && (uid == 0 || int(uid) == os.Geteuid()) {
			return local{conn}, nil
		}
		l.log.Warn("a connection of another user was refused", "socket", l.path, "uid", uid, "error", err)
		_ = conn.Close()
	}
}

// Close implements net.Listener.
func (l *listener) Close() error {
	err := l.Listener.Close()
	if e := os.Remove(l.path); e != nil && !errors.Is(e, fs.ErrNotExist) {
		err = errors.Join(err, e)
	}
	return err
}

func peer(conn *net.UnixConn) (uint32, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("ask who connected: %w", err)
	}
	var cred *unix.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) {
		cred, failed = unix.GetsockoptUcred(int(fd), syscall.SOL_SOCKET,
			unix.SO_PEERCRED)
	}); err != nil {
		return 0, fmt.Errorf("ask who connected: %w", err)
	}
	if failed != nil {
		return 0, fmt.Errorf("ask who connected: %w", failed)
	}
	return cred.Uid, nil
}

// local is a connection that says that it comes from this machine: audit and the
// bounds on guessed passwords want an address.
type local struct{ net.Conn }

// RemoteAddr implements net.Conn.
func (local) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }
