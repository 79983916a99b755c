// SPDX-License-Identifier: Apache-2.0

// Package proxy makes Services reachable: it writes, into a table of nftables of
// its own, which address leads to which endpoints, and keeps it so.
//
// Planning is pure: one Service and its EndpointSlices become a plan; plans are
// merged into a state, and the difference to the state before is one transaction
// of nftables. A change of one Service therefore costs the same in a cluster of
// five and of five thousand. When the table is not what it was left as (somebody
// flushed the ruleset), it is written anew.
//
// It owns nothing but that table: no chain, no rule, no sysctl of anyone else is
// touched, and with the process gone the table goes on doing its work.
package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/wasmplane/wasmplane/core/proxy/healthports"
	"github.com/wasmplane/wasmplane/core/run"
)

// Config says whose Services are made reachable, and how.
type Config struct {
	// Table is the name of the table in nftables; it derives from the cluster's
	// name, so that several clusters share a host.
	Table string
	// Node is this node's name, by which local endpoints are known.
	Node string
	// Informers gives Services and EndpointSlices; the caller starts it.
	Informers informers.SharedInformerFactory
	// OwnNode gives the Node that Node names, for its zone and its kubelet's port; the caller starts it. Nil: neither is known.
	OwnNode informers.SharedInformerFactory
	// PodCIDRs are the networks of pods. What comes from them is inside the cluster.
	PodCIDRs []netip.Prefix
	// ServiceCIDRs are the configured networks of Services, one or one of each IP family; there
	// is a table for each. What goes to an address or port there, or in a ServiceCIDR of the
	// cluster that is ready, that no Service has is refused, and does not leave the node.
	ServiceCIDRs []netip.Prefix
	// ReservedTCPPorts of the node's own addresses are no Service's, whatever it asks for:
	// the API's, the kubelet's, ssh.
	ReservedTCPPorts []int32
	// Check is how often the table is looked at for what others did to it; default 30 s.
	Check time.Duration
	// Log tells of failures; default: nothing is logged.
	Log *slog.Logger
}

func (c *Config) complete() error {
	switch {
	case c.Table == "":
		return errors.New("proxy: Table is empty: name the nftables table after the cluster")
	case c.Node == "":
		return errors.New("proxy: Node is empty: name the node that the proxy runs on")
	case c.Informers == nil:
		return errors.New("proxy: Informers is nil")
	}
	if c.Check <= 0 {
		c.Check = 30 * time.Second
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return nil
}

// Proxy is the service proxy of one node.
type Proxy struct {
	cfg    Config
	ready  chan struct{}
	wake   chan struct{}
	synced []cache.InformerSynced
	sides  []*side
	health *healthports.Ports
	pulse  *healthports.Pulse

	mu       sync.Mutex // guards what event handlers write
	services map[types.NamespacedName]*corev1.Service
	slices   map[types.NamespacedName]map[string]*discoveryv1.EndpointSlice // by Service, by name
	dirty    map[types.NamespacedName]bool
	ranges   map[string][]netip.Prefix // of ServiceCIDRs that are ready, by name
	zone     string                    // of this node
	kubelet  int32                     // its port, as this node says; 0: not known
	outage   outage
	triggers []trigger // of the endpoints in dirty

	measured *measures
}

// side is one IP family.
type side struct {
	table   *table
	planner planner
	state   *state
	broken  bool // the table is not what state says
}

// New checks the configuration and that nftables can be used here.
func New(cfg Config) (*Proxy, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	beat := &healthports.Pulse{Now: time.Now, Updated: time.Now()}
	p := &Proxy{
		cfg: cfg, ready: make(chan struct{}), wake: make(chan struct{}, 1), health: healthports.New(cfg.Log, beat), pulse: beat,
		measured: newMeasures(),
		services: map[types.NamespacedName]*corev1.Service{},
		slices:   map[types.NamespacedName]map[string]*discoveryv1.EndpointSlice{},
		dirty:    map[types.NamespacedName]bool{},
		ranges:   map[string][]netip.Prefix{},
	}
	for _, f := range families(cfg) {
		t, err := openTable(f, cfg.Table, cfg.ServiceCIDRs, cfg.ReservedTCPPorts)
		if err != nil {
			return nil, err
		}
		p.sides = append(p.sides, &side{
			table: t, planner: planner{family: f, node: cfg.Node, pods: cfg.PodCIDRs}, state: newState(),
			broken: true,
		})
	}
	return p, p.follow()
}

// families are those that Services have. Addresses of others lead nowhere.
func families(cfg Config) []family {
	var list []family
	for _, f := range []family{{word: "ip"}, {ip6: true, word: "ip6"}} {
		if slices.ContainsFunc(cfg.ServiceCIDRs, func(p netip.Prefix) bool { return f.fits(p.Addr()) }) {
			list = append(list, f)
		}
	}
	return list
}

// follow registers with the informers.
func (p *Proxy) follow() error {
	services, err := p.cfg.Informers.Core().V1().Services().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { p.service(o, false) },
		UpdateFunc: func(_, o any) { p.service(o, false) },
		DeleteFunc: func(o any) { p.service(o, true) },
	})
	if err != nil {
		return fmt.Errorf("follow services: %w", err)
	}
	informer := p.cfg.Informers.Discovery().V1().EndpointSlices().Informer()
	if err := informer.SetWatchErrorHandlerWithContext(p.failed); err != nil {
		return fmt.Errorf("hear of failures to follow endpoint slices: %w", err)
	}
	endpoints, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { p.slice(o, false) },
		UpdateFunc: func(_, o any) { p.slice(o, false) },
		DeleteFunc: func(o any) { p.slice(o, true) },
	})
	if err != nil {
		return fmt.Errorf("follow endpoint slices: %w", err)
	}
	p.synced = []cache.InformerSynced{services.HasSynced, endpoints.HasSynced}
	if err := p.followZone(p.cfg.OwnNode); err != nil {
		return fmt.Errorf("follow node %s: %w", p.cfg.Node, err)
	}
	return p.followRanges()
}

