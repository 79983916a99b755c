// SPDX-License-Identifier: Apache-2.0

package wasip1

import (
	"encoding/binary"
	"errors"
	"io"
	"math"
	"time"

	"github.com/tetratelabs/wazero/api"
	experimentalsys "github.com/tetratelabs/wazero/experimental/sys"
	"golang.org/x/sys/unix"
)

// Layouts of a subscription and of an event, in bytes.
const (
	sizeSubscription = 48
	sizeEvent        = 32
)

// mostSubscriptions bounds one call. Go's runtime has no more, the largest that is known to ask for many.
const mostSubscriptions = 1 << 16

// keepSubscriptions is how many are kept room for between calls.
const keepSubscriptions = 1 << 10

// Kinds of events.
const (
	kindClock = iota
	kindRead
	kindWrite
)

// Clocks and flags of subscriptions.
const (
	clockRealtime  = 0
	clockMonotonic = 1
	clockThread    = 3 // the last one that is defined
	absolute       = 1
	hangup         = 1
)

// subscription is one thing that is waited for.
type subscription struct {
	user  [8]byte
	kind  byte
	err   errno         // it is answered with that, at once
	at    time.Duration // when a clock runs out, in the instance's monotonic time
	slot  int           // of what is waited for; -1 = a file that is ready
	bytes uint64        // of such a file
	ready bool
}

// pollOneoff waits for the first of what is subscribed to, and answers everything that has come to pass: a clock that ran out, a
// descriptor that can be read or written, and a subscription that cannot be fulfilled.
func (h *Host) pollOneoff(m api.Memory, p []uint64) errno {
	h.polls.Add(1)
	from, to, n, result := uint32(p[0]), uint32(p[1]), uint32(p[2]), uint32(p[3])
	if n == 0 || n > mostSubscriptions {
		return inval
	}
	list, ok := m.Read(from, n*sizeSubscription)
	if !ok {
		return fault
	}
	if _, ok := m.Read(result, 4); !ok {
		return fault
	}
	events, ok := m.Read(to, n*sizeEvent)
	if !ok {
		return fault
	}
	// Nothing of the list is read after this, so that events may be written over it.
	end, e := h.subscribe(list)
	if e != success {
		return e
	}
	count := 0
	for count == 0 {
		if err := h.wait(end); err != nil {
			return numberFor(err)
		}
		count = h.answer(events)
	}
	if len(h.subs) > keepSubscriptions {
		h.subs, h.waiting = nil, nil
	}
	return put(m, result, uint32(count))
}

// never is a time that does not come.
const never = time.Duration(math.MaxInt64)

// subscribe reads the list and answers when the first clock runs out: at once, if something is ready already.
func (h *Host) subscribe(list []byte) (time.Duration, errno) {
	now := time.Since(h.base)
	h.round++
	h.subs = h.subs[:0]
	h.waiting = append(h.waiting[:0], unix.PollFd{Fd: int32(h.wake), Events: unix.POLLIN})
	end := never
	for ; len(list) > 0; list = list[sizeSubscription:] {
		s := subscription{user: [8]byte(list), kind: list[8], slot: -1}
		switch s.kind {
		case kindClock:
			s.clock(list[16:], now)
		case kindRead:
			h.watch(&s, int32(binary.LittleEndian.Uint32(list[16:])), unix.POLLIN)
		case kindWrite:
			h.watch(&s, int32(binary.LittleEndian.Uint32(list[16:])), unix.POLLOUT)
		default:
			return 0, inval
		}
		switch {
		case s.ready || s.err != success:
			end = 0
		case s.kind == kindClock:
			end = min(end, s.at)
		}
		h.subs = append(h.subs, s)
	}
	return end, success
}

