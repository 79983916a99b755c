// SPDX-License-Identifier: Apache-2.0

// Package aggregator lets other servers serve parts of the API: an APIService
// says which group version is theirs and by which Service they are reached, and
// requests for it are passed on, with the user's identity, over a connection
// that is authenticated both ways.
//
// It owns the APIServices of what this server serves itself (they only say so),
// the Available condition of all of them, and what is known of the other
// servers' discovery and OpenAPI documents, fetched in the background, so that
// a server that does not answer holds up nobody else's discovery.
//
// It guarantees that nobody gets at another server with credentials that the
// client sent, that redirects are not followed, and that a connection whose
// upgrade was refused is closed and not used again. It refuses to decide
// whether a request is allowed: its caller has done that, and the other server
// does it once more.
package aggregator

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	extensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	extensionsinformers "k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	streamproxy "k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	registration "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	registrationclient "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"
	registrationinformers "k8s.io/kube-aggregator/pkg/client/informers/externalversions/apiregistration/v1"

	"github.com/wasmplane/wasmplane/core/controllers"
	"github.com/wasmplane/wasmplane/core/dial"
)

// refresh is how often what is known of the other servers is looked at again
// although nothing announced a change.
const refresh = time.Minute

// Config is what an aggregator is made of.
type Config struct {
	// API is how the server's own loops speak to it. They write APIServices and
	// their status, and read Services, EndpointSlices and definitions.
	API *rest.Config
	// Informers of the server; Services and EndpointSlices come from them.
	Informers informers.SharedInformerFactory
	// BuiltIn are the group versions that the server itself serves.
	BuiltIn []schema.GroupVersion
	// Certificate is presented to other servers: the front proxy's. It answers another
	// pointer when it has changed.
	Certificate func() *tls.Certificate
	// Dial connects to other servers; nil = by an operator's policy.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	Metrics prometheus.Registerer // nil = not exported
	Logger  *slog.Logger          // nil = discard
}