func (p *Proxy) service(o any, deleted bool) {
	if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = gone.Obj
	}
	s, ok := o.(*corev1.Service)
	if !ok {
		return
	}
	key := types.NamespacedName{Namespace: s.Namespace, Name: s.Name}
	p.measured.services.Inc()
	p.mu.Lock()
	if deleted {
		delete(p.services, key)
	} else {
		p.services[key] = s
	}
	p.change(key)
	p.mu.Unlock()
	p.nudge()
}

func (p *Proxy) slice(o any, deleted bool) {
	if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = gone.Obj
	}
	s, ok := o.(*discoveryv1.EndpointSlice)
	if !ok {
		return
	}
	key := types.NamespacedName{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}
	if key.Name == "" {
		return
	}
	p.measured.endpoints.Inc()
	p.mu.Lock()
	p.heard()
	if trigger, ok := p.measured.triggerOf(p.slices[key][s.Name], s); ok && !deleted && len(p.triggers) < mostTriggers {
		p.triggers = append(p.triggers, trigger)
	}
	switch {
	case !deleted && p.slices[key] == nil:
		p.slices[key] = map[string]*discoveryv1.EndpointSlice{s.Name: s}
	case !deleted:
		p.slices[key][s.Name] = s
	default:
		if delete(p.slices[key], s.Name); len(p.slices[key]) == 0 {
			delete(p.slices, key)
		}
	}
	p.change(key)
	p.mu.Unlock()
	p.nudge()
}

// change is to be written. Lock held.
func (p *Proxy) change(key types.NamespacedName) {
	p.dirty[key] = true
	p.pulse.Queued()
	for _, s := range p.sides {
		p.measured.queued.WithLabelValues(s.planner.family.name()).SetToCurrentTime()
	}
}

func (p *Proxy) nudge() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Ready is closed once the table holds all Services that were there at the start.
func (p *Proxy) Ready() <-chan struct{} { return p.ready }

