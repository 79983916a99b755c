// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/source"
)

// How often Run tries again what could not be loaded from elsewhere, and looks
// which tags are due to be asked about.
const (
	retryEvery = 20 * time.Second
	lookEvery  = 10 * time.Second
)

// settleTime is how long a file has to lie still: a compiler writes in pieces.
const settleTime = 100 * time.Millisecond

// readFiles are the digests of the entries' local files, by path.
func (l *Loader) readFiles(entries []manifest.Entry) map[string]string {
	files := map[string]string{}
	for i := range entries {
		for _, e := range []*manifest.Entry{&entries[i], entries[i].CandidateEntry()} {
			if e == nil || entries[i].Disabled {
				continue
			}
			if path := l.fetch.Path(e); path != "" && files[path] == "" {
				files[path] = l.content(e)
			}
		}
	}
	return files
}

// content is the digest of an entry's local file as it is now; "" where there is none. Times of
// files would not do: two builds may fall into one tick of the clock.
func (l *Loader) content(e *manifest.Entry) string {
	path := l.fetch.Path(e)
	if path == "" {
		return ""
	}
	wasm, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return source.Digest(wasm)
}

// modified says that a local file is not what was loaded.
func (l *Loader) modified(s *slot) bool {
	if s.plugin.Current().Pending() {
		return false // it has not been loaded yet
	}
	if l.content(&s.entry) != s.content {
		return true
	}
	c := s.entry.CandidateEntry()
	return c != nil && !s.unused && l.content(c) != s.candidate.content
}

// Run watches the modules' files and loads what changes, tries again what could not
// be fetched, and looks whether tags have moved, until ctx ends.
func (l *Loader) Run(ctx context.Context) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch the plugins' files: %w", err)
	}
	defer func() { _ = w.Close() }()
	settle := time.NewTimer(time.Hour)
	settle.Stop()
	retry, look := time.NewTicker(retryEvery), time.NewTicker(lookEvery)
	defer retry.Stop()
	defer look.Stop()
	if err := l.watchDisabled(ctx, w); err != nil {
		return err
	}
	l.watchDirs(w)
	l.reload(ctx, l.modified) // what happened between the load and the watch
	for {
		l.watchDirs(w)
		select {
		case <-ctx.Done():
			return nil
		case err := <-w.Errors:
			l.cfg.Logger.WarnContext(ctx, "watching the plugins' files", "error", err)
		case event := <-w.Events:
			if l.cfg.DisabledDir != "" && filepath.Dir(event.Name) == filepath.Clean(l.cfg.DisabledDir) {
				l.again(ctx, File)
				l.again(ctx, API)
			}
			if l.isSource(event.Name) {
				settle.Reset(settleTime)
			}
		case <-settle.C:
			l.reload(ctx, l.modified)
		case <-retry.C:
			l.reload(ctx, failedElsewhere)
		case <-look.C:
			l.lookForMoved(ctx)
		case <-l.sources:
		}
	}
}

// watchDisabled follows the switches, and what happened to them before.
func (l *Loader) watchDisabled(ctx context.Context, w *fsnotify.Watcher) error {
	if l.cfg.DisabledDir == "" {
		return nil
	}
	if err := os.MkdirAll(l.cfg.DisabledDir, 0o700); err != nil {
		return fmt.Errorf("make the directory of disabled plugins: %w", err)
	}
	if err := w.Add(l.cfg.DisabledDir); err != nil {
		return fmt.Errorf("watch the directory of disabled plugins: %w", err)
	}
	l.mu.Lock()
	off := l.off
	l.mu.Unlock()
	if !maps.Equal(off, l.disabled()) {
		l.again(ctx, File)
		l.again(ctx, API)
	}
	return nil
}

// failedElsewhere: the next attempt may find the registry up again.
func failedElsewhere(s *slot) bool {
	c := s.entry.CandidateEntry()
	return s.err != nil && s.entry.Kind() != "file" || s.candidate.err != nil && c != nil && c.Kind() != "file"
}

// files are the local files of a slot: module and signature, and those of its candidate.
func (l *Loader) files(s *slot) []string {
	var out []string
	for _, e := range []*manifest.Entry{&s.entry, s.entry.CandidateEntry()} {
		if e == nil {
			continue
		}
		if path := l.fetch.Path(e); path != "" {
			out = append(out, filepath.Clean(path), filepath.Clean(path)+".sig")
		}
	}
	return out
}

