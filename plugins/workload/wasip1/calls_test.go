// SPDX-License-Identifier: Apache-2.0

package wasip1

import (
	"bytes"
	"encoding/binary"
	"io"
	"math"
	"testing"

	"github.com/wasmplane/wasmplane/core/run"
)

// list puts a list of vectors into the memory, of places and lengths.
func (g *guest) list(placesAndLengths ...uint32) (at, n uint64) {
	g.t.Helper()
	var b []byte
	for _, v := range placesAndLengths {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	g.write(8, b)
	return 8, uint64(len(placesAndLengths) / 2)
}

func (g *guest) result() int {
	n, _ := g.m.ReadUint32Le(0)
	return int(n)
}

func TestSocketCalls(t *testing.T) {
	g := newGuest(t, nil)
	l := g.lookup(listening).socket
	l.SetNonblock(true)
	if e := g.sockAccept(g.m, []uint64{listening, 0, 0}); e != again {
		t.Errorf("nobody connects, and accepting answered %d", e)
	}
	c, fd := g.connect()
	at, one := g.list(2*scratch, 10)
	f := uint64(fd)
	if e := g.sockRecv(g.m, []uint64{f, at, one, 0, 0, 4}); e != again {
		t.Errorf("nobody sends, and receiving answered %d", e)
	}
	for what, e := range map[string]struct{ got, want errno }{
		"accept from a directory":         {g.sockAccept(g.m, []uint64{3, 0, 0}), notsock},
		"accept from nothing":             {g.sockAccept(g.m, []uint64{77, 0, 0}), badf},
		"accept from a connection":        {g.sockAccept(g.m, []uint64{f, 0, 0}), inval},
		"accept with a bad flag":          {g.sockAccept(g.m, []uint64{listening, 1, 0}), inval},
		"accept to nowhere":               {g.sockAccept(g.m, []uint64{listening, 0, math.MaxUint32}), fault},
		"receive from a directory":        {g.sockRecv(g.m, []uint64{3, at, one, 0, 0, 4}), notsock},
		"receive with a bad flag":         {g.sockRecv(g.m, []uint64{f, at, one, 4, 0, 4}), notsup},
		"receive lengths at the end":      {g.sockRecv(g.m, []uint64{f, at, one, 0, pages << 16, 4}), fault},
		"receive from a listening socket": {g.sockRecv(g.m, []uint64{listening, at, one, 0, 0, 4}), 53},
		"send to a directory":             {g.sockSend(g.m, []uint64{3, at, one, 0, 0}), notsock},
		"send with a bad flag":            {g.sockSend(g.m, []uint64{f, at, one, 1, 0}), notsup},
		"too many vectors":                {g.sockSend(g.m, []uint64{f, 0, mostVectors + 1, 0, 0}), inval},
		"four billion vectors":            {g.fdWrite(g.m, []uint64{f, 0, math.MaxUint32, 0}), inval},
		"vectors at the end":              {g.fdRead(g.m, []uint64{f, pages<<16 - 7, 1, 0}), fault},
		"shut nothing":                    {g.sockShutdown(g.m, []uint64{f, 0}), inval},
		"shut more than there is":         {g.sockShutdown(g.m, []uint64{f, 4}), inval},
		"shut a listening socket":         {g.sockShutdown(g.m, []uint64{listening, 3}), 53},
		"close what is closed":            {g.fdClose(g.m, []uint64{77}), badf},
		"renumber nothing":                {g.fdRenumber(g.m, []uint64{77, 78}), badf},
		"renumber nothing to itself":      {g.fdRenumber(g.m, []uint64{77, 77}), badf},
	} {
		if e.got != e.want {
			t.Errorf("%s: it answered %d, want %d", what, e.got, e.want)
		}
	}
	bad, _ := g.list(pages<<16-1, 10)
	if e := g.fdRead(g.m, []uint64{f, bad, 1, 0}); e != fault {
		t.Errorf("a buffer at the end: %d", e)
	}

	say(t, c, "hello")
	at, three := g.list(2*scratch, 0, 2*scratch, 3, 3*scratch, 10)
	g.poll(ofFile(1, kindRead, fd), ofClock(2, clockMonotonic, long, 0))
	if e := g.sockRecv(g.m, []uint64{f, at, three, recvPeek, 0, 4}); e != success || g.result() != 3 {
		t.Errorf("a peek answered %d and %d bytes", e, g.result())
	}
	if e := g.sockRecv(g.m, []uint64{f, at, three, 0, 0, 4}); e != success || g.result() != 5 {
		t.Errorf("receiving answered %d and %d bytes", e, g.result())
	}
	first, _ := g.m.Read(2*scratch, 3)
	second, _ := g.m.Read(3*scratch, 2)
	if string(first)+string(second) != "hello" {
		t.Errorf("it received %q and %q", first, second)
	}
	g.lookup(fd).socket.SetNonblock(false)
	sent := run.Go("the sender", func() error {
		for range 10 {
			if _, err := io.WriteString(c, "x"); err != nil {
				return err
			}
		}
		return nil
	})
	at, _ = g.list(2*scratch, 10)
	if e := g.sockRecv(g.m, []uint64{f, at, 1, recvWaitAll, 0, 4}); e != success || g.result() != 10 {
		t.Errorf("it received %d bytes and did not wait for all: %d", g.result(), e)
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	if e := g.sockSend(g.m, []uint64{f, at, 1, 0, 0}); e != success || g.result() != 10 {
		t.Errorf("sending answered %d and %d bytes", e, g.result())
	}
	if e := g.sockShutdown(g.m, []uint64{f, shutRead | shutWrite}); e != success {
		t.Errorf("shutdown answered %d", e)
	}
	if got, err := io.ReadAll(c); err != nil || string(got) != "xxxxxxxxxx" {
		t.Errorf("it sent %q, %v", got, err)
	}
	if e := g.fdWrite(g.m, []uint64{f, at, 1, 0}); e != 64 {
		t.Errorf("writing after the end answered %d, want EPIPE", e)
	}
}

// TestNothingIsLostOfWhatIsWrittenInParts: of several buffers of which some fit, exactly what is answered was sent.
func TestNothingIsLostOfWhatIsWrittenInParts(t *testing.T) {
	g := newGuest(t, nil)
	c, fd := g.connect()
	const size = 1 << 20
	pattern := make([]byte, 2*size)
	for i := range pattern {
		pattern[i] = byte(i ^ i>>8 ^ i>>16)
	}
	g.write(2*scratch, pattern)
	var wrote int
	for {
		part := uint32(wrote % size)
		at, n := g.list(2*scratch+part, 1000, 2*scratch+part+1000, size-1000)
		e := g.fdWrite(g.m, []uint64{uint64(fd), at, n, 0})
		if e == again {
			break
		}
		if e != success {
			t.Fatal(e)
		}
		wrote += g.result()
		if wrote > size {
			break // it all fitted, on a machine with large buffers
		}
	}
	if e := g.fdClose(g.m, []uint64{uint64(fd)}); e != success {
		t.Fatal(e)
	}
	got, err := io.ReadAll(c)
	if err != nil || len(got) != wrote {
		t.Fatalf("%d bytes came of %d: %v", len(got), wrote, err)
	}
	if n := min(len(got), size); !bytes.Equal(got[:n], pattern[:n]) {
		t.Error("other bytes came than were written")
	}
}
