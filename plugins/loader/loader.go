// Package loader turns plugin entries into plugins that are asked: it fetches and
// pins modules, has them compiled aside, checks their settings, and swaps a new
// version in between two calls. Where anything fails, what was in force stays in
// force, and the status says why.
//
// Entries come from two origins, the configuration file and the API; one origin's
// never touch the other's. Load brings up the file's before the first request; Apply takes another set
// of one origin; Run watches the modules' files, tries again what could not be fetched, and
// looks whether tags have moved. Each of them leaves the lists that
// AdmissionPlugins and its siblings return up to date; Changes says when to ask again.
// The adapters in these lists stay valid across reloads.
package loader

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.yaml.in/yaml/v3"

	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/foreign"
	"github.com/wasmplane/wasmplane/plugins/host"
	"github.com/wasmplane/wasmplane/plugins/hostfn"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/point"
	pointadmission "github.com/wasmplane/wasmplane/plugins/point/admission"
	"github.com/wasmplane/wasmplane/plugins/point/customresource"
	"github.com/wasmplane/wasmplane/plugins/source"
)

// Config configures a Loader.
type Config struct {
	// Entries are the plugins, in the order in which they are asked.
	Entries []manifest.Entry
	// Dir is where relative file sources start.
	Dir string
	// CacheDir keeps compiled modules; see host.Config.
	CacheDir string
	// ModuleDir keeps fetched modules; see source.Config.
	ModuleDir string
	// Secrets answers entries that name a Secret with credentials; nil = nobody does.
	Secrets source.Secrets
	// Functions are what can be granted to plugins; nil = those that need nothing but this process.
	Functions *hostfn.Functions
	// Points are those at which this process asks plugins; nil = all, empty = none.
	// Plugins without a hook at any of them are not kept.
	Points []abi.Point
	Logger *slog.Logger
	// Registerer gets the plugins' metrics; nil = they are counted and not served.
	Registerer prometheus.Registerer
	// Namespaces answers the labels of namespaces, for namespaceSelector.
	Namespaces pointadmission.Namespaces
	// DisabledDir holds a file for each plugin that is not to be loaded, by its name;
	// it is read at each Apply and followed by Run. It works on plugins that keep the process from coming up.
	DisabledDir string
	// InProcess and Interpreter: see host.Config.
	InProcess, Interpreter bool
}

// Loader holds the plugins of one process.
type Loader struct {
	cfg     Config
	host    *host.Host
	fetch   *source.Fetcher
	metrics *point.Metrics
	changes chan struct{}
	sources chan struct{} // tells Run that there may be other files to watch

	apply sync.Mutex                  // one Apply at a time
	ahead map[string]fetchedAhead     // taken from under mu
	mu    sync.Mutex                  // guards what follows
	slots []*slot                     // in the order in which they are asked
	given map[Origin][]manifest.Entry // as they were applied last, the disabled ones too
	off   map[string]bool             // what was disabled then

	retiring sync.WaitGroup // old versions that are being closed
}

// Origin is where entries come from.
type Origin string

// The origins. A plugin of the file is never touched through the API.
const (
	File   Origin = "file"
	API    Origin = "api"
	Tenant Origin = "tenant" // of one namespace
)

// origins in the order in which their plugins are asked.
func origins() []Origin { return []Origin{File, API, Tenant} }

// slot is one entry with its plugin.
type slot struct {
	entry    manifest.Entry
	origin   Origin
	place    int // among the entries of its origin
	plugin   *point.Plugin
	content  string // digest of the local file that was loaded last, or was to be; "" = none could be read
	err      error  // of the last load
	unused   bool   // it takes no part at this process's points
	adapters adapters
	since    time.Time // of the version in force
	replaced string    // digest of the version before that

	verdicts *pointadmission.Verdicts // of a group

	candidate candidate
	moved     atomic.Pointer[string] // digest at which the tag points now, instead of what is pinned
	looked    atomic.Int64           // when that was looked for, in Unix seconds
}

