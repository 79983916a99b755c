// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"hash/maphash"
	"net/http"
	"sync"
	"time"
)

// Bounds of answers that are not taken. A write stalls when the client has not
// taken what was written before.
const (
	watchStall  = 30 * time.Second // Config.WatchStall
	answerParts = 3                // an answer is cut off after this part of it,
	reliefParts = 10               // and a watch gives its seat back after this one
	stallPart   = 16 << 10         // of what is written, in bytes, has this long
	stalledMost = 20               // watches of one share (package share) that stall at one time
	smallAnswer = 2 << 10          // goes into a buffer, and nobody waits for the client
	lastWord    = 5 * time.Second  // to receive that a request's time is up
)

// stall ends the writes of an answer that its client does not take.
type stall struct {
	s     *Server
	w     http.ResponseWriter
	share string // whose it is, by share.Of
	// relief is called once the first write of a watch stalls; nil = it is no watch.
	relief func()

	mu      sync.Mutex
	timer   *time.Timer
	writing bool
	counted bool
	ended   bool // the writer may not be touched any more
}

func (g *stall) during(write func()) {
	first := g.s.cfg.WatchStall / answerParts
	if g.relief != nil {
		first = g.s.cfg.WatchStall / reliefParts
	}
	g.mu.Lock()
	g.writing = true
	if g.timer == nil {
		g.timer = time.AfterFunc(first, g.fire)
	} else {
		g.timer.Reset(first)
	}
	g.mu.Unlock()
	write()
	g.timer.Stop()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.writing = false
	if g.counted {
		g.counted = false
		g.s.stalled.leave(g.share)
	}
}

func (g *stall) fire() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.writing {
		return
	}
	if g.relief != nil && !g.counted {
		g.relief()
		g.counted = true
		if g.s.stalled.enter(g.share) <= stalledMost {
			g.timer.Reset(g.s.cfg.WatchStall - g.s.cfg.WatchStall/reliefParts)
			return
		}
	}
	g.s.metrics.Stalled()
	_ = http.NewResponseController(g.w).SetWriteDeadline(time.Unix(1, 0)) // callers within the process have no connection
}

// timeUp ends the request's writes soon after its time.
func (g *stall) timeUp() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.ended {
		_ = http.NewResponseController(g.w).SetWriteDeadline(time.Now().Add(lastWord))
	}
}

// end takes timeUp back: the connection may have more requests.
func (g *stall) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ended = true
	_ = http.NewResponseController(g.w).SetWriteDeadline(time.Time{})
}

// counts are numbers by share.Of. They are counted for each request: shares are spread over parts, so that one does not wait
// for the other. The zero value is ready to use.
type counts struct {
	parts [countParts]struct {
		mu sync.Mutex
		of map[string]int
		_  [48]byte // parts are on cache lines of their own
	}
}

const countParts = 64

var countSeed = maphash.MakeSeed()

func (c *counts) enter(name string) int {
	p := &c.parts[maphash.String(countSeed, name)%countParts]
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.of == nil {
		p.of = map[string]int{}
	}
	p.of[name]++
	return p.of[name]
}

func (c *counts) leave(name string) {
	p := &c.parts[maphash.String(countSeed, name)%countParts]
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.of[name]--; p.of[name] <= 0 {
		delete(p.of, name)
	}
}
