// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/util/flowcontrol"
	fcmetrics "k8s.io/apiserver/pkg/util/flowcontrol/metrics"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/backup"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/hardened"
	"github.com/wasmplane/wasmplane/core/admission/staticfiles"
	"github.com/wasmplane/wasmplane/core/aggregator"
	"github.com/wasmplane/wasmplane/core/api"
	"github.com/wasmplane/wasmplane/core/api/nodeauth"
	"github.com/wasmplane/wasmplane/core/api/rbac"
	"github.com/wasmplane/wasmplane/core/api/satoken"
	"github.com/wasmplane/wasmplane/core/apiserver"
	"github.com/wasmplane/wasmplane/core/auth/audit"
	"github.com/wasmplane/wasmplane/core/auth/authn"
	"github.com/wasmplane/wasmplane/core/auth/authz"
	"github.com/wasmplane/wasmplane/core/bootstrap"
	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/client/trim"
	"github.com/wasmplane/wasmplane/core/customresource"
	"github.com/wasmplane/wasmplane/core/customresource/lifecycle"
	"github.com/wasmplane/wasmplane/core/pki"
	"github.com/wasmplane/wasmplane/core/registry"
	"github.com/wasmplane/wasmplane/core/registry/allocation"
	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/core/run/memory"
	"github.com/wasmplane/wasmplane/core/store"
	"github.com/wasmplane/wasmplane/core/store/encryption"
	"github.com/wasmplane/wasmplane/core/store/etcd"
	"github.com/wasmplane/wasmplane/core/store/measured"
	"github.com/wasmplane/wasmplane/core/store/space"
	"github.com/wasmplane/wasmplane/core/trace"
	"github.com/wasmplane/wasmplane/core/watchcache"
	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/apiobject"
	"github.com/wasmplane/wasmplane/plugins/hostfn"
	"github.com/wasmplane/wasmplane/plugins/hostfn/backend"
	pointcustom "github.com/wasmplane/wasmplane/plugins/point/customresource"
)

// server is the API with everything behind it.
type server struct {
	o         Options
	authority *pki.Authority
	advertise netip.Addr // where pods and other machines reach the API
	port      int
	services  netip.Prefix

	etcd        *etcd.Store // the store as it lies on disk; for backups
	store       store.Store
	sealed      *encryption.Store // nil = nothing is encrypted at rest
	closeStore  func() error
	storeDone   <-chan struct{} // nil = the store has no end of its own
	gauge       space.Gauge     // nil = its room is not ours to watch
	room        *space.Keeper
	cache       *watchcache.Cache
	contract    *api.Contract
	view        *registry.View // of registries, which are made later
	registries  *registry.Set
	custom      *customresource.Serving
	definitions *lifecycle.Lifecycle
	api         *apiserver.Server
	boot        *bootstrap.Bootstrap
	local       *lateHandler

	staticFolder *staticfiles.Folder // nil = none
	audit        *audit.Log          // nil = none
	internal     *client.Set         // the server's own identity
	informers    informers.SharedInformerFactory
	node         *nodeauth.Authorizer
	roles        *rbac.Authorizer
	rolesRead    chan struct{} // closed when roles and bindings have been read
	remotes      *aggregator.Aggregator
	minter       *satoken.Signer
	metrics      *prometheus.Registry
	size         *measured.Size
	spans        *tracing
	plugins      *plugins
	objects      *apiobject.Controller
	tenants      *apiobject.Controller // of namespaces

	fairness   flowcontrol.Interface // nil = off
	follows    []*follow             // files that are read again when they change
	structured *authn.Structured     // nil = no file
	chain      *authz.Chain
	access     backend.ChainAccess // to chain
	order      atomic.Pointer[[]authz.Entry]
}

// lateHandler lets clients of the server be made before the server is.
type lateHandler struct{ handler atomic.Pointer[http.Handler] }

// ServeHTTP implements http.Handler.
func (l *lateHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h := l.handler.Load(); h != nil {
		(*h).ServeHTTP(w, r)
		return
	}
	http.Error(w, "the apiserver is starting", http.StatusServiceUnavailable)
}