// candidate is what became of an entry's candidate.
type candidate struct {
	content string
	err     error
}

// New makes a loader. It loads nothing yet.
func New(ctx context.Context, cfg Config) (*Loader, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Functions == nil {
		cfg.Functions = hostfn.New(hostfn.Backend{Logger: cfg.Logger})
	}
	fetch, err := source.New(source.Config{Dir: cfg.Dir, CacheDir: cfg.ModuleDir, Secrets: cfg.Secrets, Logger: cfg.Logger})
	if err != nil {
		return nil, err
	}
	h, err := host.New(ctx, host.Config{CacheDir: cfg.CacheDir, Logger: cfg.Logger, InProcess: cfg.InProcess, Interpreter: cfg.Interpreter})
	if err != nil {
		return nil, err
	}
	metrics, err := point.NewMetrics(cfg.Registerer)
	if err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return &Loader{cfg: cfg, host: h, fetch: fetch, metrics: metrics, changes: make(chan struct{}, 1), sources: make(chan struct{}, 1), given: map[Origin][]manifest.Entry{}}, nil
}

// Load loads the configured entries. A plugin that cannot be loaded does not keep
// the others, nor the server, from coming up: its failure policy decides what
// its points do. The error says what could not be loaded.
func (l *Loader) Load(ctx context.Context) error { return l.Apply(ctx, File, l.cfg.Entries) }

// Changes receives after the lists of adapters have changed.
func (l *Loader) Changes() <-chan struct{} { return l.changes }

// Apply makes entries the ones of an origin: it loads what is new or changed, keeps
// what is not, and unloads what is gone. An entry whose name another origin uses is left out. The
// error is what could not be loaded.
func (l *Loader) Apply(ctx context.Context, from Origin, entries []manifest.Entry) error {
	l.apply.Lock()
	defer l.apply.Unlock()
	off := l.disabled()
	l.mu.Lock()
	l.given[from], l.off = entries, off
	l.mu.Unlock()
	before := map[string]*slot{}
	var next []*slot
	taken := map[string]bool{}
	for _, s := range l.list() {
		if s.origin != from {
			next, taken[s.entry.Name] = append(next, s), true
			continue
		}
		before[s.entry.Name] = s
	}
	var errs []error
	changed := false
	entries = withMembers(entries)
	l.fetchAhead(ctx, entries, before)
	var due []replacement
	for i, e := range entries {
		if e.Disabled || off[e.Name] || off[e.MemberOf] {
			continue
		}
		if taken[e.Name] {
			errs = append(errs, fmt.Errorf("load plugin %q: %w", e.Name, ErrTaken))
			continue
		}
		s := before[e.Name]
		delete(before, e.Name)
		if s == nil {
			s = &slot{plugin: point.NewPlugin(e.Name, l.metrics), origin: from}
		} else if same(s.entry, e) && s.err == nil && s.candidate.err == nil && !l.modified(s) {
			if s.place != i { // others came or went
				moved := s.with(s.entry)
				moved.place, s = i, moved
			}
			next = append(next, s)
			continue
		}
		changed = true
		due = append(due, replacement{slot: s, entry: e, place: i})
	}
	l.replaceAll(ctx, due)
	for _, r := range due {
		next, errs = append(next, r.fresh), append(errs, r.err)
	}
	slices.SortStableFunc(next, inOrder)
	l.join(next)
	l.publish(next, changed || len(before) > 0)
	for name, gone := range before {
		old := gone.plugin.Swap(nil)
		gone.adapters.release()
		l.retire(old)
		l.retireCandidate(gone.plugin.SetCandidate(nil))
		l.metrics.Forget(name)
		l.cfg.Logger.Info("plugin unloaded", "plugin", name)
	}
	return errors.Join(errs...)
}

// replacement is an entry that is to be loaded, and what came of it.
type replacement struct {
	slot  *slot
	entry manifest.Entry
	place int

	fresh *slot
	err   error
}

