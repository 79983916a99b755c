// SPDX-License-Identifier: Apache-2.0

// Package lifecycle leads CustomResourceDefinitions through their lives: names are accepted
// or refused, the definition is established once this server serves it, conditions report
// what is wrong with its schema or its group, and its objects are removed before it is
// removed.
//
// It is a client of the API, under the server's own identity, and runs in every
// server: a cluster of one server with no controllers has working definitions.
// Several servers do the same work; what one of them has written, the others find
// done, and a conflict is somebody else being faster. Each step is decided in a
// pure function of the definitions that there are (decide.go).
package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	typed "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/wasmplane/wasmplane/core/run"
)

// Server is what the server says of the definitions that it serves.
type Server interface {
	// Serves says whether the definition with this name and UID is served.
	Serves(name, uid string) bool
	// Purge deletes the objects of a definition, and answers how many are left,
	// waiting for their finalizers.
	Purge(ctx context.Context, name string) (left int, err error)
	// BuiltIn says whether a definition defines what is built in.
	BuiltIn(crd *apiextensionsv1.CustomResourceDefinition) bool
}

// Config is what a lifecycle needs.
type Config struct {
	Client typed.CustomResourceDefinitionInterface
	Server Server
	Logger *slog.Logger // nil = discard
}

// Lifecycle works on definitions, one after the other.
type Lifecycle struct {
	cfg   Config
	store cache.Store
	queue workqueue.TypedRateLimitingInterface[string]
}

// New checks cfg.
func New(cfg Config) (*Lifecycle, error) {
	if cfg.Client == nil || cfg.Server == nil {
		return nil, errors.New("lifecycle: Config.Client and Config.Server are needed")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Lifecycle{cfg: cfg}, nil
}

// Run works until ctx ends.
func (l *Lifecycle) Run(ctx context.Context) error {
	l.queue = workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](5*time.Millisecond,
		2*time.Second))
	store, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: &cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				return l.cfg.Client.List(ctx, o)
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				return l.cfg.Client.Watch(ctx, o)
			},
		},
		ObjectType: &apiextensionsv1.CustomResourceDefinition{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    l.changed,
			UpdateFunc: func(_, o any) { l.changed(o) },
			DeleteFunc: l.gone,
		},
	})
	l.store = store
	var running sync.WaitGroup
	running.Go(func() { informer.RunWithContext(ctx) })
	running.Go(func() {
		if cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
			// One definition after the other: who gets a name is decided by one worker, and by
			// the compare-and-swap of the store between servers.
			run.Work(ctx, "definitions", 1, l.queue, l.step)
		}
	})
	running.Wait()
	return nil
}

func (l *Lifecycle) changed(o any) {
	if crd, ok := o.(*apiextensionsv1.CustomResourceDefinition); ok {
		l.queue.Add(crd.Name)
	}
}

// gone frees names that others may be waiting for.
func (l *Lifecycle) gone(o any) {
	if unknown, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = unknown.Obj
	}
	crd, ok := o.(*apiextensionsv1.CustomResourceDefinition)
	if !ok {
		return
	}
	l.others(crd)
}

// others have the other definitions of a group looked at again.
func (l *Lifecycle) others(crd *apiextensionsv1.CustomResourceDefinition) {
	for _, other := range l.all() {
		if other.Spec.Group == crd.Spec.Group && other.Name != crd.Name {
			l.queue.Add(other.Name)
		}
	}
}

func (l *Lifecycle) all() []*apiextensionsv1.CustomResourceDefinition {
	var out []*apiextensionsv1.CustomResourceDefinition
	for _, o := range l.store.List() {
		if crd, ok := o.(*apiextensionsv1.CustomResourceDefinition); ok {
			out = append(out, crd)
		}
	}
	return out
}

// step takes one definition on, and has it looked at again where that failed.
func (l *Lifecycle) step(ctx context.Context, name string) {
	err := l.sync(ctx, name)
	switch {
	case err == nil:
		l.queue.Forget(name)
		return
	case ctx.Err() != nil, errors.Is(err, errWaiting), apierrors.IsConflict(err), apierrors.IsNotFound(err):
	default:
		l.cfg.Logger.WarnContext(ctx, "a definition of a custom resource could not be brought on; trying again", "definition", name,
			"error", err)
	}
	l.queue.AddRateLimited(name)
}