// serverUser is the server towards itself: its informers, its admission plugins
// and the bootstrap of a new cluster, before there are any roles. No component
// that could also run by itself has it.
var serverUser = &user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated}}

// newServer builds the API server. Nothing runs yet but the store. points are those
// that this process asks plugins at; nil = all.
func newServer(ctx context.Context, o Options, points []abi.Point) (_ *server, err error) {
	if o.Config, err = hardened.Apply(o.Config, o.Dir); err != nil {
		return nil, err
	}
	s := &server{o: o, local: &lateHandler{}, metrics: prometheus.NewRegistry(), rolesRead: make(chan struct{})}
	if err := s.openAddresses(ctx); err != nil {
		return nil, err
	}
	if err := s.openPKI(); err != nil {
		return nil, err
	}
	if err := s.openStore(ctx); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = s.closeStore()
		}
	}()
	if s.spans, err = newTracing(o); err != nil {
		return nil, err
	}
	if s.contract, err = api.New(); err != nil {
		return nil, err
	}
	s.view = registry.NewView(s.contract)
	if s.internal, err = client.New(client.InMemory(s.local, serverUser, parts.apiserver.name)); err != nil {
		return nil, err
	}
	s.informers = informers.NewSharedInformerFactoryWithOptions(s.internal.Kube, 0, informers.WithTransform(trim.Server))
	events := backend.NewEvents(s.internal.Kube)
	if s.plugins, err = newPlugins(ctx, o, pluginEnvironment{
		kube: s.internal.Kube, host: s.hostBackend(events), events: events, namespaces: s.namespaceLabels, metrics: s.metrics, points: points,
	}); err != nil {
		return nil, err
	}
	self, err := identity(o, hostname())
	if err != nil {
		return nil, err
	}
	objects := objectsOptions{client: s.internal.Dynamic, identity: parts.apiserver.name + "_" + self, reports: parts.apiserver.reports, answers: true}
	if s.objects, err = s.plugins.objects(objects); err != nil {
		return nil, err
	}
	objects.tenants = true
	if s.tenants, err = s.plugins.objects(objects); err != nil {
		return nil, err
	}
	return s, s.build(ctx)
}

// hostBackend is what this server offers to its plugins.
func (s *server) hostBackend(events *backend.Events) hostfn.Backend {
	return hostfn.Backend{
		Objects: backend.Cached{View: s.view}, Access: &s.access, Events: events,
		State: backend.ConfigMapState{Kube: s.internal.Kube}, Images: hostfn.NewImages(nil), Logger: s.o.Logger,
	}
}

func (s *server) openAddresses(ctx context.Context) error {
	host, port, err := net.SplitHostPort(s.o.Config.APIServer.Listen)
	if err != nil {
		return fmt.Errorf("apiserver.listen: %w", err)
	}
	if s.port, err = strconv.Atoi(port); err != nil {
		return fmt.Errorf("apiserver.listen: %w", err)
	}
	if s.port == 0 {
		if err := s.choosePort(ctx, host); err != nil {
			return err
		}
	}
	if addr, err := netip.ParseAddr(host); err == nil && !addr.IsLoopback() && !addr.IsUnspecified() {
		s.advertise = addr
		return nil
	}
	s.advertise, err = hostAddress(s.o.Config)
	return err
}

// choosePort takes one that is free. Certificates, tokens and Endpoints name it
// before anything may listen there, so it is given back until then; should another
// process take it meanwhile, listening says so.
func (s *server) choosePort(ctx context.Context, host string) error {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return fmt.Errorf("apiserver.listen: choose a port: %w", err)
	}
	s.port = l.Addr().(*net.TCPAddr).Port
	c := *s.o.Config
	c.APIServer.Listen = net.JoinHostPort(host, strconv.Itoa(s.port))
	s.o.Config = &c
	return l.Close()
}

