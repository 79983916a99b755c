// SPDX-License-Identifier: Apache-2.0

// Package neighbor answers on a node's links for load balancer addresses that this node
// announces: ARP requests for IPv4, neighbor solicitations for IPv6. Whoever is on the link
// then sends packets for the address here, where the service proxy forwards them.
//
// The addresses are on no interface, and nothing is left on the machine: they are answered for
// as long as this process runs. Which addresses are the node's the controller says in an
// annotation of the Service; an address is answered for on the link in whose network it is.
// A node that begins to answer tells the link (gratuitous ARP, unsolicited advertisement), so
// that nobody waits for an entry of the former node to become stale.
//
// An address that is to be an interface's own, such as the one by which servers are reached, is
// kept by Keep, on one machine at a time. Which machine that is, the caller decides.
package neighbor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/wasmplane/wasmplane/core/loadbalancer"
	"github.com/wasmplane/wasmplane/core/run"
)

// Config of an Announcer.
type Config struct {
	// Node is this node's name.
	Node string
	// Informers gives Services; the caller starts it.
	Informers informers.SharedInformerFactory
	// Check is how often the machine's links are looked at; default 10 s.
	Check time.Duration
	Log   *slog.Logger
}

// Announcer answers for a node's addresses.
type Announcer struct {
	cfg      Config
	services corelisters.ServiceLister
	synced   cache.InformerSynced
	wake     chan struct{}
	links    map[string]*link // by name of the interface and IP family
}

// An address that is new here is announced on its link several times: a packet may be lost, and
// some switches learn late.
const (
	announcements = 3
	announceEvery = time.Second
)

// New makes an Announcer; Run runs it.
func New(cfg Config) (*Announcer, error) {
	if cfg.Node == "" || cfg.Informers == nil {
		return nil, errors.New("neighbor: Node or Informers is missing")
	}
	if cfg.Check <= 0 {
		cfg.Check = 10 * time.Second
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	a := &Announcer{cfg: cfg, services: cfg.Informers.Core().V1().Services().Lister(), wake: make(chan struct{}, 1), links: map[string]*link{}}
	changed := func() {
		select {
		case a.wake <- struct{}{}:
		default:
		}
	}
	registration, err := cfg.Informers.Core().V1().Services().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { changed() }, UpdateFunc: func(any, any) { changed() }, DeleteFunc: func(any) { changed() },
	})
	if err != nil {
		return nil, fmt.Errorf("follow services: %w", err)
	}
	a.synced = registration.HasSynced
	return a, nil
}

// Run answers until ctx ends.
func (a *Announcer) Run(ctx context.Context) error {
	defer a.closeAll()
	if !cache.WaitForCacheSync(ctx.Done(), a.synced) {
		return nil
	}
	check := time.NewTicker(a.cfg.Check)
	defer check.Stop()
	for {
		var again <-chan time.Time // nil where nothing is left to be announced
		if a.sync(ctx) {
			again = time.After(announceEvery)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-a.wake:
		case <-check.C:
		case <-again:
		}
	}
}

