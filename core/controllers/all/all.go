// SPDX-License-Identifier: Apache-2.0

// Package all is the set of built-in controllers as one component: one visible
// list, which of them run, under which identity each.
package all

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"

	oteltrace "go.opentelemetry.io/otel/trace"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	metrics "k8s.io/component-base/metrics/prometheus/controllers"

	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/controllers"
	"github.com/wasmplane/wasmplane/core/controllers/approval"
	"github.com/wasmplane/wasmplane/core/controllers/helmchart"
	"github.com/wasmplane/wasmplane/core/controllers/nodeipam"
	"github.com/wasmplane/wasmplane/core/controllers/nodelifecycle"
	"github.com/wasmplane/wasmplane/core/controllers/serviceaccount"
	"github.com/wasmplane/wasmplane/core/controllers/servicelb"
	"github.com/wasmplane/wasmplane/core/controllers/signing"
	"github.com/wasmplane/wasmplane/core/trace"
)

// accountNamespace is where the controllers' service accounts are, by the names that
// upstream's bootstrap policy gives rights to.
const accountNamespace = "kube-system"

// Config of the controllers.
type Config struct {
	// Controllers says which run, as upstream's --controllers: "*" is all that are on
	// by default, NAME one more, -NAME one less. Empty = "*".
	Controllers []string
	// Workers by controller name, where the default in the list is not right.
	Workers map[string]int

	// Clients makes the clients of a service account in kube-system; for "" those of
	// the process itself (system:kube-controller-manager), which the shared
	// informers use. FromIdentities makes one of these.
	Clients func(serviceAccount string) (*client.Set, error)
	// Informers that the process shares. Nil: the controllers make their own.
	Informers informers.SharedInformerFactory
	// StartInformers starts Informers, and is called once all that the controllers
	// need were asked for. Needed with Informers; its informers should live as long
	// as the process, not as long as one term of leadership.
	StartInformers func()

	// RootCA (PEM) is published to all namespaces and token secrets, anew when it changes; nil: it isn't.
	RootCA func() []byte
	// Minter signs token secrets; nil: they stay empty.
	Minter serviceaccount.Minter

	// CertificateAuthority signs approved certificate requests; nil: nobody does.
	CertificateAuthority signing.Authority
	// BootstrapTokens: expired ones are removed, and cluster-info is signed by the others.
	BootstrapTokens bool
	// PodGroups are served; else nobody protects them.
	PodGroups bool
	// PoolStatus: ResourcePoolStatusRequests are served; else nobody answers them.
	PoolStatus bool

	// NodeIPAM divides the pod network among nodes; without CIDRs nobody does.
	NodeIPAM nodeipam.Config
	// NodeLifecycle says how long a node may be silent.
	NodeLifecycle nodelifecycle.Config
	// Serving has the names of the cluster: serving certificates for nodes' own names are approved, but
	// for none of these; nil: none are.
	Serving *approval.Names
	// LoadBalancer says which addresses Services of type LoadBalancer get.
	LoadBalancer servicelb.Config
	// Charts are installed that are objects of the API; nil = none are.
	Charts *helmchart.Config
	// FinishedPods is how many finished pods are kept; 0 = 12500, negative = all.
	FinishedPods int

	Log    *slog.Logger
	Tracer oteltrace.Tracer
}

// Manager runs the controllers.
type Manager struct {
	cfg     Config
	enabled []entry
}

// FromIdentities makes Config.Clients of the process's own configuration and of
// the source of its controllers' identities.
func FromIdentities(own *rest.Config, ids client.Identities) func(string) (*client.Set, error) {
	return func(serviceAccount string) (*client.Set, error) {
		cfg := rest.CopyConfig(own)
		if serviceAccount != "" {
			var err error
			if cfg, err = ids.ForServiceAccount(accountNamespace, serviceAccount); err != nil {
				return nil, err
			}
		}
		// Some controllers serve APIs that are deprecated for everybody else.
		cfg.WarningHandlerWithContext = rest.NoWarnings{}
		return client.New(cfg)
	}
}