// watchDirs watches the directories, as files are replaced by rename.
func (l *Loader) watchDirs(w *fsnotify.Watcher) {
	watched := w.WatchList()
	for _, s := range l.list() {
		for _, path := range l.files(s) {
			dir := filepath.Dir(path)
			if !slices.Contains(watched, dir) && w.Add(dir) == nil {
				watched = append(watched, dir)
			}
		}
	}
}

func (l *Loader) isSource(name string) bool {
	return slices.ContainsFunc(l.list(), func(s *slot) bool { return slices.Contains(l.files(s), filepath.Clean(name)) })
}

// reload loads again where that is called for. What cannot be loaded has been
// logged, and stands in the status.
func (l *Loader) reload(ctx context.Context, due func(*slot) bool) {
	for _, from := range origins() {
		again := false
		for _, s := range l.list() {
			again = again || s.origin == from && due(s)
		}
		if again {
			l.again(ctx, from)
		}
	}
}

// again begins with what was applied last. What is applied meanwhile goes first.
func (l *Loader) again(ctx context.Context, from Origin) {
	for {
		l.mu.Lock()
		entries, times := l.given[from], l.times[from]
		l.mu.Unlock()
		files, off := l.readFiles(entries), l.disabled()
		l.mu.Lock()
		if l.times[from] == times {
			l.begin(ctx, from, entries, files, off)
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()
	}
}

// disabled are the plugins that somebody switched off, with the server up or down.
func (l *Loader) disabled() map[string]bool {
	if l.cfg.DisabledDir == "" {
		return nil
	}
	files, err := os.ReadDir(l.cfg.DisabledDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		l.cfg.Logger.Error("it cannot be told which plugins are disabled", "directory", l.cfg.DisabledDir, "error", err)
	}
	off := map[string]bool{}
	for _, f := range files {
		off[f.Name()] = true
	}
	return off
}

// lookForMoved asks registries where the tags of pinned modules point, and servers whether bundles that
// are followed have changed, each for itself.
func (l *Loader) lookForMoved(ctx context.Context) {
	for _, s := range l.list() {
		if s.unused || s.entry.Kind() != "oci" && !s.entry.Follows() ||
			time.Since(time.Unix(s.looked.Load(), 0)) < time.Duration(s.entry.Fetch.Check) {
			continue
		}
		s.looked.Store(time.Now().Unix())
		l.working.Go(func() { l.lookForOne(ctx, s) })
	}
}

func (l *Loader) lookForOne(ctx context.Context, s *slot) {
	e := bounded(s.origin, s.entry)
	leave, err := l.fetching.Enter(ctx, e.Namespace)
	if err != nil {
		return // it is due again soon
	}
	defer leave()
	limited, cancel := context.WithTimeout(ctx, time.Duration(e.Fetch.Timeout))
	defer cancel()
	if e.Follows() {
		l.lookForNewer(ctx, limited, s, &e)
		return
	}
	now, err := l.fetch.Moved(limited, &e)
	if err != nil {
		l.cfg.Logger.DebugContext(ctx, "could not look where a plugin's tag points", "plugin", e.Name, "error", err)
		return
	}
	if was := s.moved.Swap(&now); now != "" && (was == nil || *was != now) {
		l.cfg.Logger.WarnContext(ctx, "the tag of a plugin's source has moved; what is pinned stays in force", "plugin", e.Name,
			"source", e.Source, "digest", now)
	}
}

// lookForNewer has a bundle loaded again that has changed. limited bounds the question.
func (l *Loader) lookForNewer(ctx, limited context.Context, s *slot, e *manifest.Entry) {
	if s.plugin.Current().Pending() || s.err != nil {
		return // it is loaded, or tried again, anyway
	}
	changed, err := l.fetch.Changed(limited, e, s.fetched.digest, s.fetched.tag)
	switch {
	case err != nil:
		l.cfg.Logger.WarnContext(ctx, "could not look whether a plugin's bundle has changed; what was loaded stays in force", "plugin", e.Name, "error", err)
	case changed:
		s.stale.Store(true)
		l.reload(ctx, func(s *slot) bool { return s.stale.Load() })
	}
}
