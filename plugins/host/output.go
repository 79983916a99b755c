// SPDX-License-Identifier: Apache-2.0

package host

import (
	"bytes"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// Bounds of what is kept of a guest's output.
const (
	longestLine = 1024
	mostKept    = 4 << 10 // of one call, for Usage.Printed: the end of it
	mostLast    = 1 << 10 // of the words of a panic
	mostExcerpt = 400     // in an error
)

// How many lines a plugin may put into the log, all its instances together: some at once,
// and some for each second.
const (
	linesAtOnce    = 500
	linesPerSecond = 20
)

// lineRate keeps a plugin that prints in each call from filling the log.
type lineRate struct {
	limiter *rate.Limiter
	dropped atomic.Int64
}

func newLineRate() *lineRate {
	return &lineRate{limiter: rate.NewLimiter(linesPerSecond, linesAtOnce)}
}

// output is where what a guest prints goes: line by line into the log, bounded for each call and
// for each second; and its end into what is known of the call. The words of a panic are found
// in it also when the log has had enough.
type output struct {
	logger *slog.Logger
	plugin string
	rate   *lineRate
	limit  int64 // bytes of one call that are logged (limits.log)

	buf     []byte // a line that has not ended
	logged  int64
	kept    []byte
	last    []byte // the words of a panic
	panicks bool   // last takes what comes
}

// begin forgets the call before.
func (o *output) begin() {
	o.buf, o.kept, o.last = o.buf[:0], o.kept[:0], o.last[:0]
	o.logged, o.panicks = 0, false
}

func (o *output) write(data []byte) {
	if skip := int64(len(data)) - max(o.limit-o.logged, mostKept); skip > 0 { // nobody will see it
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

func (o *output) line(b []byte) {
	text := strings.ToValidUTF8(strings.TrimRight(string(b), "\r\n"), "\uFFFD")
	o.keep(text)
	if text == "" || o.logged > o.limit {
		return
	}
	if o.logged += int64(len(b)); o.logged > o.limit {
		text = strings.TrimSpace(strings.ToValidUTF8(text[:max(0, len(text)-int(o.logged-o.limit))], "") + " (more output was dropped: limits.log)")
	}
	if !o.rate.limiter.Allow() {
		o.rate.dropped.Add(1)
		return
	}
	if n := o.rate.dropped.Swap(0); n > 0 {
		o.logger.Warn("a plugin printed more lines than are logged", "plugin", o.plugin, "dropped", n)
	}
	o.logger.Info("a plugin printed a line", "plugin", o.plugin, "line", text)
}

// keep remembers a line.
func (o *output) keep(text string) {
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

// flush ends an unfinished line.
func (o *output) flush() {
	if len(o.buf) > 0 {
		o.line(o.buf)
		o.buf = o.buf[:0]
	}
}

// printed is the end of what the call printed.
func (o *output) printed() string {
	if len(o.kept) == 0 {
		return ""
	}
	text := string(o.kept[max(0, len(o.kept)-mostKept):])
	return strings.TrimRight(strings.ToValidUTF8(text, ""), "\n")
}

// excerpt is what a guest said before it ended, on one line: the words of its panic,
// or else the last lines that it printed.
func (o *output) excerpt() string {
	words := string(o.last)
	if words == "" {
		lines := strings.Split(strings.TrimSpace(o.printed()), "\n")
		words = strings.Join(lines[max(0, len(lines)-3):], "\n")
	}
	return clip(strings.Join(strings.Fields(words), " "), mostExcerpt)
}

// fault makes a Fault of what the engine returned, with what the guest said of it.
func (in *Instance) fault(err error) *Fault {
	f := in.module.fault(err)
	in.out.flush()
	if f.Kind == Trap || f.Kind == Exit || f.Kind == StackDepth {
		f.Printed = in.out.excerpt()
	}
	return f
}

// startFault is the fault of a guest that has not begun to work.
func (in *Instance) startFault(err error) *Fault {
	f := in.fault(err)
	f.Detail = "while it started: " + f.Detail
	return f
}

// printed takes what a guest writes to stdout or stderr.
func (in *Instance) printed(data []byte) {
	in.charge(int64(len(data)))
	in.out.write(data)
}

// spent is what the call that has ended cost.
func (in *Instance) spent(start time.Time) Usage {
	in.finish()
	in.out.flush()
	return Usage{Fuel: in.used(), HostCalls: in.meter.hostCalls, Memory: in.memory.Size(), Duration: time.Since(start), Printed: in.out.printed()}
}
