// SPDX-License-Identifier: Apache-2.0

// Package folderwatch looks at a folder whenever something happens in it.
package folderwatch

import (
	"context"
	"log/slog"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/wasmplane/wasmplane/core/run"
)

// quiet is how long nothing may happen in the folder before it is looked at: a file is
// often written in several steps.
const quiet = 100 * time.Millisecond

// Watch is a folder that is looked at.
type Watch struct {
	// Dir need not be there yet.
	Dir string
	// What the folder is, for the log: "the folder of static pods".
	What string
	// Every is how often it is looked at though nothing was heard of it: events of file
	// systems get lost.
	Every  time.Duration
	Logger *slog.Logger
}

// Run calls look at once, whenever something has happened in the folder, and every now and
// then, until ctx ends.
func (w Watch) Run(ctx context.Context, look func(context.Context)) error {
	var events chan fsnotify.Event
	var errs chan error
	watcher, err := fsnotify.NewWatcher()
	if err != nil { // as when this user has as many as the kernel allows
		w.Logger.WarnContext(ctx, w.What+" cannot be watched; it is read every now and then", "folder", w.Dir, "error", err)
	} else {
		defer watcher.Close()
		events, errs = watcher.Events, watcher.Errors
	}
	tick := time.NewTicker(w.Every)
	defer tick.Stop()
	for {
		// Where the folder is not there yet, or was replaced, it is watched from the next look on.
		if watcher != nil && len(watcher.WatchList()) == 0 {
			_ = watcher.Add(w.Dir)
		}
		look(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case err := <-errs:
			w.Logger.WarnContext(ctx, w.What+" cannot be watched; it is read every now and then", "folder", w.Dir, "error", err)
		case <-events:
			if !calm(ctx, events) {
				return nil
			}
		}
	}
}

// calm waits until nothing has happened in the folder for a moment, or for long enough.
func calm(ctx context.Context, events <-chan fsnotify.Event) bool {
	const longest = 20
	for range longest {
		if !run.Sleep(ctx, quiet) {
			return false
		}
		select {
		case <-events:
		default:
			return true
		}
	}
	return true
}
