// SPDX-License-Identifier: Apache-2.0

package wasip1

import (
	"encoding/binary"
	"errors"

	"github.com/tetratelabs/wazero/api"
	"golang.org/x/sys/unix"
)

// Flags of descriptors, of received data, and of what is shut down.
const (
	flagNonblock = 1 << 2
	recvPeek     = 1 << 0
	recvWaitAll  = 1 << 1
	shutRead     = 1 << 0
	shutWrite    = 1 << 1
)

// mostVectors is how many buffers one call may have, as on Linux.
const mostVectors = 1024

// buffers are the parts of the memory that a list of vectors names, without the empty ones. They are valid until the next call.
func (h *Host) buffers(m api.Memory, at, count uint32) ([][]byte, errno) {
	if count > mostVectors {
		return nil, inval
	}
	list, ok := m.Read(at, 8*count)
	if !ok {
		return nil, fault
	}
	h.vectors = h.vectors[:0]
	for ; len(list) > 0; list = list[8:] {
		b, ok := m.Read(binary.LittleEndian.Uint32(list), binary.LittleEndian.Uint32(list[4:]))
		if !ok {
			return nil, fault
		}
		if len(b) > 0 {
			h.vectors = append(h.vectors, b)
		}
	}
	return h.vectors, success
}

func put(m api.Memory, at uint32, v uint32) errno {
	if !m.WriteUint32Le(at, v) {
		return fault
	}
	return success
}

// move reads or writes with a socket, and waits where the instance wants to be blocked.
func (h *Host) move(s *socket, buffers [][]byte, events int16, do func([][]byte) (int, error)) (int, errno) {
	for {
		n, err := do(buffers)
		if err == nil || !errors.Is(err, unix.EAGAIN) || s.nonblock {
			return n, numberFor(err)
		}
		h.await(s.fd, events)
	}
}

// transfer is what reading and writing have in common: of a socket by do, of another file by each.
func (h *Host) transfer(m api.Memory, p []uint64, f func(o *open, buffers [][]byte) (int, errno)) errno {
	o := h.lookup(int32(p[0]))
	if o == nil {
		return badf
	}
	buffers, e := h.buffers(m, uint32(p[1]), uint32(p[2]))
	if e != success {
		return e
	}
	n := 0
	if len(buffers) > 0 {
		n, e = f(o, buffers)
	}
	if e != success {
		return e
	}
	return put(m, uint32(p[3]), uint32(n))
}

func (h *Host) fdRead(m api.Memory, p []uint64) errno {
	return h.transfer(m, p, func(o *open, buffers [][]byte) (int, errno) {
		if s := o.socket; s != nil {
			return h.move(s, buffers, unix.POLLIN, s.receive)
		}
		return each(buffers, func(b []byte) (int, errno) {
			n, e := o.file.Read(b)
			return n, readable(numberOf(e))
		})
	})
}

func (h *Host) fdWrite(m api.Memory, p []uint64) errno {
	return h.transfer(m, p, func(o *open, buffers [][]byte) (int, errno) {
		if s := o.socket; s != nil {
			return h.move(s, buffers, unix.POLLOUT, s.send)
		}
		return each(buffers, func(b []byte) (int, errno) {
			n, e := o.file.Write(b)
			return n, readable(numberOf(e))
		})
	})
}

// readable is the error of a file that has no such operation, as standard input has none to write.
func readable(e errno) errno {
	if e == ofSystem[unix.ENOSYS] {
		return badf
	}
	return e
}

// each moves one buffer after the other, as long as they are moved whole. What was moved before an error is not lost: the next call has
// the error.
func each(buffers [][]byte, move func(b []byte) (int, errno)) (int, errno) {
	all := 0
	for _, b := range buffers {
		n, e := move(b)
		all += max(n, 0)
		if e != success && all == 0 {
			return 0, e
		}
		if e != success || n < len(b) {
			break
		}
	}
	return all, success
}

func (h *Host) fdClose(_ api.Memory, p []uint64) errno {
	fd := int32(p[0])
	e := h.fds.CloseFile(fd)
	delete(h.known, fd)
	return numberOf(e)
}