// errWaiting says that something that nobody tells of has to happen first.
var errWaiting = errors.New("not yet")

// sync does the next step for one definition. What it writes comes back as an
// event, which leads to the step after that.
func (l *Lifecycle) sync(ctx context.Context, name string) error {
	o, ok, err := l.store.GetByKey(name)
	if err != nil || !ok {
		return err
	}
	cached, ok := o.(*apiextensionsv1.CustomResourceDefinition)
	if !ok {
		return fmt.Errorf("the cache of definitions holds a %T", o)
	}
	if cached.DeletionTimestamp != nil {
		return l.finish(ctx, cached)
	}
	crd := cached.DeepCopy()
	changed := acceptNames(crd, l.all())
	changed = schemaCondition(crd) || changed
	changed = approvalCondition(crd) || changed
	if changed {
		if _, err := l.update(ctx, crd); err != nil {
			return err
		}
		l.others(crd) // names may have been given back
		return nil
	}
	if !wantsEstablishing(crd) {
		return nil
	}
	if !l.cfg.Server.Serves(crd.Name, string(crd.UID)) {
		return errWaiting
	}
	if establish(crd) {
		_, err := l.update(ctx, crd)
		return err
	}
	return nil
}

// update writes the status, and has this cache know it at once, so that the next
// decision about names is not taken on what was.
func (l *Lifecycle) update(ctx context.Context,
	crd *apiextensionsv1.CustomResourceDefinition,
) (*apiextensionsv1.CustomResourceDefinition, error) {
	written, err := l.cfg.Client.UpdateStatus(ctx, crd, metav1.UpdateOptions{})
	if err != nil {
		return nil, fmt.Errorf("write the status of %s: %w", crd.Name, err)
	}
	if _, known, _ := l.store.GetByKey(crd.Name); known {
		if err := l.store.Update(written); err != nil {
			return nil, fmt.Errorf("remember the status of %s: %w", crd.Name, err)
		}
	}
	return written, nil
}

// finish deletes the objects of a definition that is being deleted, and lets it go.
func (l *Lifecycle) finish(ctx context.Context, cached *apiextensionsv1.CustomResourceDefinition) error {
	if !apihelpers.CRDHasFinalizer(cached, apiextensionsv1.CustomResourceCleanupFinalizer) {
		return nil
	}
	crd := cached.DeepCopy()
	if beginTermination(crd) {
		var err error
		if crd, err = l.update(ctx, crd); err != nil {
			return err
		}
	}
	condition, err := l.purge(ctx, crd)
	apihelpers.SetCRDCondition(crd, condition)
	if err != nil {
		if _, updateErr := l.update(ctx, crd); updateErr != nil && !apierrors.IsConflict(updateErr) {
			return errors.Join(err, updateErr)
		}
		return err
	}
	apihelpers.CRDRemoveFinalizer(crd, apiextensionsv1.CustomResourceCleanupFinalizer)
	_, err = l.update(ctx, crd)
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func (l *Lifecycle) purge(ctx context.Context,
	crd *apiextensionsv1.CustomResourceDefinition,
) (apiextensionsv1.CustomResourceDefinitionCondition, error) {
	switch {
	case l.cfg.Server.BuiltIn(crd):
		return terminating(apiextensionsv1.ConditionFalse, "OverlappingBuiltInResource", "instances overlap with built-in resources in storage"),
			nil
	case !apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established):
		return terminating(apiextensionsv1.ConditionFalse, "NeverEstablished", "resource was never established"), nil
	}
	left, err := l.cfg.Server.Purge(ctx, crd.Name)
	switch {
	case err != nil:
		return terminating(apiextensionsv1.ConditionTrue, "InstanceDeletionFailed", fmt.Sprintf("could not issue all deletes: %v", err)), err
	case left > 0:
		message := fmt.Sprintf("could not confirm zero CustomResources remaining: %d are waiting for their finalizers", left)
		return terminating(apiextensionsv1.ConditionTrue, "InstanceDeletionCheck", message), fmt.Errorf("%s: %w", message, errWaiting)
	}
	return terminating(apiextensionsv1.ConditionFalse, "InstanceDeletionCompleted", "removed all instances"), nil
}