// ours are the addresses that this node answers for.
func (a *Announcer) ours() ([]netip.Addr, error) {
	all, err := a.services.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	var out []netip.Addr
	for _, s := range all {
		if !loadbalancer.Ours(s) || s.Annotations[loadbalancer.NodeAnnotation] != a.cfg.Node {
			continue
		}
		for _, in := range s.Status.LoadBalancer.Ingress {
			if ip, err := netip.ParseAddr(in.IP); err == nil && (in.IPMode == nil || *in.IPMode == corev1.LoadBalancerIPModeVIP) {
				out = append(out, ip.Unmap())
			}
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out), nil
}

// sync opens and closes links, and announces addresses that are new here. It says whether some
// are to be announced once more.
func (a *Announcer) sync(ctx context.Context) (again bool) {
	addresses, err := a.ours()
	if err != nil {
		return false // a lister of a cache has no errors
	}
	var wanted map[string]want
	if len(addresses) > 0 {
		if wanted, err = place(addresses); err != nil {
			a.cfg.Log.WarnContext(ctx, "the machine's links cannot be looked at; load balancer addresses stay where they are", "error", err)
			return false
		}
	}
	for name, l := range a.links {
		if w, ok := wanted[name]; !ok || !l.same(w.on) || l.ended() {
			l.close()
			delete(a.links, name)
		}
	}
	for name, w := range wanted {
		l := a.links[name]
		if l == nil {
			if l, err = open(w.on, w.v6); err != nil {
				a.cfg.Log.WarnContext(ctx, "load balancer addresses cannot be answered for on a link", "interface", w.on.Name,
					"addresses", w.addresses, "error", err)
				again = true // it may just be coming up
				continue
			}
			a.links[name] = l
		}
		more, err := l.set(w.addresses)
		if again = again || more; err != nil {
			a.cfg.Log.WarnContext(ctx, "a load balancer address could not be announced on a link", "interface", w.on.Name, "error", err)
		}
	}
	return again
}

func (a *Announcer) closeAll() {
	for name, l := range a.links {
		l.close()
		delete(a.links, name)
	}
}

// want is what one link is to answer for.
type want struct {
	on        net.Interface
	v6        bool
	addresses []netip.Addr
}

// place finds the link in whose network each address is. Others are routed here, or not.
func place(addresses []netip.Addr) (map[string]want, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	out := map[string]want{}
	for _, on := range all {
		if on.Flags&net.FlagUp == 0 || on.Flags&net.FlagLoopback != 0 || len(on.HardwareAddr) != 6 {
			continue
		}
		own, err := on.Addrs()
		if err != nil {
			return nil, fmt.Errorf("addresses of %s: %w", on.Name, err)
		}
		var networks []netip.Prefix
		for _, n := range own {
			if p, err := netip.ParsePrefix(n.String()); err == nil && !p.Addr().IsLinkLocalUnicast() {
				networks = append(networks, p)
			}
		}
		for _, ip := range addresses {
			contains := func(p netip.Prefix) bool { return p.Contains(ip) && p.Addr() != ip }
			if slices.ContainsFunc(networks, func(p netip.Prefix) bool { return p.Addr() == ip }) || !slices.ContainsFunc(networks, contains) {
				continue
			}
			name := on.Name + "/4"
			if ip.Is6() {
				name = on.Name + "/6"
			}
			out[name] = want{on, ip.Is6(), append(out[name].addresses, ip)}
		}
	}
	return out, nil
}

// wire is a link's protocol: how questions are read, answered, and not waited for.
type wire interface {
	// next is the address that the next question on the link is about, and who asks; it
	// waits for one. Whatever else arrives is passed over. It fails once the wire is closed.
	next() (question, error)
	answer(question) error
	// announce says to everybody on the link that an address is here.
	announce(netip.Addr) error
	// hear says for which addresses questions are to arrive.
	hear([]netip.Addr) error
	Close() error
}

// question is who on the link asks for an address.
type question struct {
	about    netip.Addr
	from     netip.Addr
	hardware net.HardwareAddr
}

// link answers for addresses on one interface.
type link struct {
	on   net.Interface
	wire wire
	done <-chan error

	mu        sync.Mutex
	addresses map[netip.Addr]int // how often each is still to be announced
}

func open(on net.Interface, v6 bool) (*link, error) {
	l := &link{on: on, addresses: map[netip.Addr]int{}}
	var err error
	if v6 {
		l.wire, err = openNDP(&l.on)
	} else {
		l.wire, err = openARP(&l.on)
	}
	if err != nil {
		return nil, err
	}
	l.done = run.Go("neighbor: answers on "+on.Name, l.serve) // ends when the wire is closed
	return l, nil
}

func (l *link) serve() error {
	for {
		q, err := l.wire.next()
		if err != nil {
			return err
		}
		l.mu.Lock()
		_, here := l.addresses[q.about]
		l.mu.Unlock()
		if here {
			// An answer that is lost is asked for again.
			_ = l.wire.answer(q)
		}
	}
}

func (l *link) same(on net.Interface) bool {
	return l.on.Index == on.Index && slices.Equal(l.on.HardwareAddr, on.HardwareAddr)
}

func (l *link) ended() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

// set answers for these addresses and no others, and announces the new ones, once with each call
// and a few times in all. more says that some are to be announced again.
func (l *link) set(addresses []netip.Addr) (more bool, err error) {
	l.mu.Lock()
	for a := range l.addresses {
		if !slices.Contains(addresses, a) {
			delete(l.addresses, a)
		}
	}
	var announced []netip.Addr
	for _, a := range addresses {
		left, had := l.addresses[a]
		if !had {
			left = announcements
		}
		if left > 0 {
			announced = append(announced, a)
			left--
		}
		more = more || left > 0
		l.addresses[a] = left
	}
	l.mu.Unlock()
	errs := []error{l.wire.hear(addresses)}
	for _, a := range announced {
		errs = append(errs, l.wire.announce(a))
	}
	return more, errors.Join(errs...)
}

func (l *link) close() {
	_ = l.wire.Close()
	<-l.done
}
