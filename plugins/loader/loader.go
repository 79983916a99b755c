// SPDX-License-Identifier: Apache-2.0

// Package loader turns plugin entries into running plugins: it fetches and pins modules, has
// them compiled in the background, checks their settings, and swaps a new version in between
// two calls. If a step fails, the previous version stays in force, and the status has the
// reason.
//
// Entries come from two origins, the configuration file and the API; one origin's
// never touch the other's. Load brings up the file's before the first request; Apply takes another set
// of one origin; Run watches the modules' files, tries again what could not be fetched, and
// looks whether tags have moved. Each of them leaves the lists that
// AdmissionPlugins and its siblings return up to date; Changes says when to ask again.
// The adapters in these lists stay valid across reloads.
//
// Each module is fetched, compiled and started on its own, by a goroutine of its own (load),
// which ends when its entry is gone or another. What is in force is changed under one
// lock (commit), which nobody holds while he waits for a network, a compiler or a guest.
// Operators' modules have turns of their own: they never wait for a tenant's.
package loader

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wasmplane/wasmplane/core/attempts"
	"github.com/wasmplane/wasmplane/core/dial"
	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/host"
	"github.com/wasmplane/wasmplane/plugins/host/fairqueue"
	"github.com/wasmplane/wasmplane/plugins/hostfn"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/point"
	pointadmission "github.com/wasmplane/wasmplane/plugins/point/admission"
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
	// Operators and Tenants say where modules are fetched from; see source.Config.
	Operators, Tenants *dial.Policy
	// Functions are what can be granted to plugins; nil = those that need nothing but this process.
	Functions *hostfn.Functions
	// Points are those at which this process asks plugins; nil = all, empty = none.
	// Plugins without a hook at any of them are not kept.
	Points []abi.Point
	// Attempts that were refused are written down here; nil = they are not.
	Attempts *attempts.Ledger
	Logger   *slog.Logger
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
	cfg      Config
	host     *host.Host
	fetch    *source.Fetcher
	metrics  *point.Metrics
	changes  chan struct{}
	sources  chan struct{}    // tells Run that there may be other files to watch
	fetching *fairqueue.Queue // turns to fetch a module from elsewhere
	starting *fairqueue.Queue // turns to start one
	schemas  schemas          // of the settings of modules that were started

	mu    sync.Mutex                  // guards what follows; held to look and to change only
	slots []*slot                     // in the order in which they are asked
	loads map[string]*load            // under way, by the plugin's name
	given map[Origin][]manifest.Entry // as they were applied last, the disabled ones too
	times map[Origin]int              // how often that was
	off   map[string]bool             // what was disabled then

	working sync.WaitGroup // loads, and old versions that are being closed
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

// New makes a loader. It loads nothing yet.
func New(ctx context.Context, cfg Config) (*Loader, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Functions == nil {
		cfg.Functions = hostfn.New(hostfn.Backend{Logger: cfg.Logger})
	}
	fetch, err := source.New(source.Config{
		Dir: cfg.Dir, CacheDir: cfg.ModuleDir, Secrets: cfg.Secrets, Operators: cfg.Operators,
		Tenants: cfg.Tenants, Logger: cfg.Logger,
	})
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
	return &Loader{
		cfg: cfg, host: h, fetch: fetch, metrics: metrics, changes: make(chan struct{}, 1), sources: make(chan struct{}, 1),
		schemas:  newSchemas(),
		fetching: fairqueue.New(fairqueue.Config{Operators: 8, Tenants: 4, PerTenant: 1, Waiting: 64, Patience: 10 * time.Minute}),
		starting: fairqueue.New(fairqueue.Config{
			Operators: runtime.GOMAXPROCS(0), Tenants: 1, PerTenant: 1, Waiting: 64,
			Patience: 10 * time.Minute,
		}),
		loads: map[string]*load{}, given: map[Origin][]manifest.Entry{}, times: map[Origin]int{},
	}, nil
}

// Load loads the configured entries. A plugin that cannot be loaded does not keep
// the others, nor the server, from coming up: its failure policy decides what
// its points do. The error says what could not be loaded.
func (l *Loader) Load(ctx context.Context) error { return l.Apply(ctx, File, l.cfg.Entries) }

// Changes receives after the lists of adapters have changed.
func (l *Loader) Changes() <-chan struct{} { return l.changes }