func (s *server) openPKI() (err error) {
	if s.services, err = netip.ParsePrefix(s.o.Config.Cluster.ServiceCIDR); err != nil {
		return fmt.Errorf("cluster.serviceCIDR: %w", err)
	}
	host, _, _ := net.SplitHostPort(s.o.Config.APIServer.Listen)
	hosts := append([]string{s.advertise.String()}, s.o.Config.APIServer.SubjectAltNames...)
	if host != "" {
		hosts = append(hosts, host)
	}
	if name, err := os.Hostname(); err == nil {
		hosts = append(hosts, name)
	}
	s.authority, err = pki.Open(pki.Config{
		Dir: s.o.Dir.PKI(), ClusterDomain: s.o.Config.Cluster.Domain,
		ServiceIPs: []netip.Addr{s.services.Masked().Addr().Next()}, Hosts: hosts, Log: s.o.Logger,
	})
	return err
}

func (s *server) openStore(ctx context.Context) error {
	c := s.o.Config.Store
	if len(c.Endpoints) > 0 {
		st, err := etcd.Dial(ctx, etcd.Config{Endpoints: c.Endpoints, CAFile: s.o.Config.Path(c.CAFile), CertFile: s.o.Config.Path(c.CertFile), KeyFile: s.o.Config.Path(c.KeyFile)})
		if err != nil {
			return err
		}
		s.etcd, s.store, s.closeStore = st, st, st.Close
		return nil
	}
	e, err := etcd.Start(ctx, etcd.ServerConfig{Dir: s.o.Dir.Etcd(), Quota: c.QuotaBytes, Logger: s.o.Logger})
	if err != nil {
		return err
	}
	s.etcd, s.store, s.closeStore, s.storeDone, s.gauge = e.Store(), e.Store(), e.Close, e.Done(), e
	return nil
}

// build makes the chain from the watch cache to the HTTP server.
func (s *server) build(ctx context.Context) (err error) {
	tracer, err := s.spans.tracer(ctx, parts.apiserver.name)
	if err != nil {
		return err
	}
	contract := s.contract
	s.keepEvents(contract)
	if err := s.measure(contract); err != nil {
		return err
	}
	if err := s.encrypt(ctx, contract); err != nil {
		return err
	}
	if s.cache, err = watchcache.New(watchcache.Config{Store: s.store, Logger: s.o.Logger, Metrics: s.metrics}); err != nil {
		return err
	}
	if err := s.keepRoom(); err != nil {
		return err
	}
	authenticator, issuer, openID, err := s.authentication()
	if err != nil {
		return err
	}
	chain, err := s.authorization()
	if err != nil {
		return err
	}
	policies := s.internal.Kube.AdmissionregistrationV1()
	contract.Connect(api.Live{
		Authorizer: chain,
		Namespace: func(ctx context.Context, name string) (*corev1.Namespace, error) {
			return s.internal.Kube.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
		},
		ValidatingPolicy: func(ctx context.Context, name string) (*admissionregistrationv1.ValidatingAdmissionPolicy, error) {
			return policies.ValidatingAdmissionPolicies().Get(ctx, name, metav1.GetOptions{})
		},
		MutatingPolicy: func(ctx context.Context, name string) (*admissionregistrationv1.MutatingAdmissionPolicy, error) {
			return policies.MutatingAdmissionPolicies().Get(ctx, name, metav1.GetOptions{})
		},
		Resource: s.view.ResourceOf,
	})
	admit, err := s.admission(ctx, contract, chain)
	if err != nil {
		return err
	}
	if s.registries, err = registry.New(registry.Config{
		Contract: contract, View: s.view, Store: s.store, Cache: s.cache, Admission: admit, Authorizer: chain,
		Services: allocation.Ranges{CIDRs: []string{s.services.String()}}, Roles: rbac.Guard{RBAC: s.roles, Chain: chain},
		Space: s.room, Administrators: []string{pki.BreakGlassGroup, pki.AdminsGroup},
		Logger: s.o.Logger, Tracer: tracer,
	}); err != nil {
		return err
	}
	if err := s.measureCache(contract); err != nil {
		return err
	}
	if s.remotes, err = s.aggregation(contract); err != nil {
		return err
	}
	if err := s.customResources(ctx, contract); err != nil {
		return err
	}
	serving, err := s.authority.APIServer()
	if err != nil {
		return err
	}
	kubelets, err := s.authority.Client(pki.KubeletClient())
	if err != nil {
		return err
	}
	c := s.o.Config.APIServer
	listener, err := s.listenAPI(ctx, s.o.Config.Node.Mode.Real)
	if err != nil {
		return err
	}
	record, err := s.openAudit()
	if err != nil {
		return err
	}
	s.api, err = apiserver.New(apiserver.Config{
		Audit: record, Aggregator: s.remotes,
		Contract: contract, Registries: s.registries, Authenticator: authenticator, Authorizer: chain,
		Tokens: issuer, Reviewer: tokenReviewer{authenticator},
		Listener: listener, TLS: pki.ServerTLS(serving), Kubelet: s.kubeletClient(kubelets),
		OpenIDConfiguration: openID[satoken.ConfigPath], JWKS: openID[satoken.KeysPath],
		Mounts:   []apiserver.Mount{{Prefix: trace.SpansPath, Handler: s.spans.handler()}, {Prefix: trace.JourneyPath, Handler: s.spans.handler()}, {Prefix: backup.Path, Handler: backup.Handler(s.etcd, s.o.Logger), Long: true}},
		CatchUp:  s.custom.CatchUp,
		Fairness: s.openFairness(),
		MaxReads: c.MaxRequestsInFlight, MaxWrites: c.MaxMutatingRequestsInFlight,
		Checks:  s.readiness(),
		Metrics: s.metrics, Gatherer: prometheus.Gatherers{s.metrics, legacyregistry.DefaultGatherer}, Logger: s.o.Logger, Tracer: tracer,
	})
	if err != nil {
		return err
	}
	if s.boot, err = bootstrap.New(bootstrap.Config{
		Client: s.internal.Kube, ServiceCIDRs: []netip.Prefix{s.services}, Endpoint: netip.AddrPortFrom(s.advertise, uint16(s.port)),
		ClientCA: s.authority.CAPEM(), FrontProxyCA: s.authority.FrontProxyCAPEM(),
		FrontProxyNames: []string{pki.FrontProxyClient().User}, Log: s.o.Logger,
		Cluster: bootstrap.Cluster{
			Name: s.o.Config.Cluster.Name, Domain: s.o.Config.Cluster.Domain, PodCIDR: s.o.Config.Cluster.PodCIDR,
			Authority: pki.Pin(s.authority.ClusterCA()), Alone: len(s.o.Config.Store.Endpoints) == 0,
		},
	}); err != nil {
		return err
	}
	handler := s.api.LocalHandler()
	s.local.handler.Store(&handler)
	return nil
}