// replaceAll loads entries, one on each processor: a server that comes up again has
// nothing to compile, and reads and starts its plugins side by side.
func (l *Loader) replaceAll(ctx context.Context, due []replacement) {
	var work sync.WaitGroup
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	for i := range due {
		slots <- struct{}{}
		work.Go(func() {
			defer func() { <-slots }()
			r := &due[i]
			r.fresh, r.err = l.replace(ctx, r.slot, r.entry)
			r.fresh.place = r.place
		})
	}
	work.Wait()
}

// ErrTaken is why an entry is left out whose name another origin uses.
var ErrTaken = errors.New("a plugin of this name stands in the configuration file, and is not touched through the API; choose another name")

// inOrder: by order, then the file's as they stand there, then the API's by name.
func inOrder(a, b *slot) int {
	if c := cmp.Compare(a.entry.Order, b.entry.Order); c != 0 {
		return c
	}
	if a.origin != b.origin {
		return cmp.Compare(slices.Index(origins(), a.origin), slices.Index(origins(), b.origin))
	}
	if a.origin != File {
		return cmp.Compare(a.entry.Name, b.entry.Name)
	}
	return cmp.Compare(a.place, b.place)
}

// with is the slot for another entry of the same plugin.
func (s *slot) with(e manifest.Entry) *slot {
	out := &slot{
		entry: e, origin: s.origin, place: s.place, plugin: s.plugin, content: s.content, err: s.err, unused: s.unused, adapters: s.adapters,
		since: s.since, replaced: s.replaced, candidate: s.candidate, verdicts: s.verdicts,
	}
	out.looked.Store(s.looked.Load())
	out.moved.Store(s.moved.Load())
	return out
}

// replace loads a version of e, and swaps it in where it is sound.
func (l *Loader) replace(ctx context.Context, s *slot, e manifest.Entry) (*slot, error) {
	fresh := s.with(e)
	var err error
	if content := l.content(&e); s.err != nil || s.since.IsZero() || content != s.content || !same(s.entry.WithoutCandidate(), e.WithoutCandidate()) {
		fresh.content = content
		err = l.replaceVersion(ctx, s, fresh)
	}
	if !fresh.unused && fresh.err == nil {
		err = errors.Join(err, l.replaceCandidate(ctx, s, fresh))
	}
	switch {
	case e.Group == nil && e.MemberOf == "":
		fresh.adapters = l.adapt(s.plugin, s.adapters)
	default:
		fresh.adapters = adapters{} // join makes the group's; members have none of their own
	}
	return fresh, err
}

func (l *Loader) replaceVersion(ctx context.Context, s, fresh *slot) error {
	start := time.Now()
	e := fresh.entry
	fresh.err, fresh.unused = nil, false
	fresh.moved.Store(nil)
	if l.elsewhere(e.Points) {
		fresh.unused, fresh.since = true, start
		l.putAway(s)
		return nil
	}
	if e.Group != nil {
		return l.replaceGroup(s, fresh)
	}
	v, err := l.load(ctx, e)
	if err != nil {
		return l.failed(s, fresh, err)
	}
	fresh.since = time.Now()
	if l.elsewhere(pointsOf(v)) {
		fresh.unused = true
		l.putAway(s)
		l.retire(v)
		return nil
	}
	old := s.plugin.Swap(v)
	if old != nil && old.Digest != v.Digest {
		fresh.replaced = old.Digest
	}
	s.adapters.release() // what is kept in an instance of the old version is made anew
	l.retire(old)
	l.cfg.Logger.Info("plugin loaded", "plugin", e.Name, "version", v.Manifest.Version, "digest", v.Digest,
		"points", v.Manifest.Points(), "took", time.Since(start).Round(time.Microsecond))
	return nil
}

