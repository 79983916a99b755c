// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"time"

	"k8s.io/client-go/informers"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/backup"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/hardened"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/machine"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/process"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/profiles"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/readiness"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/site"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/whyapi"
	"github.com/wasmplane/wasmplane/core/apiserver/health"
	"github.com/wasmplane/wasmplane/core/bootstrap"
	"github.com/wasmplane/wasmplane/core/dns/announce"
	"github.com/wasmplane/wasmplane/core/pki"
	"github.com/wasmplane/wasmplane/core/pki/cabundle"
	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/core/run/memory"
	"github.com/wasmplane/wasmplane/core/scheduler"
	"github.com/wasmplane/wasmplane/core/scheduler/native"
	"github.com/wasmplane/wasmplane/plugins/abi"
)

// server is the API with everything behind it, in the order in which its parts are made:
// each needs those before it, and none is there half.
type server struct {
	base
	storage *storage
	plugins *extensions
	who     *authentication
	may     *authorization
	admit   *admitting
	offers  *resources
	front   *front
	boot    *bootstrap.Bootstrap
	backups *backup.Scheduled // nil = none are taken
	started time.Time
	start   readiness.Start
	// addressed is closed once it is settled which server has the virtual address.
	addressed chan struct{}
}

// newServer builds the API server. Nothing runs yet but the store. points are those
// that this process asks plugins at; nil = all.
func newServer(ctx context.Context, o Options, points []abi.Point) (_ *server, err error) {
	if o.Config, err = hardened.Apply(o.Config, o.Dir); err != nil {
		return nil, err
	}
	log := health.WatchLog(o.Logger.Handler(), nil)
	o.Logger = slog.New(log.Handler())
	at, err := site.Open(ctx, o)
	if err != nil {
		return nil, err
	}
	s := &server{started: time.Now(), start: readiness.NewStart(), addressed: make(chan struct{})}
	if s.base, err = newBase(at); err != nil {
		return nil, err
	}
	if s.storage, err = openStorage(ctx, s.base); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.storage.closeAll())
		}
	}()
	tracer, err := s.spans.Tracer(ctx, process.Parts.APIServer.Name)
	if err != nil {
		return nil, err
	}
	if s.plugins, err = loadExtensions(ctx, s.base, points); err != nil {
		return nil, err
	}
	if s.who, err = newAuthentication(s.base); err != nil {
		return nil, err
	}
	if s.may, err = newAuthorization(s.base, s.plugins.Plugins); err != nil {
		return nil, err
	}
	s.plugins.access.Use(s.may.Chain)
	s.connect(s.may.Chain)
	if s.admit, err = newAdmission(ctx, s.base, s.plugins, s.may.Chain); err != nil {
		return nil, err
	}
	if s.offers, err = newResources(ctx, s.base, s.storage, s.plugins.Plugins, s.may, s.admit, tracer); err != nil {
		return nil, err
	}
	if s.boot, err = newBootstrap(s.base); err != nil {
		return nil, err
	}
	checks := readiness.Server{
		Start: s.start, Boot: s.boot, Remotes: s.offers.remotes, Shared: s.informers,
		Cache: s.storage.cache.Ready(), Defined: s.offers.custom.Ready(),
		Store: s.storage.answers, Room: s.storage.room, Sealed: s.storage.sealed, Log: log,
	}.Checks()
	if s.front, err = newFront(ctx, s.base, s.storage, s.who, s.may, s.offers, tracer, s.trials(points), checks); err != nil {
		return nil, err
	}
	s.local.use(s.front.LocalHandler())
	return s, s.openBackups()
}

// trials makes the scheduler's profiles for questions about pods that wait; nil where the scheduler is another process,
// whose plugins this one does not have.
func (s *server) trials(points []abi.Point) func() whyapi.Trials {
	if points != nil {
		return nil
	}
	return func() whyapi.Trials {
		wasm, untried, release := s.plugins.SchedulingTrials()
		list := func(inf informers.SharedInformerFactory) ([]scheduler.Profile, error) {
			policy, err := profiles.Of(s.Options.Config, wasm, native.Config{Informers: inf}, process.Extenders(s.Options, true))
			return policy.Profiles, err
		}
		return whyapi.Trials{Profiles: list, Untried: untried, Release: release}
	}
}