// aggregation is for group versions that other servers serve.
func (s *server) aggregation(contract *api.Contract) (*aggregator.Aggregator, error) {
	proxy, err := s.authority.Client(pki.FrontProxyClient())
	if err != nil {
		return nil, err
	}
	var builtIn []schema.GroupVersion
	for _, g := range contract.Groups() {
		for _, v := range g.Versions {
			// The group of registrations itself needs none.
			if g.Name != "apiregistration.k8s.io" {
				builtIn = append(builtIn, schema.GroupVersion{Group: g.Name, Version: v})
			}
		}
	}
	return aggregator.New(aggregator.Config{
		API: client.InMemory(s.local, serverUser, parts.apiserver.name), Informers: s.informers, BuiltIn: builtIn,
		Certificate: func() (*tls.Certificate, error) { return proxy.Certificate(), nil },
		Dial:        operatorsDial(s.o).Context(),
		Metrics:     s.metrics, Logger: s.o.Logger,
	})
}

// customResources serves what definitions define, and leads definitions through
// their lives.
func (s *server) customResources(ctx context.Context, contract *api.Contract) (err error) {
	services, err := newServiceResolver(s.informers)
	if err != nil {
		return err
	}
	converters := pointcustom.NewSet(s.plugins.customResources)
	if s.custom, err = customresource.New(customresource.Config{
		Registries: s.registries, Contract: contract, Services: services, Dial: operatorsDial(s.o), Extension: converters, Logger: s.o.Logger,
	}); err != nil {
		return err
	}
	converters.Changed() // nothing has been converted by those that are there already
	s.plugins.onChange(func() {
		changed := converters.Changed()
		if len(changed) == 0 {
			return
		}
		if err := s.custom.Renew(ctx, func(converter string) bool { return changed[converter] }); err != nil {
			s.o.Logger.ErrorContext(ctx, "custom resources may be shown as an older version of their plugin converted them", "error", err)
		}
	})
	own, err := apiextensions.NewForConfig(s.internal.Config)
	if err != nil {
		return fmt.Errorf("client of the definitions of custom resources: %w", err)
	}
	s.definitions, err = lifecycle.New(lifecycle.Config{Client: own.CustomResourceDefinitions(), Server: s.custom, Logger: s.o.Logger})
	return err
}

