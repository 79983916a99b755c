// SPDX-License-Identifier: Apache-2.0

package apiobject

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/core/run/presence"
	"github.com/wasmplane/wasmplane/plugins/apiobject/plugindefinition"
	"github.com/wasmplane/wasmplane/plugins/loader"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/rights"
)

// Loader is what a Controller gives entries to.
type Loader interface {
	Begin(ctx context.Context, from loader.Origin, entries []manifest.Entry) *loader.Pending
	Expect(from loader.Origin, entries []manifest.Entry)
	Status() []loader.Status
	// Entry is the one that was given last.
	Entry(name string) (manifest.Entry, bool)
}

// Config configures a Controller.
type Config struct {
	// Client reads Plugins and writes their status, under the process's own identity.
	Client dynamic.Interface
	Loader Loader
	Rules  Rules
	// Tenants: the controller follows the plugins of namespaces instead of the cluster's.
	Tenants bool
	// Identity names the process in the status.
	Identity string
	// Reports: the process may write the status. Kubelets may not.
	Reports bool
	// Mirror: the process makes objects that show the entries of its configuration file.
	Mirror bool
	// Rights says what plugins may do on behalf of their writers, for the status; nil = others do.
	Rights *rights.Checker
	// Presence says which of the processes that report live; nil = each of them, this one too, writes
	// every status once a minute to show that.
	Presence Presence
	// Answers: the process reports also where no other does, that nobody asks the plugin.
	Answers bool
	// Event records an event about a Plugin; nil = none are.
	Event  func(about corev1.ObjectReference, kind, reason, message string)
	Logger *slog.Logger
}

// Presence says which processes live, by a lease of each (presence.Keeper).
type Presence interface {
	// Held: the others know by its lease that this process lives.
	Held() bool
	State(identity string) presence.State
}

func (c *Config) resource() schema.GroupVersionResource {
	if c.Tenants {
		return plugindefinition.TenantResource()
	}
	return plugindefinition.Resource()
}

func (c *Config) origin() loader.Origin {
	if c.Tenants {
		return loader.Tenant
	}
	return loader.API
}

// nameOf is what the loader calls an object's plugin.
func nameOf(o metav1.Object) string {
	if o.GetNamespace() != "" {
		return TenantName(o.GetNamespace(), o.GetName())
	}
	return o.GetName()
}

// How often counters are written, and it is looked for other news.
const (
	countEvery = 10 * time.Second
	lookEvery  = time.Second
)

// Controller follows the Plugins of the API.
type Controller struct {
	cfg      Config
	informer cache.SharedIndexInformer
	changed  chan struct{}
	ready    chan struct{}

	refused map[string]error // objects that are no entries, by name
	stood   map[string]stood // what plugins were found to be granted
	told    map[string]Instance
	written map[string]time.Time
	beats   beats
	quiet   map[string]quiet
}

// New makes a controller.
func New(cfg Config) (*Controller, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	c := &Controller{
		cfg: cfg, changed: make(chan struct{}, 1), ready: make(chan struct{}), stood: map[string]stood{}, told: map[string]Instance{},
		written: map[string]time.Time{}, quiet: map[string]quiet{}, beats: beats{presence: cfg.Presence, seen: map[string]types.UID{}},
		informer: dynamicinformer.NewFilteredDynamicInformer(cfg.Client, cfg.resource(), metav1.NamespaceAll, 0, cache.Indexers{},
			nil).Informer(),
	}
	if err := c.informer.SetTransform(toRest); err != nil {
		return nil, fmt.Errorf("follow the plugins of the API: %w", err)
	}
	_, err := c.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { c.notify() },
		UpdateFunc: func(old, now any) {
			if o, n := restingOf(old), restingOf(now); o == nil || n == nil || o.GetGeneration() != n.GetGeneration() || o.GetUID() != n.GetUID() ||
				o.GetAnnotations()[WriterAnnotation] != n.GetAnnotations()[WriterAnnotation] {
				c.notify() // a status is no reason to load anything
			}
		},
		DeleteFunc: func(any) { c.notify() },
	})
	if err != nil {
		return nil, fmt.Errorf("follow the plugins of the API: %w", err)
	}
	return c, nil
}