// clock reads when a clock runs out. The realtime clock's absolute times are kept as it is set now.
func (s *subscription) clock(b []byte, now time.Duration) {
	id, timeout, flags := binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint16(b[24:])
	after := time.Duration(min(timeout, math.MaxInt64))
	switch {
	case id > clockThread || flags&^absolute != 0:
		s.err = inval
		return
	case id > clockMonotonic:
		s.err = notsup // processor time does not pass while one waits
		return
	case flags&absolute == 0:
	case id == clockMonotonic:
		after -= now
	default:
		after -= time.Duration(time.Now().UnixNano())
	}
	s.at = now + min(max(after, 0), never-now)
	s.ready = after <= 0
}

// watch has a descriptor waited for, once however often it is subscribed to.
func (h *Host) watch(s *subscription, fd int32, events int16) {
	o := h.lookup(fd)
	switch {
	case o == nil:
		s.err = badf
		return
	case o.raw < 0:
		s.ready = true
		if s.kind == kindRead {
			s.bytes = left(o.file)
		}
		return
	case o.round != h.round:
		o.round, o.slot = h.round, len(h.waiting)
		h.waiting = append(h.waiting, unix.PollFd{Fd: int32(o.raw)})
	}
	h.waiting[o.slot].Events |= events
	s.slot = o.slot
}

// left is what can be read of a file from where it is read.
func left(f experimentalsys.File) uint64 {
	st, e := f.Stat()
	if e != 0 || !st.Mode.IsRegular() {
		return 0
	}
	at, e := f.Seek(0, io.SeekCurrent)
	if e != 0 {
		return 0
	}
	return uint64(max(st.Size-at, 0))
}

// wait returns when something is ready, or at a time of the instance's.
func (h *Host) wait(end time.Duration) error {
	for {
		var timeout *unix.Timespec
		if end != never {
			t := unix.NsecToTimespec(int64(max(end-time.Since(h.base), 0)))
			timeout = &t
		}
		_, err := unix.Ppoll(h.waiting, timeout, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		h.endIf(err == nil && h.waiting[0].Revents != 0)
		return err
	}
}

// answer writes an event for each subscription that has come to pass, and answers how many.
func (h *Host) answer(events []byte) int {
	now := time.Since(h.base)
	count := 0
	for i := range h.subs {
		s := &h.subs[i]
		e := event{err: s.err}
		switch {
		case s.err != success:
		case s.kind == kindClock:
			if now < s.at {
				continue
			}
		case s.slot < 0:
			e.bytes = s.bytes
		default:
			var pending bool
			if e, pending = h.pending(s); !pending {
				continue
			}
		}
		e.write(events[count*sizeEvent:][:sizeEvent], s)
		count++
	}
	return count
}

// event is what is said of a subscription, besides whose it is.
type event struct {
	err   errno
	bytes uint64
	flags uint16
}

func (e event) write(b []byte, s *subscription) {
	clear(b)
	copy(b, s.user[:])
	binary.LittleEndian.PutUint16(b[8:], uint16(e.err))
	b[10] = s.kind
	binary.LittleEndian.PutUint64(b[16:], e.bytes)
	binary.LittleEndian.PutUint16(b[24:], e.flags)
}

// pending is the event of a descriptor that was waited for. An error of a connection is not one of the subscription: reading or writing
// says it.
func (h *Host) pending(s *subscription) (event, bool) {
	w := h.waiting[s.slot]
	wanted := int16(unix.POLLIN)
	if s.kind == kindWrite {
		wanted = unix.POLLOUT
	}
	switch {
	case w.Revents&unix.POLLNVAL != 0:
		return event{err: badf}, true
	case w.Revents&(wanted|unix.POLLHUP|unix.POLLERR) == 0:
		return event{}, false
	}
	e := event{}
	if w.Revents&(unix.POLLHUP|unix.POLLERR) != 0 {
		e.flags = hangup
	}
	if w.Revents&wanted != 0 {
		e.bytes = 1
	}
	if s.kind == kindRead && w.Revents&unix.POLLIN != 0 {
		// A listening socket has no bytes: at least one connection.
		if n, err := unix.IoctlGetInt(int(w.Fd), unix.TIOCINQ); err == nil {
			e.bytes = uint64(max(n, 0))
		}
	}
	return e, true
}
