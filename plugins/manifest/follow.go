// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/core/strictyaml"
)

// OfFile reads the entries of a configuration; errors name its file.
func OfFile(c *config.Configuration) ([]Entry, error) {
	entries, err := ParseAll(c.Plugins)
	var fe *strictyaml.FieldError
	if errors.As(err, &fe) && fe.File == "" {
		fe.File = c.File
	}
	return entries, err
}

// debounce is how long the file has to be left alone before it is read: whoever
// truncates and writes it again must not be caught in between, since half a file may
// well be a good one with fewer plugins.
const debounce = 100 * time.Millisecond

// FollowFile calls changed with the plugins of a configuration file whenever it has
// changed, until ctx ends. The folder is watched, because editors replace files.
func FollowFile(ctx context.Context, file string, log *slog.Logger, changed func([]Entry, error)) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch %s: %w", file, err)
	}
	defer func() { _ = w.Close() }()
	if err := w.Add(filepath.Dir(file)); err != nil {
		return fmt.Errorf("watch %s: %w", file, err)
	}
	quiet := time.NewTimer(0)
	defer quiet.Stop()
	<-quiet.C
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-w.Errors:
			log.WarnContext(ctx, "changes of the configuration may have been missed", "file", file, "error", err)
		case e := <-w.Events:
			if filepath.Clean(e.Name) == filepath.Clean(file) && !e.Has(fsnotify.Remove) {
				quiet.Reset(debounce)
			}
		case <-quiet.C:
			c, err := config.LoadFile(file)
			if err != nil {
				changed(nil, err)
				continue
			}
			changed(OfFile(c))
		}
	}
}