// newBootstrap writes what a new cluster begins with.
func newBootstrap(b base) (*bootstrap.Bootstrap, error) {
	return bootstrap.New(bootstrap.Config{
		Client: b.internal.Kube, ServiceCIDRs: b.Services, Endpoint: netip.AddrPortFrom(b.Advertise, uint16(b.Port)),
		ClientCA: b.Authority.CAPEM(), FrontProxyCA: b.Authority.FrontProxyCAPEM(),
		FrontProxyNames: []string{pki.FrontProxyClient().User}, Log: b.Options.Logger,
		Cluster: bootstrap.Cluster{
			Name: b.Cluster().Name, Domain: b.Options.Config.Cluster.Domain, PodCIDR: b.Options.Config.Cluster.PodCIDR,
			Authority: cabundle.Pin(b.Authority.ClusterCA()), Trusted: string(b.Authority.CAPEM()),
			Alone: len(b.Options.Config.Store.Endpoints) == 0 && b.Around.Address == "" &&
				!b.Around.Joined(),
		},
	})
}

// components gives out the parts of the cluster that run in this process.
func (s *server) components() process.Local {
	return process.Local{Options: s.Options, Handler: s.local, Tracing: s.spans, Plugins: s.plugins.Plugins, Metrics: s.metrics}
}

// units are the server's parts in their order.
func (s *server) units() []run.Unit {
	begun := s.boot.Ready()
	store := func(ctx context.Context) error {
		return errors.Join(s.storage.wait(ctx), s.front.closeAudit(), s.storage.closeAll())
	}
	upkeep := append(s.storage.upkeep(), s.Authority.Run, s.FollowRenewals, s.followServers, s.spans.Run, s.shelf.Run, s.releaseMemory,
		memory.Pace, s.follows.run, s.who.run, s.start.Admission.Before(s.admit.run), s.offers.custom.Run)
	return []run.Unit{
		{Name: "store", Run: store},
		{Name: "watch cache", Run: run.Parallel(upkeep...), Ready: s.storage.cache.Ready()},
		// Before the server, so that it also ends after: no request finds them gone.
		{Name: "plugin reload", Run: s.plugins.Run},
		{Name: process.Parts.APIServer.Name, Run: s.serve, Ready: s.front.Ready()},
		{Name: "bootstrap", Run: run.Parallel(s.boot.Run, s.dnsService, s.markVersion, s.followAuthority, s.watchCertificates,
			s.beLight, s.compareClocks, s.followArchives, s.migrateStorage, s.takeBackups, s.applyManifests, s.offers.remotes.Run,
			s.start.Definitions.Before(s.offers.definitions.Run), s.offers.usage.Run,
			s.offers.repairServices(s.base, begun, s.start.Repairs)), Ready: begun},
		{Name: "virtual address", Run: s.holdVirtualAddress, Ready: s.addressed},
		{Name: "plugin objects", Run: s.plugins.follow(s.base, begun), Ready: s.plugins.objects.Ready()},
		{Name: "policy scan", Run: s.scanPolicies},
	}
}

// releaseMemory spares the first write to each group the 11 ms that its schemas take,
// and hands back what the start needed.
func (s *server) releaseMemory(ctx context.Context) error {
	return memory.Startup{Ready: s.boot.Ready(), Logger: s.Options.Logger, Warm: func(ctx context.Context) {
		if err := s.contract.Warm(ctx); err != nil && ctx.Err() == nil {
			s.Options.Logger.WarnContext(ctx, "schemas were not made ahead; the first write to a group will make them", "error", err)
		}
	}}.Run(ctx)
}

// serve answers requests, and fills the server's own informers from itself.
func (s *server) serve(ctx context.Context) error {
	// A client that lists every kind must find those of definitions too.
	if !run.Await(ctx, s.offers.custom.Ready()) {
		return nil
	}
	s.plugins.expect(ctx, s.base)
	fairness := func(ctx context.Context) error { return s.front.runFairness(ctx, s.start.Fairness) }
	return run.Parallel(s.front.Run, fairness, func(ctx context.Context) error {
		if !run.Await(ctx, s.front.Ready()) {
			return nil
		}
		s.informers.Start(ctx.Done())
		s.start.Informers.Reach()
		s.may.readRoles(ctx, s.base)
		<-ctx.Done()
		s.informers.Shutdown()
		return nil
	})(ctx)
}

// dnsService makes the Service of the cluster's DNS, where the configuration wants one.
func (s *server) dnsService(ctx context.Context) error {
	if !run.Await(ctx, s.boot.Ready()) {
		return nil
	}
	if s.Options.Config.DNS.Enabled {
		if err := announce.Service(ctx, s.internal.Kube, machine.DNSAddresses(s.Options.Config)); err != nil && ctx.Err() == nil {
			s.Options.Logger.ErrorContext(ctx, "the Service of the cluster's DNS could not be made", "error", err)
		}
	}
	<-ctx.Done()
	return nil
}
