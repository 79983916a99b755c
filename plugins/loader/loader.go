// Package loader turns plugin entries into plugins that are asked: it reads and
// pins modules, has them compiled aside, checks their settings, and swaps a new
// version in between two calls. Where anything fails, what was in force stays in
// force, and the status says why.
//
// Load brings up the first set before the first request; Apply takes another set
// of entries; Run watches the modules' files. Each of them leaves the lists that
// AdmissionPlugins and its siblings return up to date; Changes says when to ask again.
// The adapters in these lists stay valid across reloads.
package loader

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/prometheus/client_golang/prometheus"
	"go.yaml.in/yaml/v3"

	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/foreign"
	"github.com/wasmplane/wasmplane/plugins/host"
	"github.com/wasmplane/wasmplane/plugins/hostfn"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/point"
	pointadmission "github.com/wasmplane/wasmplane/plugins/point/admission"
)

// Config configures a Loader.
type Config struct {
	// Entries are the plugins, in the order in which they are asked.
	Entries []manifest.Entry
	// Dir is where relative file sources start.
	Dir string
	// CacheDir keeps compiled modules; see host.Config.
	CacheDir string
	Logger   *slog.Logger
	// Registerer gets the plugins' metrics; nil = they are counted and not served.
	Registerer prometheus.Registerer
	// Namespaces answers the labels of namespaces, for namespaceSelector.
	Namespaces pointadmission.Namespaces
	// Functions are what can be granted to plugins; nil = those that need nothing but this process.
	Functions *hostfn.Functions
	// Interpreter runs plugins without compiling them, for tests.
	Interpreter bool
}

// Loader holds the plugins of one process.
type Loader struct {
	cfg     Config
	host    *host.Host
	metrics *point.Metrics
	changes chan struct{}
	sources chan struct{} // tells Run that there may be other files to watch

	apply sync.Mutex // one Apply at a time
	mu    sync.Mutex // guards what follows
	slots []*slot    // in the order of the entries

	retiring sync.WaitGroup // old versions that are being closed
}

// slot is one entry with its plugin.
type slot struct {
	entry    manifest.Entry
	plugin   *point.Plugin
	content  string // digest of what was loaded last, or was to be; "" = it could not be read
	err      error  // of the last load
	adapters adapters
}

// New makes a loader. It loads nothing yet.
func New(ctx context.Context, cfg Config) (*Loader, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Functions == nil {
		cfg.Functions = hostfn.New(hostfn.Backend{Logger: cfg.Logger})
	}
	h, err := host.New(ctx, host.Config{CacheDir: cfg.CacheDir, Logger: cfg.Logger, Interpreter: cfg.Interpreter})
	if err != nil {
		return nil, err
	}
	metrics, err := point.NewMetrics(cfg.Registerer)
	if err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return &Loader{cfg: cfg, host: h, metrics: metrics, changes: make(chan struct{}, 1), sources: make(chan struct{}, 1)}, nil
}

// Load loads the configured entries. A plugin that cannot be loaded does not keep
// the others, nor the server, from coming up: its failure policy decides what
// its points do. The error says what could not be loaded.
func (l *Loader) Load(ctx context.Context) error { return l.Apply(ctx, l.cfg.Entries) }

// Changes receives after the lists of adapters have changed.
func (l *Loader) Changes() <-chan struct{} { return l.changes }

// Apply makes entries the ones in force: it loads what is new or changed, keeps
// what is not, and unloads what is gone. The error is what could not be loaded.
func (l *Loader) Apply(ctx context.Context, entries []manifest.Entry) error {
	l.apply.Lock()
	defer l.apply.Unlock()
	before := map[string]*slot{}
	for _, s := range l.list() {
		before[s.entry.Name] = s
	}
	var next []*slot
	var errs []error
	changed := false
	for _, e := range entries {
		if e.Disabled {
			continue
		}
		s := before[e.Name]
		delete(before, e.Name)
		if s == nil {
			s = &slot{plugin: point.NewPlugin(e.Name, l.metrics)}
		} else if same(&s.entry, &e) && s.err == nil && !l.modified(s) {
			next = append(next, s)
			continue
		}
		changed = true
		fresh, err := l.replace(ctx, s, e)
		if err != nil {
			errs = append(errs, err)
		}
		next = append(next, fresh)
	}
	l.publish(next, changed || len(before) > 0)
	for name, gone := range before {
		old := gone.plugin.Swap(nil)
		gone.adapters.release()
		l.retire(old)
		l.metrics.Forget(name)
		l.cfg.Logger.Info("plugin unloaded", "plugin", name)
	}
	return errors.Join(errs...)
}

