// SPDX-License-Identifier: Apache-2.0

package host

import (
	"bytes"
	"log/slog"
	"strings"
)

// outputLog turns what a guest prints into log records, one a line.
type outputLog struct {
	logger *slog.Logger
	plugin string
	buf    []byte
}

const longestLine = 1024

func (o *outputLog) write(data []byte) {
	o.buf = append(o.buf, data...)
	for {
		i := bytes.IndexByte(o.buf, '\n')
		if i < 0 && len(o.buf) < longestLine {
			return
		}
		if i < 0 || i > longestLine {
			i = min(longestLine, len(o.buf)-1)
		}
		o.line(o.buf[:i+1])
		o.buf = append(o.buf[:0], o.buf[i+1:]...)
	}
}

func (o *outputLog) line(b []byte) {
	text := strings.ToValidUTF8(strings.TrimRight(string(b), "\r\n"), "\uFFFD")
	if text != "" {
		o.logger.Info("a plugin printed a line", "plugin", o.plugin, "line", text)
	}
}

// flush writes what is left of an unfinished line.
func (o *outputLog) flush() {
	if len(o.buf) > 0 {
		o.line(o.buf)
		o.buf = o.buf[:0]
	}
}