// failed keeps what is in force, or has the failure policy decide where nothing is.
func (l *Loader) failed(s, fresh *slot, err error) error {
	e := fresh.entry
	err = fmt.Errorf("load plugin %q: %w", e.Name, err)
	fresh.err = err
	if cur := s.plugin.Current(); cur == nil || cur.Err != nil {
		s.plugin.Swap(point.NewBroken(e, err))
		l.cfg.Logger.Error("plugin could not be loaded; its failure policy decides at its points", "plugin", e.Name, "error", err)
	} else {
		l.cfg.Logger.Error("new version of a plugin could not be loaded; the one before stays in force", "plugin", e.Name, "digest", cur.Digest, "error", err)
	}
	return err
}

// putAway unloads a plugin that has no part in this process any more.
func (l *Loader) putAway(s *slot) {
	s.adapters.release()
	l.retire(s.plugin.Swap(nil))
	l.retireCandidate(s.plugin.SetCandidate(nil))
}

// elsewhere says that none of the points is asked in this process.
func (l *Loader) elsewhere(points []string) bool {
	if l.cfg.Points == nil || len(points) == 0 {
		return false
	}
	return !slices.ContainsFunc(l.cfg.Points, func(p abi.Point) bool { return slices.Contains(points, string(p)) })
}

// pointsOf are the points at which a version takes part.
func pointsOf(v *point.Version) []string {
	var out []string
	for _, p := range v.Manifest.Points() {
		if v.Hook(p) != nil {
			out = append(out, string(p))
		}
	}
	return out
}

// replaceCandidate does for the candidate what replaceVersion does for the plugin. A
// candidate that cannot be loaded leaves the one before, and everything else, as it is.
func (l *Loader) replaceCandidate(ctx context.Context, s, fresh *slot) error {
	e := fresh.entry.CandidateEntry()
	if e == nil {
		fresh.candidate = candidate{}
		l.retireCandidate(s.plugin.SetCandidate(nil))
		return nil
	}
	content := l.content(e)
	if was := s.entry.CandidateEntry(); was != nil && same(*was, *e) && s.candidate.err == nil && s.candidate.content == content && s.plugin.Candidate() != nil {
		return nil
	}
	fresh.candidate = candidate{content: content}
	v, err := l.load(ctx, *e)
	if err != nil {
		fresh.candidate.err = fmt.Errorf("load the candidate of plugin %q: %w", e.Name, err)
		l.cfg.Logger.Error("the candidate of a plugin could not be loaded", "plugin", e.Name, "error", err)
		return fresh.candidate.err
	}
	l.retireCandidate(s.plugin.SetCandidate(point.NewCandidate(v)))
	l.cfg.Logger.Info("a candidate runs beside a plugin", "plugin", e.Name, "version", v.Manifest.Version, "digest", v.Digest)
	return nil
}

func (l *Loader) retireCandidate(c *point.Candidate) {
	if c == nil {
		return
	}
	l.retiring.Go(func() {
		if err := c.Close(); err != nil {
			l.cfg.Logger.Warn("could not close a candidate of a plugin", "plugin", c.Version.Entry.Name, "error", err)
		}
	})
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
func same(a, b manifest.Entry) bool {
	a.Line, b.Line = 0, 0
	bx, err1 := yaml.Marshal(a)
	by, err2 := yaml.Marshal(b)
	return err1 == nil && err2 == nil && bytes.Equal(bx, by)
}

// load reads, checks, compiles and starts a module, without touching what is in force.
func (l *Loader) load(ctx context.Context, e manifest.Entry) (*point.Version, error) {
	fetched, err := l.module(ctx, &e)
	if err != nil {
		return nil, err
	}
	wasm, digest := fetched.Wasm, fetched.Digest
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
	if err := errors.Join(pointadmission.Check(v), customresource.Check(v)); err != nil {
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

// Close unloads everything, when the last calls have ended.
func (l *Loader) Close(ctx context.Context) error {
	err := errors.Join(l.Apply(ctx, Tenant, nil), l.Apply(ctx, API, nil), l.Apply(ctx, File, nil))
	l.retiring.Wait()
	return errors.Join(err, l.host.Close())
}
