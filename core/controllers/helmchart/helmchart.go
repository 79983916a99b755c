// SPDX-License-Identifier: Apache-2.0

// Package helmchart installs, upgrades and uninstalls Helm charts that are objects of the API: kind
// HelmChart of charts.wasmplane.dev/v1 (core/chart/chartobject).
//
// The controller acts as a service account of the object's namespace, never with rights of its own: the
// account reads the values, writes the objects, and keeps the release, where and as Helm keeps it. What is left to
// do is read from the release and the object alone (plan.go), so that whoever leads next goes on where
// the last one stopped. Charts are fetched and rendered beside the loop, and rendered in a
// child process (core/chart/render).
//
// Nothing is installed anew while neither spec nor values change. A release that somebody upgrades or rolls back
// with helm stays as it is until they do.
package helmchart

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/wasmplane/wasmplane/core/chart/chartobject"
	"github.com/wasmplane/wasmplane/core/chart/origin"
	"github.com/wasmplane/wasmplane/core/chart/render"
	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/controllers"
	"github.com/wasmplane/wasmplane/core/dial"
)

// Name of the controller and of its account in kube-system.
const (
	Name    = "helm-chart-controller"
	Account = "helm-chart-controller"
)

// rawObject is an object in JSON.
type rawObject = json.RawMessage

// chart is the object that is worked on.
type chart struct{ *chartobject.Object }

// Renderer makes objects of charts.
type Renderer interface {
	origin.Finder
	Render(ctx context.Context, archive []byte, o render.Order, look render.Looker) (*render.Rendered, error)
	Objects(ctx context.Context, manifests []string) ([][]rawObject, error)
}

// Config of the controller.
type Config struct {
	// ClientsFor makes the clients of a service account, with its rights. The account is there.
	ClientsFor func(namespace, name string) (*client.Set, error)
	// Operators and Tenants say where charts may be fetched from: for objects of kube-system, and for others.
	Operators, Tenants dial.Policy
	Renderer           Renderer
	// Now is the time; nil = time.Now.
	Now func() time.Time
}

// Controller keeps the releases of HelmCharts.
type Controller struct {
	cfg        Config
	kube       kubernetes.Interface
	objects    dynamic.Interface // as the controller
	informer   cache.SharedIndexInformer
	discovery  discovery.CachedDiscoveryInterface
	mapper     *restmapper.DeferredDiscoveryRESTMapper
	namespaces corelisters.NamespaceLister
	fetcher    *origin.Fetcher
	events     record.EventRecorder
	loop       *controllers.Loop[controllers.Key]
	log        *slog.Logger
	now        func() time.Time
	jobs       *jobs

	mu       sync.Mutex
	accounts map[controllers.Key]*client.Set
	parsed   map[controllers.Key]*parsed
	trouble  map[controllers.Key]*trouble
}

// byUID finds objects by their UID.
const byUID = "uid"

// New makes the controller. own reads and writes HelmCharts as the controller's account.
func New(env controllers.Env, workers int, own dynamic.Interface, cfg Config) (*Controller, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	c := &Controller{
		cfg: cfg, kube: env.Client, namespaces: env.Informers.Core().V1().Namespaces().Lister(), objects: own,
		events: env.Recorder(Name), now: cfg.Now,
		discovery: memory.NewMemCacheClient(env.Client.Discovery()),
		accounts:  map[controllers.Key]*client.Set{}, parsed: map[controllers.Key]*parsed{}, trouble: map[controllers.Key]*trouble{},
		informer: dynamicinformer.NewFilteredDynamicInformer(own, chartobject.Resource(), metav1.NamespaceAll, 0, cache.Indexers{
			byUID: func(o any) ([]string, error) {
				if m, ok := o.(metav1.Object); ok {
					return []string{string(m.GetUID())}, nil
				}
				return nil, nil
			},
		}, nil).Informer(),
	}
	if err := c.informer.SetTransform(dropManagedFields); err != nil {
		return nil, fmt.Errorf("follow HelmCharts: %w", err)
	}
	c.mapper = restmapper.NewDeferredDiscoveryRESTMapper(c.discovery)
	c.loop = controllers.NewLoop(env, Name, workers, c.reconcile)
	c.log = c.loop.Log()
	c.fetcher = &origin.Fetcher{Operators: cfg.Operators, Tenants: cfg.Tenants, Finder: cfg.Renderer, Logger: c.log}
	c.jobs = newJobs(c.loop.Add)
	c.loop.Needs(env.Informers.Core().V1().Namespaces().Informer())
	c.loop.Own(c.informer)
	c.loop.Watch(c.informer, controllers.KeyHandler(c.loop))
	return c, nil
}

func dropManagedFields(o any) (any, error) {
	if m, ok := o.(metav1.Object); ok {
		m.SetManagedFields(nil)
	}
	return o, nil
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	c.jobs.begin(ctx)
	defer c.jobs.end()
	return c.loop.Run(ctx)
}

// get reads an object from the cache; nil = it is gone.
func (c *Controller) get(key controllers.Key) (*unstructured.Unstructured, error) {
	o, ok, err := c.informer.GetStore().GetByKey(key.String())
	if err != nil || !ok {
		return nil, err
	}
	u, ok := o.(*unstructured.Unstructured)
	if !ok {
		return nil, fmt.Errorf("the cache has a %T", o)
	}
	return u, nil
}

// lives says whether another HelmChart with this UID is there.
func (c *Controller) lives(uid types.UID) (metav1.Object, bool) {
	all, err := c.informer.GetIndexer().ByIndex(byUID, string(uid))
	if err != nil || len(all) == 0 {
		return nil, false
	}
	m, ok := all[0].(metav1.Object)
	return m, ok
}

// forget drops what is known of an object that is gone.
func (c *Controller) forget(key controllers.Key) {
	c.jobs.drop(key)
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.parsed, key)
	delete(c.trouble, key)
}

// event records one about the object.
func (c *Controller) event(o *unstructured.Unstructured, warning bool, reason, format string, args ...any) {
	kind := corev1.EventTypeNormal
	if warning {
		kind = corev1.EventTypeWarning
	}
	c.events.Event(o, kind, reason, clip(fmt.Sprintf(format, args...), 1000))
}

// clip shortens a text that others wrote.
func clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return s[:most] + " ..."
}