// New checks the configuration. Nothing runs yet.
func New(cfg Config) (*Manager, error) {
	if cfg.Clients == nil {
		return nil, errors.New("controllers: Clients is missing")
	}
	if cfg.Informers != nil && cfg.StartInformers == nil {
		return nil, errors.New("controllers: with Informers, StartInformers is needed")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Tracer == nil {
		cfg.Tracer = trace.Discard()
	}
	if len(cfg.Controllers) == 0 {
		cfg.Controllers = []string{"*"}
	}
	enabled, err := choose(list(), cfg.Controllers)
	if err != nil {
		return nil, err
	}
	for name, n := range cfg.Workers {
		if !known(list(), name) || n < 1 {
			return nil, fmt.Errorf("controllers: workers of %q: %d; want the name of a controller and a positive number", name, n)
		}
	}
	return &Manager{cfg: cfg, enabled: enabled}, nil
}

// Names of all built-in controllers, in order of start.
func Names() []string {
	var names []string
	for _, e := range list() {
		names = append(names, e.name)
	}
	return names
}

func known(all []entry, name string) bool {
	return slices.ContainsFunc(all, func(e entry) bool { return e.name == name })
}

// choose applies a selection like "*,-job-controller".
func choose(all []entry, selection []string) ([]entry, error) {
	for _, s := range selection {
		if name := strings.TrimPrefix(s, "-"); name != "*" && !known(all, name) {
			return nil, fmt.Errorf("controllers: there is no controller %q; there are: %s", name, strings.Join(Names(), ", "))
		}
	}
	var chosen []entry
	for _, e := range all {
		named, excluded := slices.Contains(selection, e.name), slices.Contains(selection, "-"+e.name)
		if !excluded && (named || (slices.Contains(selection, "*") && !e.off)) {
			chosen = append(chosen, e)
		}
	}
	return chosen, nil
}

// runner is a controller that was built.
type runner interface {
	Run(ctx context.Context) error
}

// Run builds the controllers and runs them until ctx ends or one of them fails. It
// may be called again, for the next term of leadership.
func (m *Manager) Run(ctx context.Context) error {
	own, err := m.cfg.Clients("")
	if err != nil {
		return fmt.Errorf("controllers: own clients: %w", err)
	}
	factory, startInformers := m.cfg.Informers, m.cfg.StartInformers
	if factory == nil {
		factory = informers.NewSharedInformerFactoryWithOptions(own.Kube, 0, informers.WithTransform(dropManagedFields))
		startInformers = func() { factory.StartWithContext(ctx) }
		defer factory.Shutdown()
	}
	b := &builder{Config: m.cfg, own: own, factory: factory}
	ctx, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	// The order matters: controllers end, then what they still have to tell is told.
	defer b.shutdownEvents()
	defer running.Wait()
	defer stop()

	var runners []runner
	for _, e := range m.enabled {
		r, err := b.build(e)
		if err != nil {
			return err
		}
		runners = append(runners, r)
	}
	startInformers()
	metrics.Register()
	instances := metrics.NewControllerManagerMetrics("kube-controller-manager")
	failed := make(chan error, len(runners))
	for i, r := range runners {
		if r == nil {
			continue
		}
		running.Go(func() {
			instances.ControllerStarted(m.enabled[i].name)
			defer instances.ControllerStopped(m.enabled[i].name)
			if err := r.Run(ctx); err != nil {
				failed <- fmt.Errorf("%s: %w", m.enabled[i].name, err)
			}
		})
	}
	m.cfg.Log.InfoContext(ctx, "controllers run", "count", len(runners))
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return err
	}
}

// dropManagedFields: they are a third of a cached object, and no controller reads them.
func dropManagedFields(obj any) (any, error) {
	if o, ok := obj.(metav1.Object); ok {
		o.SetManagedFields(nil)
	}
	return obj, nil
}