// openAudit opens the audit log, where the configuration asks for one.
func (s *server) openAudit() (apiserver.Audit, error) {
	c := s.o.Config.APIServer
	if c.AuditLogFile == "" && c.Audit.WebhookConfigFile == "" {
		return nil, nil
	}
	policy := s.o.Config.Path(c.AuditPolicyFile)
	if policy != "" {
		s.following("the audit policy", func(ctx context.Context) error { return s.audit.Reload(ctx) }, policy)
	}
	a := c.Audit
	var err error
	s.audit, err = audit.Open(audit.Config{
		PolicyFile: policy, File: s.o.Config.Path(c.AuditLogFile), Dial: operatorsDial(s.o), Log: s.o.Logger,
		FileTarget: audit.Target{Mode: audit.Mode(a.LogMode), MaxEventBytes: a.LogMaxEventBytes},
		MaxBytes:   a.LogMaxBytes, MaxFiles: a.LogMaxFiles, MaxAge: time.Duration(a.LogMaxAge),
		WebhookFile: s.o.Config.Path(a.WebhookConfigFile), InitialBackoff: time.Duration(a.WebhookInitialBackoff),
		WebhookTarget: audit.Target{
			Mode: audit.Mode(a.WebhookMode), BufferEvents: a.WebhookBufferEvents, BatchEvents: a.WebhookBatchEvents,
			BatchWait: time.Duration(a.WebhookBatchWait), MaxEventBytes: a.WebhookMaxEventBytes,
		},
	})
	if err != nil {
		return nil, err
	}
	return s.audit, nil
}

// openFairness makes the controller of priority and fairness, which the server's
// own informers feed; nil where the configuration turns it off.
func (s *server) openFairness() flowcontrol.Interface {
	c := s.o.Config.APIServer
	if !c.Fairness {
		return nil
	}
	fcmetrics.Register()
	s.fairness = flowcontrol.New(s.informers, s.internal.Kube.FlowcontrolV1(), c.MaxRequestsInFlight+c.MaxMutatingRequestsInFlight)
	return s.fairness
}

// runFairness follows FlowSchemas and priority levels until ctx ends.
func (s *server) runFairness(ctx context.Context) error {
	select {
	case <-s.api.Ready():
	case <-ctx.Done():
		return nil
	}
	if s.fairness == nil {
		<-ctx.Done()
		return nil
	}
	if err := s.fairness.Run(ctx.Done()); err != nil && ctx.Err() == nil {
		return fmt.Errorf("priority and fairness: %w", err)
	}
	return nil
}

// keepEvents makes Events expire as configured; both groups' rows store the same objects.
func (s *server) keepEvents(contract *api.Contract) {
	ttl := time.Duration(s.o.Config.APIServer.EventTTL)
	for _, group := range []string{"", "events.k8s.io"} {
		if r, ok := contract.Resource(schema.GroupResource{Group: group, Resource: "events"}); ok {
			r.TTL = func(runtime.Object) time.Duration { return ttl }
		}
	}
}

func (s *server) checkStore(ctx context.Context) error {
	_, err := s.store.Revision(ctx)
	return err
}

func (s *server) checkCache(context.Context) error {
	select {
	case <-s.cache.Ready():
		return nil
	default:
		return errors.New("the watch cache is still loading")
	}
}