// Ready is closed when the Plugins that were there have been loaded, or could not be.
func (c *Controller) Ready() <-chan struct{} { return c.ready }

func (c *Controller) notify() {
	select {
	case c.changed <- struct{}{}:
	default: // told already
	}
}

// Run follows and reports until ctx ends. What it loaded stays loaded.
func (c *Controller) Run(ctx context.Context) error {
	stopped := run.Go("plugin objects: informer", func() error {
		c.informer.RunWithContext(ctx)
		return nil
	})
	defer func() { <-stopped }()
	if !cache.WaitForCacheSync(ctx.Done(), c.informer.HasSynced) {
		return nil
	}
	look, count := time.NewTicker(lookEvery), time.NewTicker(countEvery)
	defer look.Stop()
	defer count.Stop()
	first := c.apply(ctx)
	loaded := run.Go("plugin objects: first load", func() error {
		_ = first.Wait(ctx) // what could not be loaded stands in the status
		close(c.ready)
		return nil
	})
	defer func() { <-loaded }()
	c.report(ctx, true)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.changed:
			c.apply(ctx)
			c.report(ctx, false)
		case <-look.C:
			c.report(ctx, false)
		case <-count.C:
			c.report(ctx, true)
		}
	}
}

// apply gives what can be loaded to the loader, and does not wait for it: another change
// may end what one waits for.
func (c *Controller) apply(ctx context.Context) *loader.Pending {
	objects, err := c.awake()
	if err != nil { // it was written by this very process
		c.cfg.Logger.ErrorContext(ctx, "the plugins of the API cannot be read; those in force stay", "error", err)
		return &loader.Pending{}
	}
	entries := c.entries(objects)
	// What cannot be loaded is logged by the loader, and stands in the status.
	return c.cfg.Loader.Begin(ctx, c.cfg.origin(), entries)
}

// report writes the status of every object for which there is something new.
func (c *Controller) report(ctx context.Context, counters bool) {
	byName := map[string]loader.Status{}
	all := c.cfg.Loader.Status()
	files := ofFile(all)
	if c.cfg.Mirror {
		c.mirror(ctx, files)
	}
	for _, s := range all {
		if s.Origin == c.cfg.origin() {
			byName[s.Name] = s
		}
	}
	now := time.Now()
	seen := map[string]bool{}
	for _, o := range c.objects() {
		seen[nameOf(o)] = true
		of := byName
		if mirrored(o) {
			of = files
		}
		if err := c.reportOne(ctx, o, of, counters, now); err != nil && ctx.Err() == nil && !apierrors.IsConflict(err) &&
			!apierrors.IsNotFound(err) {
			c.cfg.Logger.WarnContext(ctx, "could not write the status of a plugin", "plugin", nameOf(o), "error", err)
		}
	}
	for name := range c.told {
		if !seen[name] {
			delete(c.told, name)
			delete(c.stood, name)
			delete(c.written, name)
			delete(c.beats.seen, name)
			delete(c.quiet, name)
		}
	}
}