// Run keeps the table up to date until ctx ends, and leaves it as it is: Services
// stay reachable. Cleanup removes it.
func (p *Proxy) Run(ctx context.Context) error {
	defer p.health.CloseAll(ctx)
	defer p.stopForgetting()
	if !cache.WaitForCacheSync(ctx.Done(), p.synced...) {
		return nil
	}
	check := time.NewTicker(p.cfg.Check)
	defer check.Stop()
	again := time.NewTimer(0)
	defer again.Stop()
	started, retry := false, run.Backoff{First: 100 * time.Millisecond, Longest: 30 * time.Second}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.wake:
		case <-again.C:
		case <-check.C:
			p.inspect(ctx)
		}
		if err := p.sync(ctx); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			wait := retry.Next()
			again.Reset(wait)
			p.cfg.Log.ErrorContext(ctx, "could not bring Services into nftables; trying again", "error", err, "retryIn", wait)
			continue
		}
		retry.Reset()
		if !started {
			started = true
			close(p.ready)
		}
	}
}

// inspect finds tables that somebody else removed or emptied.
func (p *Proxy) inspect(ctx context.Context) {
	for _, s := range p.sides {
		ok, err := s.table.intact(ctx)
		if err != nil {
			p.cfg.Log.WarnContext(ctx, "could not look at the nftables table", "error", err)
		} else if !ok && !s.broken {
			p.cfg.Log.WarnContext(ctx, "the nftables table was changed by somebody else; writing it anew", "table", s.table.name)
			s.broken = true
		}
	}
}

// input is what a Service looks like now.
type input struct {
	service *corev1.Service
	// slices are those of now, before those of before an outage, none if there was none.
	slices, before []*discoveryv1.EndpointSlice
}

// take hands over what changed since it was last asked, and the zone that the node is in.
func (p *Proxy) take() (map[types.NamespacedName]input, string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	changed := make(map[types.NamespacedName]input, len(p.dirty))
	for key := range p.dirty {
		changed[key] = input{p.services[key], slices.Collect(maps.Values(p.slices[key])), slices.Collect(maps.Values(p.kept(key)))}
	}
	p.dirty = map[types.NamespacedName]bool{}
	p.pulse.Begun()
	return changed, p.zone
}

// sync plans what changed and writes the difference. After a failure the whole
// table is written, because nobody knows what is in it.
func (p *Proxy) sync(ctx context.Context) error {
	triggers := p.takeTriggers() // first: what comes in between is of the next time
	changed, zone := p.take()
	networks, reserved := p.networks(), p.reserved()
	var errs []error
	health := map[int32]*healthports.Want{}
	for _, s := range p.sides {
		s.planner.zone = zone
		s.reserve(reserved)
		began, whole := time.Now(), s.broken
		before, plans := map[types.NamespacedName]*plan{}, map[types.NamespacedName]*plan{}
		for key, in := range changed {
			before[key] = s.state.plans[key]
			plans[key] = s.planner.after(in.before).plan(in.service, in.slices)
		}
		difference := s.state.apply(plans)
		err := errors.Join(s.use(ctx, s.planner.family.widest(networks)), s.write(ctx, difference))
		p.measured.synced(s.planner.family, whole, began, err)
		if err != nil {
			errs = append(errs, err)
			p.again(s.planner.family, triggers)
			continue
		}
		p.measured.inForce(s.planner.family, triggers)
		if err := findStale(before, plans).forget(s.planner.family); err != nil {
			p.cfg.Log.WarnContext(ctx, "stale UDP flows remain until they time out", "error", err)
		}
		for _, plan := range s.state.plans {
			if w := plan.health; w != nil && (health[w.Port] == nil || health[w.Port].Local < w.Local) {
				health[w.Port] = w
			}
		}
	}
	p.health.Sync(ctx, health)
	p.pulse.Ended(len(errs) == 0)
	return errors.Join(errs...)
}

func (s *side) write(ctx context.Context, difference *change) error {
	if s.broken {
		if err := s.table.rewrite(ctx, s.state.whole()); err != nil {
			return err
		}
		s.broken = false
		return nil
	}
	if difference.empty() {
		return nil
	}
	if err := s.table.update(ctx, difference); err != nil {
		s.broken = true
		return err
	}
	return nil
}

// Cleanup removes the tables of that name. It needs no cluster, and is fine with
// tables that are not there.
func Cleanup(ctx context.Context, tableName string) error {
	var errs []error
	for _, f := range []family{{word: "ip"}, {ip6: true, word: "ip6"}} {
		t, err := openTable(f, tableName, nil, nil)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, t.remove(ctx))
	}
	return errors.Join(errs...)
}