// builder holds what the controllers of one run share.
type builder struct {
	Config
	own          *client.Set
	factory      informers.SharedInformerFactory
	broadcasters []record.EventBroadcaster
}

func (b *builder) build(e entry) (runner, error) {
	set := b.own
	if e.account != "" {
		var err error
		if set, err = b.Clients(e.account); err != nil {
			return nil, fmt.Errorf("%s: clients of service account %s/%s: %w", e.name, accountNamespace, e.account, err)
		}
	}
	workers := e.workers
	if n, ok := b.Workers[e.name]; ok {
		workers = n
	}
	r, err := e.build(b, built{
		Env: controllers.Env{
			Client:    set.Kube,
			Reader:    b.own.Kube,
			Informers: b.factory,
			Recorder:  b.recorder(set),
			Log:       b.Log,
			Tracer:    b.Tracer,
		},
		clients: set,
		workers: workers,
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", e.name, err)
	}
	return r, nil
}

// recorder lets a controller record events under its own identity.
func (b *builder) recorder(set *client.Set) func(string) record.EventRecorder {
	return func(component string) record.EventRecorder {
		broadcaster := record.NewBroadcaster()
		broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: set.Kube.CoreV1().Events(metav1.NamespaceAll)})
		b.broadcasters = append(b.broadcasters, broadcaster)
		return broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: component})
	}
}

func (b *builder) shutdownEvents() {
	for _, broadcaster := range b.broadcasters {
		broadcaster.Shutdown()
	}
}

// kept are the resources that controllers follow anyway, by group. The collector follows them by the same informers: each
// object is decoded and kept once, not its metadata once more.
var kept = map[schema.GroupVersion][]string{
	corev1.SchemeGroupVersion: {
		"endpoints", "namespaces", "nodes", "persistentvolumeclaims", "persistentvolumes", "pods", "replicationcontrollers",
		"resourcequotas", "serviceaccounts", "services",
	},
	admissionregistrationv1.SchemeGroupVersion: {"validatingadmissionpolicies"},
	appsv1.SchemeGroupVersion:                  {"controllerrevisions", "daemonsets", "deployments", "replicasets", "statefulsets"},
	autoscalingv2.SchemeGroupVersion:           {"horizontalpodautoscalers"},
	batchv1.SchemeGroupVersion:                 {"cronjobs", "jobs"},
	certificatesv1.SchemeGroupVersion:          {"certificatesigningrequests"},
	coordinationv1.SchemeGroupVersion:          {"leases"},
	discoveryv1.SchemeGroupVersion:             {"endpointslices"},
	networkingv1.SchemeGroupVersion:            {"ipaddresses", "servicecidrs"},
	policyv1.SchemeGroupVersion:                {"poddisruptionbudgets"},
	rbacv1.SchemeGroupVersion:                  {"clusterroles"},
	resourcev1.SchemeGroupVersion:              {"resourceclaims", "resourceclaimtemplates", "resourceslices"},
	storagev1.SchemeGroupVersion:               {"csidrivers", "storageclasses", "volumeattachments", "volumeattributesclasses"},
}

// sharedInformers are those of kept, for the garbage collector.
// They are asked for here, before the factory starts.
func (b *builder) sharedInformers() (func(schema.GroupVersionResource) cache.SharedInformer, error) {
	shared := map[schema.GroupVersionResource]cache.SharedInformer{}
	for version, resources := range kept {
		for _, resource := range resources {
			r := version.WithResource(resource)
			informer, err := b.factory.ForResource(r)
			if err != nil {
				return nil, fmt.Errorf("an informer of %s: %w", r.GroupResource(), err)
			}
			shared[r] = informer.Informer()
		}
	}
	return func(r schema.GroupVersionResource) cache.SharedInformer { return shared[r] }, nil
}