func (c *Controller) reportOne(ctx context.Context, r *resting, byName map[string]loader.Status, counters bool,
	now time.Time,
) error {
	name := nameOf(r)
	s, loaded := byName[name]
	if c.quiet[name].still(r, s, loaded, counters, now) {
		return nil
	}
	o, err := r.wake()
	if err != nil {
		return err
	}
	delete(c.quiet, name)
	before := readStatus(o)
	var after Status
	if why := c.refused[name]; why != nil {
		delete(c.beats.seen, name)
		after = refused(before, o.GetGeneration(), why)
	} else {
		var own *Instance
		if loaded && !s.Unused {
			i := instance(c.cfg.Identity, o.GetGeneration(), s, now)
			own = &i
			c.events(o, i)
		}
		c.beats.look(o, before, c.cfg.Identity, own != nil, now)
		after = merge(c.beats.current(before, now), c.cfg.Identity, own, o.GetGeneration())
		after.Origin = originOf(o)
		if granted := c.grants(ctx, o, after.Points, now); granted != nil {
			after.Grants = granted
		}
		if after.Source == "" && loaded {
			after.Source = s.Source
		}
		if c.cfg.Mirror && mirrored(o) && !loaded && len(after.Instances) == 0 {
			return c.unmirror(ctx, o)
		}
		if own == nil && len(after.Instances) == len(before.Instances) && !(c.cfg.Answers && len(after.Instances) == 0) {
			c.quiet[name] = quiet{o.GetResourceVersion(), loaded, s, counters, now}
			return nil // others report
		}
	}
	if news := before.state() != after.state(); !c.cfg.Reports || !c.due(name, news, before, after, counters, now) {
		if c.refused[name] == nil && !(c.cfg.Reports && (news || c.beats.needed(after, c.cfg.Identity, now))) {
			c.quiet[name] = quiet{o.GetResourceVersion(), loaded, s, counters, now}
		}
		return nil
	}
	status, err := tree(after)
	if err != nil {
		return err
	}
	o.Object["status"] = status
	if _, err := c.cfg.Client.Resource(c.cfg.resource()).Namespace(o.GetNamespace()).UpdateStatus(ctx, o,
		metav1.UpdateOptions{}); err != nil {
		return err
	}
	c.written[name] = now
	return nil
}

// due: news at once, counters now and then, and a sign of life where the lease is none.
func (c *Controller) due(name string, news bool, before, after Status, counters bool, now time.Time) bool {
	last := c.written[name]
	if news {
		return now.Sub(last) >= lookEvery/2 // the informer may lag behind the last write
	}
	return counters && (before.Calls != after.Calls || before.Failures != after.Failures ||
		before.Candidate != nil && after.Candidate != nil && before.Candidate.Calls != after.Candidate.Calls) ||
		now.Sub(last) >= heartbeat && c.beats.needed(after, c.cfg.Identity, now)
}

// events tells of what has changed in this process since the last report.
func (c *Controller) events(o *unstructured.Unstructured, now Instance) {
	was, known := c.told[nameOf(o)]
	c.told[nameOf(o)] = now
	if c.cfg.Event == nil {
		return
	}
	about := corev1.ObjectReference{
		APIVersion: plugindefinition.Group + "/" + plugindefinition.Version, Kind: o.GetKind(), Namespace: o.GetNamespace(), Name: o.GetName(),
		UID: o.GetUID(),
	}
	if now.Digest != "" && (was.Digest != now.Digest || known && !was.Since.Equal(&now.Since)) {
		text := fmt.Sprintf("version %s (%s) is in force", now.Version, now.Digest)
		if now.Replaced != "" {
			text += ", in place of " + now.Replaced
		}
		c.cfg.Event(about, corev1.EventTypeNormal, "Loaded", text)
	}
	if now.Error != "" && now.Error != was.Error {
		text := now.Error
		if now.Ready {
			text += "; the version before stays in force"
		}
		c.cfg.Event(about, corev1.EventTypeWarning, "LoadFailed", text)
	}
	if now.Moved != "" && now.Moved != was.Moved {
		c.cfg.Event(about, corev1.EventTypeWarning,
			"TagMoved", "the tag of the source points at "+now.Moved+" now; what is pinned stays in force")
	}
	if e := candidateError(now); e != "" && e != candidateError(was) {
		c.cfg.Event(about, corev1.EventTypeWarning, "CandidateFailed", e)
	}
}

func candidateError(i Instance) string {
	if i.Candidate == nil {
		return ""
	}
	return i.Candidate.Error
}

func tree(s Status) (map[string]any, error) {
	b, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	out := map[string]any{}
	if err := utiljson.Unmarshal(b, &out); err != nil { // whole numbers stay whole
		return nil, err
	}
	return out, nil
}
