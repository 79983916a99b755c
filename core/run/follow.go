// SPDX-License-Identifier: Apache-2.0

package run

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"os"
	"time"
)

// Follow calls Apply whenever the content of one of Files has changed, and so
// lets a component take on a new file without a restart. It compares contents
// and does not trust time stamps or notifications: mounted ConfigMaps, editors and
// network file systems replace files in ways that those miss.
type Follow struct {
	// What the files are, for the log: "the audit policy".
	What string
	// Files to look at; a missing one counts as a content of its own.
	Files []string
	// Apply takes on what the files say now. On an error it has changed nothing;
	// the error is told, and Apply is called again when a file changes again.
	Apply func(ctx context.Context) error
	// Interval between looks; 0 = 2 s.
	Interval time.Duration
	// Note tells a person who watches; may be nil.
	Note func(string)
	Log  *slog.Logger
}

// Run follows until ctx ends. The files as they are when Follow is made count as
// applied: call Seen before the component reads them.
func (f *Follow) Run(ctx context.Context, seen [sha256.Size]byte) error {
	if f.Interval <= 0 {
		f.Interval = 2 * time.Second
	}
	if f.Log == nil {
		f.Log = slog.New(slog.DiscardHandler)
	}
	tick := time.NewTicker(f.Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		now := f.Seen()
		if now == seen {
			continue
		}
		seen = now
		if err := f.Apply(ctx); err != nil {
			f.report(ctx, slog.LevelError, fmt.Sprintf("%s: %v (what was in force stays in force)", f.What, err))
			continue
		}
		f.report(ctx, slog.LevelInfo, f.What+" was read again and is in force")
	}
}

// Seen is a digest of the files' present contents.
func (f *Follow) Seen() [sha256.Size]byte {
	h := sha256.New()
	for _, name := range f.Files {
		data, err := os.ReadFile(name)
		if err != nil {
			data = []byte("\x00" + err.Error())
		}
		fmt.Fprintf(h, "%d:", len(data))
		h.Write(data)
	}
	return [sha256.Size]byte(h.Sum(nil))
}

func (f *Follow) report(ctx context.Context, level slog.Level, text string) {
	f.Log.Log(ctx, level, text)
	if f.Note != nil {
		f.Note(text)
	}
}