// namespaceLabels answers plugins' namespaceSelectors.
func (s *server) namespaceLabels(ctx context.Context, name string) (map[string]string, bool) {
	ns, err := s.informers.Core().V1().Namespaces().Lister().Get(name)
	if apierrors.IsNotFound(err) { // the informer may lag behind a namespace that was just made
		ns, err = s.internal.Kube.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	}
	if err != nil {
		return nil, false
	}
	return ns.Labels, true
}

// units are the server's parts in their order.
func (s *server) units() []run.Unit {
	return []run.Unit{
		{Name: "store", Run: s.runStore},
		{Name: "watch cache", Run: run.Parallel(s.cache.Run, s.compact, s.room.Run, s.authority.Run, s.spans.run, s.releaseMemory, memory.Pace, s.followFiles, s.followStatic, s.followPlugins, s.size.Run, s.custom.Run), Ready: s.cache.Ready()},
		// Before the server, so that it also ends after: no request finds them gone.
		{Name: "plugin reload", Run: s.plugins.run},
		{Name: parts.apiserver.name, Run: s.runAPI, Ready: s.api.Ready()},
		{Name: "bootstrap", Run: run.Parallel(s.boot.Run, s.dnsService, s.remotes.Run, s.definitions.Run, s.repairServices), Ready: s.boot.Ready()},
		{Name: "plugin objects", Run: s.pluginObjects, Ready: s.objects.Ready()},
	}
}

// releaseMemory spares the first write to each group the 11 ms that its schemas take,
// and hands back what the start needed.
func (s *server) releaseMemory(ctx context.Context) error {
	return memory.Startup{Ready: s.boot.Ready(), Logger: s.o.Logger, Warm: func(ctx context.Context) {
		if err := s.contract.Warm(ctx); err != nil && ctx.Err() == nil {
			s.o.Logger.WarnContext(ctx, "schemas were not made ahead; the first write to a group will make them", "error", err)
		}
	}}.Run(ctx)
}

func (s *server) runStore(ctx context.Context) error {
	var err error
	select {
	case <-ctx.Done():
	case <-s.storeDone:
		err = errors.New("etcd has stopped; its log says why")
	}
	if s.audit != nil {
		err = errors.Join(err, s.audit.Close())
	}
	return errors.Join(err, s.closeStore())
}

func (s *server) compact(ctx context.Context) error {
	c, err := store.NewCompactor(store.CompactorConfig{
		Store: s.store, Interval: time.Duration(s.o.Config.Store.CompactionInterval), Logger: s.o.Logger,
	})
	if err != nil {
		return err
	}
	return c.Run(ctx)
}

// runAPI serves, and fills the server's own informers from itself.
func (s *server) runAPI(ctx context.Context) error {
	select {
	case <-s.custom.Ready(): // a client that lists every kind must find those of definitions too
	case <-ctx.Done():
		return nil
	}
	return run.Parallel(s.api.Run, s.runFairness, func(ctx context.Context) error {
		select {
		case <-s.api.Ready():
		case <-ctx.Done():
			return nil
		}
		s.informers.Start(ctx.Done())
		r := s.informers.Rbac().V1()
		if cache.WaitForCacheSync(ctx.Done(), r.Roles().Informer().HasSynced, r.RoleBindings().Informer().HasSynced,
			r.ClusterRoles().Informer().HasSynced, r.ClusterRoleBindings().Informer().HasSynced) {
			close(s.rolesRead)
		}
		<-ctx.Done()
		s.informers.Shutdown()
		return nil
	})(ctx)
}

// url is how this machine's own clients reach the API.
func (s *server) url() string {
	host, _, _ := net.SplitHostPort(s.o.Config.APIServer.Listen)
	if addr, err := netip.ParseAddr(host); host == "" || err == nil && addr.IsUnspecified() {
		host = "127.0.0.1"
	}
	return "https://" + net.JoinHostPort(host, strconv.Itoa(s.port))
}

// tokenReviewer gives the authenticator the name that the action calls.
type tokenReviewer struct{ authenticator *authn.Authenticator }

// Review implements action.TokenReviewer.
func (t tokenReviewer) Review(ctx context.Context, r *authenticationv1.TokenReview) error {
	return t.authenticator.ReviewToken(ctx, r)
}