func (c *Config) complete() error {
	switch {
	case c.API == nil:
		return errors.New("aggregator: Config.API is missing")
	case c.Informers == nil:
		return errors.New("aggregator: Config.Informers is missing")
	case c.Certificate == nil:
		return errors.New("aggregator: Config.Certificate is missing: other servers would not believe who asks")
	}
	if c.Dial == nil {
		c.Dial = dial.Operator(nil).Context()
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}

// Aggregator knows the other servers. Make one with New.
type Aggregator struct {
	cfg     Config
	client  registrationclient.APIServiceInterface
	metrics *metrics

	apiServices cache.SharedIndexInformer
	definitions cache.SharedIndexInformer
	services    corelisters.ServiceLister
	slices      streamproxy.EndpointSliceGetter

	registering *controllers.Loop[string] // by name of an APIService
	checking    *controllers.Loop[string]
	fetching    *controllers.Loop[string]
	builtIn     map[string]bool // names of built-in APIServices that were registered at this start
	begun       [3]chan struct{}

	mu         sync.RWMutex
	remotes    map[schema.GroupVersion]*Remote
	generation uint64
}

// New makes an aggregator; it works while Run runs.
func New(cfg Config) (*Aggregator, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	set, err := registration.NewForConfig(cfg.API)
	if err != nil {
		return nil, fmt.Errorf("aggregator: client: %w", err)
	}
	extensions, err := extensionsclient.NewForConfig(cfg.API)
	if err != nil {
		return nil, fmt.Errorf("aggregator: client: %w", err)
	}
	slices := cfg.Informers.Discovery().V1().EndpointSlices()
	getter, err := streamproxy.NewEndpointSliceIndexerGetter(slices)
	if err != nil {
		return nil, fmt.Errorf("aggregator: index of EndpointSlices: %w", err)
	}
	a := &Aggregator{
		cfg: cfg, client: set.ApiregistrationV1().APIServices(), builtIn: map[string]bool{},
		apiServices: registrationinformers.NewAPIServiceInformer(set, 0, cache.Indexers{byService: indexByService}),
		definitions: extensionsinformers.NewCustomResourceDefinitionInformer(extensions, 0, cache.Indexers{byGroup: indexByGroup}),
		services:    cfg.Informers.Core().V1().Services().Lister(),
		slices:      getter,
		remotes:     map[schema.GroupVersion]*Remote{},
	}
	for i := range a.begun {
		a.begun[i] = make(chan struct{})
	}
	if a.metrics, err = newMetrics(cfg.Metrics); err != nil {
		return nil, err
	}
	a.loops()
	return a, nil
}

// loops connects what changes with what has to be done about it.
func (a *Aggregator) loops() {
	env := controllers.Env{Log: a.cfg.Logger}
	a.registering = controllers.NewLoop(env, "apiservice-registration", 2, a.register)
	a.registering.Own(a.definitions)
	a.registering.Watch(a.definitions, controllers.Changes(a.definitionChanged))
	a.registering.Watch(a.apiServices, controllers.EachObject(func(o metav1.Object) { a.registering.Add(o.GetName()) }))
	a.registering.Beside(func(context.Context) {
		for _, gv := range a.cfg.BuiltIn {
			a.registering.Add(nameOf(gv))
		}
		close(a.begun[0])
	})

	a.checking = controllers.NewLoop(env, "apiservice-availability", 2, a.check)
	a.checking.Own(a.apiServices)
	a.checking.Watch(a.apiServices, controllers.EachObject(func(o metav1.Object) { a.checking.Add(o.GetName()) }))
	a.checking.Watch(a.cfg.Informers.Core().V1().Services().Informer(), controllers.EachObject(func(o metav1.Object) {
		a.serviceChanged(o.GetNamespace(), o.GetName())
	}))
	a.checking.Watch(a.cfg.Informers.Discovery().V1().EndpointSlices().Informer(), controllers.EachObject(func(o metav1.Object) {
		a.serviceChanged(o.GetNamespace(), o.GetLabels()[discoveryv1.LabelServiceName])
	}))
	a.checking.Beside(func(ctx context.Context) {
		close(a.begun[1])
		a.again(ctx, a.checking, recheck)
	})

	a.fetching = controllers.NewLoop(env, "apiservice-discovery", 2, a.fetch)
	a.fetching.Watch(a.apiServices, controllers.Changes(a.apiServiceChanged))
	a.fetching.Beside(func(ctx context.Context) {
		close(a.begun[2])
		a.again(ctx, a.fetching, refresh)
	})
}

// Begun are closed once the parts of Run know every APIService and work: those that register
// what is built in and defined, look whether other servers answer, and fetch what they serve.
type Begun struct{ Registering, Checking, Fetching <-chan struct{} }

// Begun tells when the parts of Run have begun to work. Run runs once.
func (a *Aggregator) Begun() Begun { return Begun{a.begun[0], a.begun[1], a.begun[2]} }

// Registered fails while built-in group versions have no APIService yet, and names them.
func (a *Aggregator) Registered(context.Context) error {
	a.mu.RLock()
	defer a.mu.RUnlock()
	var missing []string
	for _, gv := range a.cfg.BuiltIn {
		if !a.builtIn[nameOf(gv)] {
			missing = append(missing, nameOf(gv))
		}
	}
	if len(missing) > 0 {
		slices.Sort(missing)
		return fmt.Errorf("not registered yet: %s", strings.Join(missing, ", "))
	}
	return nil
}

// again queues every APIService of another server from time to time: that the
// network changed is announced by nobody.
func (a *Aggregator) again(ctx context.Context, loop *controllers.Loop[string], every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			for _, name := range a.remoteNames() {
				loop.Add(name)
			}
		}
	}
}