// replace loads a version of e, and swaps it in where it is sound.
func (l *Loader) replace(ctx context.Context, s *slot, e manifest.Entry) (*slot, error) {
	start := time.Now()
	fresh := &slot{entry: e, plugin: s.plugin, content: l.content(e)}
	v, err := l.load(ctx, e)
	if err != nil {
		err = fmt.Errorf("load plugin %q: %w", e.Name, err)
		fresh.err = err
		if cur := s.plugin.Current(); cur == nil || cur.Err != nil {
			s.plugin.Swap(point.NewBroken(e, err))
			l.cfg.Logger.Error("plugin could not be loaded; its failure policy decides at its points", "plugin", e.Name, "error", err)
		} else {
			l.cfg.Logger.Error("new version of a plugin could not be loaded; the one before stays in force", "plugin", e.Name, "digest", cur.Digest, "error", err)
		}
	} else {
		old := s.plugin.Swap(v)
		s.adapters.release() // what is kept in an instance of the old version is made anew
		l.retire(old)
		l.cfg.Logger.Info("plugin loaded", "plugin", e.Name, "version", v.Manifest.Version, "digest", v.Digest,
			"points", v.Manifest.Points(), "took", time.Since(start).Round(time.Microsecond))
	}
	fresh.adapters = l.adapt(s.plugin, s.adapters)
	return fresh, err
}

// retire closes a version when its last call has ended.
func (l *Loader) retire(v *point.Version) {
	if v == nil || v.Module == nil {
		return
	}
	l.retiring.Go(func() {
		if err := v.Module.Close(); err != nil {
			l.cfg.Logger.Warn("could not close an old version of a plugin", "plugin", v.Entry.Name, "error", err)
		}
	})
}

func (l *Loader) publish(slots []*slot, changed bool) {
	l.mu.Lock()
	changed = changed || !slices.Equal(slots, l.slots) // in another order
	l.slots = slots
	l.mu.Unlock()
	if !changed {
		return
	}
	for _, c := range []chan struct{}{l.changes, l.sources} {
		select {
		case c <- struct{}{}:
		default: // told already
		}
	}
}

func (l *Loader) list() []*slot {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.slots
}

// same compares entries as they are written, but for their line.
func same(a, b *manifest.Entry) bool {
	x, y := *a, *b
	x.Line, y.Line = 0, 0
	bx, err1 := yaml.Marshal(x)
	by, err2 := yaml.Marshal(y)
	return err1 == nil && err2 == nil && bytes.Equal(bx, by)
}

// Path is the file of an entry's module.
func (l *Loader) path(e manifest.Entry) string {
	p := strings.TrimPrefix(e.Source, "file:")
	if filepath.IsAbs(p) {
		return p
	}
	return filepath.Join(l.cfg.Dir, p)
}

// content is the digest of the module as it is now. Times of files would not do: two
// builds may fall into one tick of the clock.
func (l *Loader) content(e manifest.Entry) string {
	wasm, err := os.ReadFile(l.path(e))
	if err != nil {
		return ""
	}
	return host.Digest(wasm)
}

func (l *Loader) modified(s *slot) bool { return l.content(s.entry) != s.content }

// load reads, checks, compiles and starts a module, without touching what is in force.
func (l *Loader) load(ctx context.Context, e manifest.Entry) (*point.Version, error) {
	wasm, err := os.ReadFile(l.path(e))
	if err != nil {
		return nil, fmt.Errorf("read the module: %w", err)
	}
	digest := host.Digest(wasm)
	if e.Digest != "" && e.Digest != digest {
		return nil, fmt.Errorf("the module %s has digest %s: the entry pins %s", l.path(e), digest, e.Digest)
	}
	speaks, err := foreign.Recognise(wasm, &e)
	if err != nil {
		return nil, err
	}
	if speaks != manifest.Wasmplane {
		return l.loadForeign(ctx, speaks, wasm, e)
	}
	settings, err := e.SettingsJSON()
	if err != nil {
		return nil, err
	}
	setup := &setup{settings: settings}
	mod, err := l.host.Compile(ctx, wasm, host.Options{
		Name: e.Name, Limits: e.HostLimits(), PerCall: e.Isolation == manifest.PerCall,
		Clock: e.Grants.Clock, Random: e.Grants.Random,
		Funcs: l.cfg.Functions.Set(&e), Setup: setup.run,
	})
	if err != nil {
		return nil, err
	}
	m, err := l.describe(ctx, &e, mod, setup)
	if err != nil {
		return nil, errors.Join(err, mod.Close())
	}
	v := point.NewVersion(e, digest, m, mod)
	if err := pointadmission.Check(v); err != nil {
		return nil, errors.Join(err, mod.Close())
	}
	return v, nil
}

// loadForeign loads a module that was written for another project.
func (l *Loader) loadForeign(ctx context.Context, speaks manifest.ABI, wasm []byte, e manifest.Entry) (*point.Version, error) {
	v, err := foreign.Load(ctx, foreign.Config{Host: l.host, Functions: l.cfg.Functions, Logger: l.cfg.Logger}, speaks, wasm, e)
	if err != nil {
		return nil, err
	}
	if err := pointadmission.Check(v); err != nil {
		return nil, errors.Join(err, v.Module.Close())
	}
	return v, nil
}