// Apply makes entries the ones of an origin, and waits until what is new or changed has
// been loaded, or could not be; the error says which. An entry whose name another origin uses is left out.
func (l *Loader) Apply(ctx context.Context, from Origin, entries []manifest.Entry) error {
	return l.Begin(ctx, from, entries).Wait(ctx)
}

// Begin is Apply that does not wait: what is gone is unloaded, what is new or changed
// comes into force when it has been loaded, each by itself. ctx ends the loads that Begin begins.
func (l *Loader) Begin(ctx context.Context, from Origin, entries []manifest.Entry) *Pending {
	entries = withMembers(entries)
	files, off := l.readFiles(entries), l.disabled()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.begin(ctx, from, entries, files, off)
}

// begin carries out a plan. l.mu is held.
func (l *Loader) begin(ctx context.Context, from Origin, entries []manifest.Entry, files map[string]string, off map[string]bool) *Pending {
	l.given[from], l.off = entries, off
	l.times[from]++
	p := l.plan(from, entries, files, off)
	for _, j := range p.stopped {
		delete(l.loads, j.entry.Name)
		j.cancel(errGone)
	}
	for _, s := range p.gone {
		l.unload(s)
	}
	// What was expected may be guarded by another entry now.
	expected := func(s *slot) bool {
		return s.plugin.Current().Pending() && slices.ContainsFunc(p.fresh, func(j *load) bool { return j.entry.Name == s.entry.Name })
	}
	keep := slices.DeleteFunc(p.keep, expected)
	held := l.holds(from, keep, entriesOf(p.fresh))
	l.arrange(append(keep, held...), len(p.gone)+len(held) > 0)
	for _, j := range p.fresh {
		if was := l.loads[j.entry.Name]; was != nil {
			was.cancel(errReplaced)
		}
		l.loads[j.entry.Name] = j
	}
	for _, j := range p.fresh {
		l.start(ctx, j)
	}
	return &Pending{loads: p.awaited, errs: p.errs}
}

// Expect has requests wait for what entries guard (manifest.Entry.Guards), until Begin is
// given them and they have been loaded, or could not be. A server does so before its first
// request, when it cannot load them yet.
func (l *Loader) Expect(from Origin, entries []manifest.Entry) {
	entries = withMembers(entries)
	off := l.disabled()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.given[from], l.off = entries, off
	l.times[from]++
	wanted := slices.DeleteFunc(slices.Clone(entries), func(e manifest.Entry) bool { return e.Disabled || off[e.Name] || off[e.MemberOf] })
	l.arrange(append(slices.Clone(l.slots), l.holds(from, l.slots, wanted)...), true)
}

// holds are the slots of entries that guard something and have none yet. l.mu is held.
func (l *Loader) holds(from Origin, slots []*slot, entries []manifest.Entry) []*slot {
	var out []*slot
	for i, e := range entries {
		if len(e.Guards) == 0 || l.elsewhere(e.Guards) || slices.ContainsFunc(slots, func(s *slot) bool { return s.entry.Name == e.Name }) {
			continue
		}
		s := &slot{plugin: point.NewPlugin(e.Name, l.metrics), origin: from, entry: e, place: i}
		s.plugin.Swap(point.NewPending(e))
		s.adapters = l.adapt(s.plugin, adapters{})
		out = append(out, s)
	}
	return out
}

func entriesOf(loads []*load) []manifest.Entry {
	var out []manifest.Entry
	for _, j := range loads {
		out = append(out, j.entry)
	}
	return out
}

// Pending is what Begin has begun.
type Pending struct {
	loads []*load
	errs  []error
}

// Wait waits for it, and says what could not be loaded.
func (p *Pending) Wait(ctx context.Context) error {
	errs := p.errs
	for _, j := range p.loads {
		select {
		case <-j.done:
			errs = append(errs, j.err)
		case <-ctx.Done():
			return errors.Join(append(errs, context.Cause(ctx))...)
		}
	}
	return errors.Join(errs...)
}

// Close unloads everything, when the last calls have ended.
func (l *Loader) Close(ctx context.Context) error {
	err := errors.Join(l.Apply(ctx, Tenant, nil), l.Apply(ctx, API, nil), l.Apply(ctx, File, nil))
	l.working.Wait()
	return errors.Join(err, l.host.Close())
}