func (a *Aggregator) remoteNames() []string {
	a.mu.RLock()
	defer a.mu.RUnlock()
	names := make([]string, 0, len(a.remotes))
	for gv := range a.remotes {
		names = append(names, nameOf(gv))
	}
	return names
}

// Run works until ctx ends.
func (a *Aggregator) Run(ctx context.Context) error {
	var running sync.WaitGroup
	errs := make([]error, 3)
	for i, loop := range []*controllers.Loop[string]{a.registering, a.checking, a.fetching} {
		running.Go(func() { errs[i] = loop.Run(ctx) })
	}
	running.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range a.remotes {
		r.close()
	}
	return errors.Join(errs...)
}

// Remote is the server of a group version that is not ours; ok is false where it is.
func (a *Aggregator) Remote(gv schema.GroupVersion) (_ *Remote, ok bool) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	r, ok := a.remotes[gv]
	return r, ok
}

// Remotes are all other servers' group versions, and a number that changes
// whenever they do, or what is known of them.
func (a *Aggregator) Remotes() ([]*Remote, uint64) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	all := make([]*Remote, 0, len(a.remotes))
	for _, r := range a.remotes {
		all = append(all, r)
	}
	sortRemotes(all)
	return all, a.generation
}

// apiServiceChanged follows an APIService: from this moment requests go where it says.
func (a *Aggregator) apiServiceChanged(old, current metav1.Object) {
	if s, ok := current.(*apiregistrationv1.APIService); ok && current != nil {
		a.set(s)
		a.fetching.Add(s.Name)
		return
	}
	if s, ok := old.(*apiregistrationv1.APIService); ok && old != nil {
		a.forget(groupVersion(s))
		a.metrics.forget(s.Name)
	}
}

func (a *Aggregator) set(s *apiregistrationv1.APIService) {
	gv := groupVersion(s)
	if s.Spec.Service == nil {
		a.forget(gv)
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	next := a.newRemote(s, a.remotes[gv])
	if next.equal(a.remotes[gv]) {
		return
	}
	a.remotes[gv] = next
	a.generation++
}

func (a *Aggregator) forget(gv schema.GroupVersion) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if r, ok := a.remotes[gv]; ok {
		r.close()
		delete(a.remotes, gv)
		a.generation++
	}
}

// learn replaces what is known of a remote, unless it changed meanwhile.
func (a *Aggregator) learn(r *Remote, what known) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if now, ok := a.remotes[r.gv]; !ok || now.transport != r.transport {
		return
	}
	next := *a.remotes[r.gv]
	next.known = what
	a.remotes[r.gv] = &next
	if !what.same(r.known) {
		a.generation++
	}
}

func (a *Aggregator) serviceChanged(namespace, name string) {
	objects, err := a.apiServices.GetIndexer().ByIndex(byService, namespace+"/"+name)
	if err != nil {
		return // the index exists, see New
	}
	for _, o := range objects {
		if s, ok := o.(*apiregistrationv1.APIService); ok {
			a.checking.Add(s.Name)
		}
	}
}

const (
	byService = "service"
	byGroup   = "group"
)

func indexByService(o any) ([]string, error) {
	s, ok := o.(*apiregistrationv1.APIService)
	if !ok || s.Spec.Service == nil {
		return nil, nil
	}
	return []string{s.Spec.Service.Namespace + "/" + s.Spec.Service.Name}, nil
}

// nameOf is the name that the APIService of a group version must have.
func nameOf(gv schema.GroupVersion) string { return gv.Version + "." + gv.Group }

func groupVersion(s *apiregistrationv1.APIService) schema.GroupVersion {
	return schema.GroupVersion{Group: s.Spec.Group, Version: s.Spec.Version}
}

func portOf(s *apiregistrationv1.ServiceReference) int32 {
	if s.Port != nil {
		return *s.Port
	}
	return 443
}

// clusterIP says whether a Service has endpoints that we can look at.
func hasEndpoints(s *corev1.Service) bool { return s.Spec.Type != corev1.ServiceTypeExternalName }
