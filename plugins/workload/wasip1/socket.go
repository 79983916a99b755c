// SPDX-License-Identifier: Apache-2.0

package wasip1

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"

	experimentalsys "github.com/tetratelabs/wazero/experimental/sys"
	"github.com/tetratelabs/wazero/sys"
	"golang.org/x/sys/unix"
)

// socket is a TCP socket, listening or connected. The system's never blocks: where the instance wants to be blocked, the host waits for it,
// so that the end of the context ends that.
type socket struct {
	experimentalsys.UnimplementedFile
	fd        int
	listening bool
	nonblock  bool // as the instance wants it
	closed    bool
}

// The system's own times of a connection whose other side is gone are hours.
const keepAlive = 15 // seconds

// listen makes a listening socket. What is set of it, its connections inherit.
func listen(ctx context.Context, address string) (*socket, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	defer func() { _ = l.Close() }()
	raw, err := l.(*net.TCPListener).SyscallConn() //nolint:forcetypeassert // of TCP
	if err != nil {
		return nil, err
	}
	s := &socket{fd: -1, listening: true}
	var failed error
	err = raw.Control(func(fd uintptr) {
		if s.fd, failed = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0); failed != nil {
			return
		}
		for _, o := range []struct{ level, name, value int }{
			{unix.IPPROTO_TCP, unix.TCP_NODELAY, 1},
			{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
			{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, keepAlive},
			{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, keepAlive},
		} {
			failed = errors.Join(failed, unix.SetsockoptInt(s.fd, o.level, o.name, o.value))
		}
	})
	if err := errors.Join(err, failed); err != nil {
		_ = s.Close()
		return nil, fmt.Errorf("prepare the socket: %w", err)
	}
	return s, nil
}

// accept takes a connection that waits.
func (s *socket) accept() (*socket, error) {
	for {
		fd, _, err := unix.Accept4(s.fd, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		switch {
		case err == nil:
			return &socket{fd: fd}, nil
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.ECONNABORTED):
			continue
		}
		return nil, err
	}
}

// receive and send move what can be moved now.
func (s *socket) receive(buffers [][]byte) (int, error) {
	return retry(func() (int, error) {
		if len(buffers) == 1 {
			return unix.Read(s.fd, buffers[0])
		}
		return unix.Readv(s.fd, buffers)
	})
}

func (s *socket) send(buffers [][]byte) (int, error) {
	return retry(func() (int, error) {
		if len(buffers) == 1 {
			return unix.Write(s.fd, buffers[0])
		}
		return unix.Writev(s.fd, buffers)
	})
}

// peek reads without taking.
func (s *socket) peek(b []byte) (int, error) {
	return retry(func() (int, error) {
		n, _, err := unix.Recvfrom(s.fd, b, unix.MSG_PEEK)
		return n, err
	})
}

func retry(f func() (int, error)) (int, error) {
	for {
		n, err := f()
		if !errors.Is(err, unix.EINTR) {
			return max(n, 0), err
		}
	}
}

// The rest is what the engine asks of an open file.

// Close implements experimentalsys.File.
func (s *socket) Close() experimentalsys.Errno {
	if s.closed || s.fd < 0 {
		return 0
	}
	s.closed = true
	_ = unix.Close(s.fd) // it is closed whatever this says
	return 0
}

// IsDir implements experimentalsys.File.
func (*socket) IsDir() (bool, experimentalsys.Errno) { return false, 0 }

// Stat implements experimentalsys.File.
func (*socket) Stat() (sys.Stat_t, experimentalsys.Errno) {
	return sys.Stat_t{Mode: fs.ModeSocket, Nlink: 1}, 0
}

// IsNonblock implements experimentalsys.PollableFile.
func (s *socket) IsNonblock() bool { return s.nonblock }

// SetNonblock implements experimentalsys.PollableFile.
func (s *socket) SetNonblock(enable bool) experimentalsys.Errno {
	s.nonblock = enable
	return 0
}

// Poll implements experimentalsys.PollableFile. Nothing calls it: waiting is Host.pollOneoff's.
func (*socket) Poll(experimentalsys.Pflag, int32) (bool, experimentalsys.Errno) {
	return false, experimentalsys.ENOSYS
}

// Recvfrom and Shutdown are by what the engine knows a socket.
func (*socket) Recvfrom([]byte, int) (int, experimentalsys.Errno) { return 0, experimentalsys.ENOSYS }

// Shutdown see Recvfrom.
func (*socket) Shutdown(int) experimentalsys.Errno { return experimentalsys.ENOSYS }
