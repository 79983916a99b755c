// SPDX-License-Identifier: Apache-2.0

package health

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// LogName is the name of the check of the log.
const LogName = "log"

// logPatience is how long the log may take for a record, as upstream's.
const logPatience = 2 * time.Minute

// Log is a log that is watched: whoever logs waits until the record is written, so a
// server whose log takes nothing, a pipe that nobody reads or a disk that hangs, comes
// to a halt one request after the other.
type Log struct {
	now   func() time.Time
	inner slog.Handler

	mu      sync.Mutex
	writing int       // records that are not written yet
	moved   time.Time // when the log last took one, or was first given one of these
}

// WatchLog watches what is logged to h. now is the clock; nil = time.Now.
func WatchLog(h slog.Handler, now func() time.Time) *Log {
	if now == nil {
		now = time.Now
	}
	return &Log{now: now, inner: h}
}

// Handler is the handler that is to be logged to.
func (l *Log) Handler() slog.Handler { return watched{l.inner, l} }

// Check is the check of the log: it fails while the log has not taken a record for two
// minutes. A server cannot mend this; a supervisor that restarts it gives it a new log.
func (l *Log) Check() Check {
	return Check{Name: LogName, Live: true, Check: func(context.Context) error {
		l.mu.Lock()
		defer l.mu.Unlock()
		if held := l.now().Sub(l.moved); l.writing > 0 && held > logPatience {
			return fmt.Errorf("the log has taken none of %d records for %s", l.writing, held.Round(time.Second))
		}
		return nil
	}}
}

func (l *Log) begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.writing == 0 {
		l.moved = l.now()
	}
	l.writing++
}

func (l *Log) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.writing--
	l.moved = l.now()
}

// watched is a slog.Handler that says when it begins and ends to write.
type watched struct {
	slog.Handler
	log *Log
}

// Handle implements slog.Handler.
func (w watched) Handle(ctx context.Context, r slog.Record) error {
	w.log.begin()
	defer w.log.end()
	return w.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (w watched) WithAttrs(attrs []slog.Attr) slog.Handler {
	return watched{w.Handler.WithAttrs(attrs), w.log}
}

// WithGroup implements slog.Handler.
func (w watched) WithGroup(name string) slog.Handler {
	return watched{w.Handler.WithGroup(name), w.log}
}
