// SPDX-License-Identifier: Apache-2.0

package policyobject

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/plugins/apiobject"
	"github.com/wasmplane/wasmplane/plugins/apiobject/plugindefinition"
	"github.com/wasmplane/wasmplane/plugins/policies/admissionpolicy"
	"github.com/wasmplane/wasmplane/plugins/policies/gatekeeper"
	"github.com/wasmplane/wasmplane/plugins/policies/kyverno"
)

// Config configures a Controller.
type Config struct {
	// Client reads policies and writes Plugins, under the identity apiobject.PolicyController.
	Client dynamic.Interface
	// Mapper knows the kinds that the cluster serves.
	Mapper meta.ResettableRESTMapper
	// Enabled are the projects whose policies run here.
	Enabled []string
	// Install installs the definition of a kind, and returns when it can be used.
	Install func(context.Context, *apiextensionsv1.CustomResourceDefinition) error
	Logger  *slog.Logger
}

// How soon after a change the controller looks again, and how often besides: what failed is
// tried again then, and kinds that came meanwhile are found.
const (
	lookAfter = 100 * time.Millisecond
	lookEvery = 10 * time.Second
)

// Controller makes a Plugin or a policy in CEL of each policy, and says on the policy what became of it. It
// follows the state of the cluster as a whole: what it does depends on what there is, not
// on what has changed.
type Controller struct {
	cfg     Config
	changed chan struct{}

	follows  map[schema.GroupVersionResource]*follow
	kinds    map[string]*known // templates that were read, by name
	failures map[string]string // that were logged, by object
	asked    time.Time         // when it was last asked anew which kinds there are
}

// follow is a resource that is followed.
type follow struct {
	informer cache.SharedIndexInformer
	stop     context.CancelFunc
	done     <-chan error
}

// known is a template of which the kind was installed.
type known struct {
	generation int64
	uid        string
	template   *gatekeeper.Template
	err        error
	installed  bool
	refused    bool // it cannot be read; template is the one before, if there was one
}

// New makes a controller. Run runs it.
func New(cfg Config) *Controller {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Controller{
		cfg: cfg, changed: make(chan struct{}, 1),
		follows: map[schema.GroupVersionResource]*follow{}, kinds: map[string]*known{}, failures: map[string]string{},
	}
}

// Run follows until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	defer func() {
		for r := range c.follows {
			c.leave(r)
		}
	}()
	c.follow(ctx, plugindefinition.Resource())
	if slices.Contains(c.cfg.Enabled, Gatekeeper) {
		c.follow(ctx, Templates())
		for _, r := range slices.Concat(Settings(), mutators(), []schema.GroupVersionResource{ExpansionTemplates()}) {
			c.follow(ctx, r)
		}
	}
	if slices.Contains(c.cfg.Enabled, Kubewarden) {
		c.follow(ctx, plugindefinition.TenantResource())
		for _, kind := range admissionpolicy.Kinds() {
			c.follow(ctx, KubewardenResource(kind))
		}
	}
	if slices.Contains(c.cfg.Enabled, Kyverno) {
		for _, kind := range slices.Concat(kyverno.Kinds(), kyverno.ImageKinds(), []string{kyverno.ExceptionKind}) {
			c.follow(ctx, KyvernoResource(kind))
		}
		for _, r := range inCEL {
			c.follow(ctx, r)
		}
	}
	for run.SleepOr(ctx, lookEvery, c.changed, lookAfter) {
		c.look(ctx)
	}
	return nil
}

// follow begins to follow a resource.
func (c *Controller) follow(ctx context.Context, r schema.GroupVersionResource) {
	if c.follows[r] != nil {
		return
	}
	ctx, stop := context.WithCancel(ctx)
	f := &follow{informer: dynamicinformer.NewFilteredDynamicInformer(c.cfg.Client, r, metav1.NamespaceAll, 0, cache.Indexers{},
		nil).Informer(), stop: stop}
	_, err := f.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { c.notify() },
		UpdateFunc: func(old, now any) {
			if relevant(old, now) {
				c.notify()
			}
		},
		DeleteFunc: func(any) { c.notify() },
	})
	if err != nil { // an informer that was just made takes handlers
		c.cfg.Logger.ErrorContext(ctx, "policies cannot be followed", "resource", r.GroupResource(), "error", err)
	}
	f.done = run.Go("policies: informer of "+r.Resource, func() error {
		f.informer.RunWithContext(ctx)
		return nil
	})
	c.follows[r] = f
}

// leave ends following a resource.
func (c *Controller) leave(r schema.GroupVersionResource) {
	f := c.follows[r]
	if f == nil {
		return
	}
	f.stop()
	<-f.done
	delete(c.follows, r)
}

func (c *Controller) notify() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// relevant leaves out what is written all the time: counters of Plugins, and what the
// controller itself says on policies.
func relevant(old, now any) bool {
	o, _ := old.(*unstructured.Unstructured)
	n, _ := now.(*unstructured.Unstructured)
	if o == nil || n == nil {
		return true
	}
	return o.GetGeneration() != n.GetGeneration() || o.GetUID() != n.GetUID() ||
		o.GetAnnotations()[apiobject.WriterAnnotation] != n.GetAnnotations()[apiobject.WriterAnnotation] ||
		o.GetLabels()[apiobject.PolicyLabel] != n.GetLabels()[apiobject.PolicyLabel] || state(o) != state(n) ||
		(o.GetDeletionTimestamp() == nil) != (n.GetDeletionTimestamp() == nil)
}

// objects are those of a resource; ok says that all of them are known.
func (c *Controller) objects(r schema.GroupVersionResource) (out []*unstructured.Unstructured, ok bool) {
	f := c.follows[r]
	if f == nil || !f.informer.HasSynced() {
		return nil, false
	}
	for _, o := range f.informer.GetStore().List() {
		if u, is := o.(*unstructured.Unstructured); is {
			out = append(out, u)
		}
	}
	slices.SortFunc(out, func(a, b *unstructured.Unstructured) int {
		return cmp.Compare(a.GetNamespace()+"/"+a.GetName(), b.GetNamespace()+"/"+b.GetName())
	})
	return out, true
}

// report logs what failed about an object, once.
func (c *Controller) report(ctx context.Context, o *unstructured.Unstructured, what string, err error) {
	key := what + " " + o.GetKind() + "/" + o.GetNamespace() + "/" + o.GetName()
	if err == nil {
		delete(c.failures, key)
		return
	}
	if ctx.Err() != nil || errors.Is(err, context.Canceled) || c.failures[key] == err.Error() {
		return
	}
	c.failures[key] = err.Error()
	c.cfg.Logger.WarnContext(ctx, "a policy is not as it should be", "doing", what, "kind", o.GetKind(), "namespace", o.GetNamespace(),
		"name", o.GetName(), "error", err)
}

// Resource implements tree.Mapper by what the cluster serves.
func (c *Controller) Resource(k schema.GroupKind) (string, bool) {
	m, err := c.cfg.Mapper.RESTMapping(k)
	if err != nil && time.Since(c.asked) >= lookEvery { // it may have come since
		c.asked = time.Now()
		c.cfg.Mapper.Reset()
		m, err = c.cfg.Mapper.RESTMapping(k)
	}
	if err != nil {
		return "", false
	}
	return m.Resource.Resource, true
}