// setup passes the settings to every instance, once it is known that the plugin takes any.
type setup struct {
	settings []byte
	takes    bool
}

func (s *setup) run(ctx context.Context, in *host.Instance) error {
	if !s.takes {
		return nil
	}
	settings := s.settings
	if settings == nil {
		settings = []byte("{}")
	}
	_, _, err := in.StartCall(ctx, abi.OpSettings, settings)
	var refused *host.GuestError
	if errors.As(err, &refused) {
		return fmt.Errorf("the plugin refuses its settings: %s", refused.Message)
	}
	return err
}

// describe asks the module what it is: once without and, where it takes settings,
// once with them, as the fields that it reads may depend on them.
func (l *Loader) describe(ctx context.Context, e *manifest.Entry, mod *host.Module, s *setup) (*abi.Manifest, error) {
	first, err := mod.Lease(ctx)
	if err != nil {
		return nil, err
	}
	m, err := parseManifest(ctx, first)
	if err == nil && !m.Settings && s.settings != nil && string(s.settings) != "{}" {
		err = errors.New("the entry has settings, but the plugin takes none")
	}
	mod.Return(first)
	if err != nil {
		return nil, err
	}
	if m.Settings {
		s.takes = true
	}
	err = mod.With(ctx, func(in *host.Instance) error {
		if m.Settings {
			m, err = parseManifest(ctx, in)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return m, checkManifest(e, m)
}

func parseManifest(ctx context.Context, in *host.Instance) (*abi.Manifest, error) {
	b, err := in.Describe(ctx)
	if err != nil {
		return nil, err
	}
	return abi.ParseManifest(b)
}

// checkManifest holds what a module offers and needs against its entry.
func checkManifest(e *manifest.Entry, m *abi.Manifest) error {
	var errs []error
	for _, p := range e.Points {
		if m.Hook(abi.Point(p)) == nil {
			errs = append(errs, fmt.Errorf("points: the module has no hook for %s; it has %v", p, m.Points()))
		}
	}
	granted := hostfn.Set(e, slog.New(slog.DiscardHandler))
	for _, need := range m.Needs {
		if granted[need] != nil {
			continue
		}
		if grant := hostfn.Grant(need); grant != "" {
			errs = append(errs, fmt.Errorf("the plugin needs the host function %q: grant it with grants.%s", need, grant))
		} else {
			errs = append(errs, fmt.Errorf("the plugin needs the host function %q, which this host does not have", need))
		}
	}
	return errors.Join(errs...)
}

// Run watches the modules' files and loads what changes, until ctx ends.
func (l *Loader) Run(ctx context.Context) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch the plugins' files: %w", err)
	}
	defer func() { _ = w.Close() }()
	settle := time.NewTimer(time.Hour)
	settle.Stop()
	l.watchDirs(w)
	l.reloadChanged(ctx) // what happened between the load and the watch
	for {
		l.watchDirs(w)
		select {
		case <-ctx.Done():
			return nil
		case err := <-w.Errors:
			l.cfg.Logger.Warn("watching the plugins' files", "error", err)
		case event := <-w.Events:
			if l.isSource(event.Name) {
				settle.Reset(settleTime)
			}
		case <-settle.C:
			l.reloadChanged(ctx)
		case <-l.sources:
		}
	}
}

// settleTime is how long a file has to lie still: a compiler writes in pieces.
const settleTime = 100 * time.Millisecond

// watchDirs watches the directories, as files are replaced by rename.
func (l *Loader) watchDirs(w *fsnotify.Watcher) {
	watched := w.WatchList()
	for _, s := range l.list() {
		dir := filepath.Dir(l.path(s.entry))
		if !slices.Contains(watched, dir) && w.Add(dir) == nil {
			watched = append(watched, dir)
		}
	}
}

func (l *Loader) isSource(name string) bool {
	return slices.ContainsFunc(l.list(), func(s *slot) bool { return filepath.Clean(l.path(s.entry)) == filepath.Clean(name) })
}

// reloadChanged loads the entries whose files have changed. What cannot be loaded
// has been logged, and stands in the status.
func (l *Loader) reloadChanged(ctx context.Context) {
	if !slices.ContainsFunc(l.list(), l.modified) {
		return
	}
	var entries []manifest.Entry
	for _, s := range l.list() {
		entries = append(entries, s.entry)
	}
	_ = l.Apply(ctx, entries)
}

// Close unloads everything, when the last calls have ended.
func (l *Loader) Close(ctx context.Context) error {
	err := l.Apply(ctx, nil)
	l.retiring.Wait()
	return errors.Join(err, l.host.Close())
}
