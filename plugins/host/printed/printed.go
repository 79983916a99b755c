// SPDX-License-Identifier: Apache-2.0

// Package printed handles a guest's output: it goes into the log line by line, bounded for
// each call and for each second, and the end of a call's output is kept. A panic's message
// is found there even if the log's bound was reached.
package printed

import (
	"bytes"
	"log/slog"
	"strings"
	"sync/atomic"

	"golang.org/x/time/rate"
)

// Bounds of what is kept of a guest's output.
const (
	longestLine = 1024
	mostKept    = 4 << 10 // of one call, the end of it
	mostLast    = 1 << 10 // of the words of a panic
	mostExcerpt = 400     // in an error
)

// How many lines a plugin may put into the log, all its instances together: some at once,
// and some for each second.
const (
	linesAtOnce    = 500
	linesPerSecond = 20
)

// Rate keeps a plugin that prints in each call from filling the log.
type Rate struct {
	limiter *rate.Limiter
	dropped atomic.Int64
}

// NewRate is the rate of one plugin: all its instances share it.
func NewRate() *Rate {
	return &Rate{limiter: rate.NewLimiter(linesPerSecond, linesAtOnce)}
}

// Output takes what one instance prints. It is not safe for concurrent use.
type Output struct {
	Logger *slog.Logger
	Plugin string
	Rate   *Rate
	Limit  int64 // bytes of one call that are logged (limits.log)

	buf     []byte // a line that has not ended
	logged  int64
	kept    []byte
	last    []byte // the words of a panic
	panicks bool   // last takes what comes
}

// Begin forgets the call before.
func (o *Output) Begin() {
	o.buf, o.kept, o.last = o.buf[:0], o.kept[:0], o.last[:0]
	o.logged, o.panicks = 0, false
}

// Write takes a part of the output.
func (o *Output) Write(data []byte) {
	if skip := int64(len(data)) - max(o.Limit-o.logged, mostKept); skip > 0 { // nobody will see it
		data = data[skip:]
	}
	o.buf = append(o.buf, data...)
	rest := o.buf
	for {
		i := bytes.IndexByte(rest, '\n')
		if i < 0 && len(rest) < longestLine {
			break
		}
		if i < 0 || i > longestLine {
			i = min(longestLine, len(rest)-1)
		}
		o.line(rest[:i+1])
		rest = rest[i+1:]
	}
	o.buf = append(o.buf[:0], rest...)
}

func (o *Output) line(b []byte) {
	text := strings.ToValidUTF8(strings.TrimRight(string(b), "\r\n"), "\uFFFD")
	o.keep(text)
	if text == "" || o.logged > o.Limit {
		return
	}
	if o.logged += int64(len(b)); o.logged > o.Limit {
		text = strings.TrimSpace(strings.ToValidUTF8(text[:max(0, len(text)-int(o.logged-o.Limit))],
			"") + " (more output was dropped: limits.log)")
	}
	if !o.Rate.limiter.Allow() {
		o.Rate.dropped.Add(1)
		return
	}
	if n := o.Rate.dropped.Swap(0); n > 0 {
		o.Logger.Warn("a plugin printed more lines than are logged", "plugin", o.Plugin, "dropped", n)
	}
	o.Logger.Info("a plugin printed a line", "plugin", o.Plugin, "line", text)
}

// keep remembers a line.
func (o *Output) keep(text string) {
	o.kept = append(append(o.kept, text...), '\n')
	if len(o.kept) > 2*mostKept {
		o.kept = append(o.kept[:0], o.kept[len(o.kept)-mostKept:]...)
	}
	switch {
	case panics(text):
		o.last, o.panicks = o.last[:0], true
	case text == "" || strings.HasPrefix(text, "goroutine ") || strings.HasPrefix(text, "note: run with"):
		o.panicks = false
	}
	if o.panicks && len(o.last) < mostLast {
		o.last = append(append(o.last, text...), '\n')
	}
}

// panics says whether a line is where a toolchain's panic begins to speak.
func panics(line string) bool {
	line = strings.TrimSpace(line)
	for _, prefix := range []string{
		"panic: ", "fatal error: ", // Go, TinyGo, Zig
		"Assertion failed: ",   // C
		"abort: ",              // AssemblyScript
		"Fatal error: ",        // Swift
		"Unhandled exception.", // C#
	} {
		if strings.HasPrefix(line, prefix) {
			return true
		}
	}
	return strings.Contains(line, "panicked at ") || // Rust
		strings.HasPrefix(line, "thread ") && strings.Contains(line, " panic: ") // Zig
}

// Flush ends an unfinished line.
func (o *Output) Flush() {
	if len(o.buf) > 0 {
		o.line(o.buf)
		o.buf = o.buf[:0]
	}
}

// Text is the end of what the call printed.
func (o *Output) Text() string {
	if len(o.kept) == 0 {
		return ""
	}
	text := string(o.kept[max(0, len(o.kept)-mostKept):])
	return strings.TrimRight(strings.ToValidUTF8(text, ""), "\n")
}

// Excerpt is what a guest said before it ended, on one line: the words of its panic,
// or else the last lines that it printed.
func (o *Output) Excerpt() string {
	words := string(o.last)
	if words == "" {
		lines := strings.Split(strings.TrimSpace(o.Text()), "\n")
		words = strings.Join(lines[max(0, len(lines)-3):], "\n")
	}
	words = strings.Join(strings.Fields(words), " ")
	if len(words) > mostExcerpt {
		words = strings.ToValidUTF8(words[:mostExcerpt], "") + "..."
	}
	return words
}