func (h *Host) fdRenumber(_ api.Memory, p []uint64) errno {
	from, to := int32(p[0]), int32(p[1])
	if from == to { // which the table would close
		if h.lookup(from) == nil {
			return badf
		}
		return success
	}
	e := h.fds.Renumber(from, to)
	delete(h.known, from)
	delete(h.known, to)
	return numberOf(e)
}

// socketOf is the socket of a descriptor.
func (h *Host) socketOf(fd uint64) (*socket, errno) {
	o := h.lookup(int32(fd))
	switch {
	case o == nil:
		return nil, badf
	case o.socket == nil:
		return nil, notsock
	}
	return o.socket, success
}

func (h *Host) sockAccept(m api.Memory, p []uint64) errno {
	flags, result := uint32(p[1]), uint32(p[2])
	s, e := h.socketOf(p[0])
	switch {
	case e != success:
		return e
	case !s.listening || flags&^flagNonblock != 0:
		return inval
	}
	if _, ok := m.Read(result, 4); !ok {
		return fault // before a connection is taken that nobody would know of
	}
	for {
		c, err := s.accept()
		if err == nil {
			c.nonblock = flags&flagNonblock != 0
			fd, e := h.insert(c)
			if e != success {
				return e
			}
			return put(m, result, uint32(fd))
		}
		if !errors.Is(err, unix.EAGAIN) || s.nonblock {
			return numberFor(err)
		}
		h.await(s.fd, unix.POLLIN)
	}
}

func (h *Host) sockRecv(m api.Memory, p []uint64) errno {
	flags, length, out := uint32(p[3]), uint32(p[4]), uint32(p[5])
	s, e := h.socketOf(p[0])
	if e != success {
		return e
	}
	if flags&^(recvPeek|recvWaitAll) != 0 {
		return notsup
	}
	buffers, e := h.buffers(m, uint32(p[1]), uint32(p[2]))
	if e != success {
		return e
	}
	if !m.WriteUint16Le(out, 0) || !m.WriteUint32Le(length, 0) { // a stream has no messages that could be cut off
		return fault
	}
	n := 0
	switch {
	case len(buffers) == 0:
	case flags&recvPeek != 0:
		n, e = h.move(s, buffers[:1], unix.POLLIN, func(b [][]byte) (int, error) { return s.peek(b[0]) })
	case flags&recvWaitAll != 0:
		n, e = each(buffers, func(b []byte) (int, errno) { return h.receiveAll(s, b) })
	default:
		n, e = h.move(s, buffers, unix.POLLIN, s.receive)
	}
	if e != success {
		return e
	}
	return put(m, length, uint32(n))
}

// receiveAll fills a buffer, unless the stream ends or the instance does not want to wait.
func (h *Host) receiveAll(s *socket, b []byte) (int, errno) {
	all := 0
	for all < len(b) {
		n, e := h.move(s, [][]byte{b[all:]}, unix.POLLIN, s.receive)
		all += n
		if e != success && all == 0 {
			return 0, e
		}
		if e != success || n == 0 {
			break
		}
	}
	return all, success
}

func (h *Host) sockSend(m api.Memory, p []uint64) errno {
	s, e := h.socketOf(p[0])
	if e != success {
		return e
	}
	if uint32(p[3]) != 0 {
		return notsup // no flag is defined
	}
	return h.transfer(m, []uint64{p[0], p[1], p[2], p[4]}, func(_ *open, buffers [][]byte) (int, errno) {
		return h.move(s, buffers, unix.POLLOUT, s.send)
	})
}

func (h *Host) sockShutdown(_ api.Memory, p []uint64) errno {
	s, e := h.socketOf(p[0])
	if e != success {
		return e
	}
	if s.listening {
		return numberFor(unix.ENOTCONN) // Linux would end its listening
	}
	switch uint32(p[1]) {
	case shutRead:
		return numberFor(unix.Shutdown(s.fd, unix.SHUT_RD))
	case shutWrite:
		return numberFor(unix.Shutdown(s.fd, unix.SHUT_WR))
	case shutRead | shutWrite:
		return numberFor(unix.Shutdown(s.fd, unix.SHUT_RDWR))
	}
	return inval
}
