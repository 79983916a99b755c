// SPDX-License-Identifier: Apache-2.0

// Package zaplog lets etcd's server log by slog.
package zaplog

import (
	"fmt"
	"log/slog"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// To is a zap logger for etcd's server that hands warnings and worse to l. Where etcd
// would end the process it calls fatal, which must not return, with what etcd says.
func To(l *slog.Logger, fatal func(string)) *zap.Logger {
	return zap.New(&slogCore{log: l}, zap.WithFatalHook(hook(fatal)))
}

type hook func(string)

// OnWrite implements zapcore.CheckWriteHook.
func (h hook) OnWrite(e *zapcore.CheckedEntry, fields []zapcore.Field) {
	message := e.Message
	for _, a := range toAttrs(fields) {
		message += ": " + a.Value.String()
	}
	h(message)
	panic(message)
}

type slogCore struct{ log *slog.Logger }

// notYet is what etcd says of an empty database that has not seen its first term;
// it tries again by itself.
const notYet = "failed to update storage version"

// Enabled implements zapcore.LevelEnabler.
func (c *slogCore) Enabled(level zapcore.Level) bool { return level >= zapcore.WarnLevel }

// With implements zapcore.Core.
func (c *slogCore) With(fields []zapcore.Field) zapcore.Core {
	return &slogCore{log: slog.New(c.log.Handler().WithAttrs(toAttrs(fields)))}
}

// Check implements zapcore.Core.
func (c *slogCore) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return ce.AddCore(e, c)
	}
	return ce
}

// Write implements zapcore.Core.
func (c *slogCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	if e.Level == zapcore.WarnLevel || e.Message == notYet {
		// What etcd warns of (a slow disk, a slow request) matters to who
		// looks for the reason of slowness, and to nobody else.
		c.log.Debug("etcd: "+e.Message, toArgs(fields)...)
		return nil
	}
	c.log.Error("etcd: "+e.Message, toArgs(fields)...)
	return nil
}

// Sync implements zapcore.Core.
func (c *slogCore) Sync() error { return nil }

func toArgs(fields []zapcore.Field) []any {
	var args []any
	for _, a := range toAttrs(fields) {
		args = append(args, a)
	}
	return args
}

func toAttrs(fields []zapcore.Field) []slog.Attr {
	enc := zapcore.NewMapObjectEncoder()
	attrs := make([]slog.Attr, 0, len(fields))
	for _, f := range fields {
		if f.Type == zapcore.SkipType { // such as an error that is nil
			continue
		}
		f.AddTo(enc)
		attrs = append(attrs, slog.String(f.Key, fmt.Sprint(enc.Fields[f.Key])))
	}
	return attrs
}
