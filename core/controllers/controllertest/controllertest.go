// SPDX-License-Identifier: Apache-2.0

// Package controllertest is a small cluster for tests of controllers: a fake
// clientset that assigns what a server assigns (names, UIDs, versions, times) and
// refuses a write of an outdated object, with the informers on top of it.
//
// It knows no defaulting, validation or garbage collection. What depends on those
// is tested against the real server.
package controllertest

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"strconv"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"

	"github.com/wasmplane/wasmplane/core/controllers"
	"github.com/wasmplane/wasmplane/core/trace"
)

// Cluster is the fake.
type Cluster struct {
	Client    *fake.Clientset
	Informers informers.SharedInformerFactory
	// Events as "Type Reason Message", oldest first.
	Events *record.FakeRecorder

	mu      sync.Mutex
	version int64
}

// New makes a cluster that holds the objects.
func New(objects ...runtime.Object) *Cluster {
	c := &Cluster{Events: record.NewFakeRecorder(10000), version: 100}
	for _, obj := range objects {
		if m, err := meta.Accessor(obj); err == nil {
			c.born(m)
		}
	}
	c.Client = fake.NewClientset(objects...)
	c.Client.PrependReactor("create", "*", c.onCreate)
	c.Client.PrependReactor("update", "*", c.onUpdate)
	c.Client.PrependReactor("patch", "*", c.onPatch)
	c.Informers = informers.NewSharedInformerFactory(c.Client, 0)
	return c
}

// Env is what controllers are built with.
func (c *Cluster) Env(tb testing.TB) controllers.Env {
	return controllers.Env{
		Client: c.Client, Reader: c.Client, Informers: c.Informers,
		Recorder: func(string) record.EventRecorder { return c.Events },
		Log:      slog.New(slog.NewTextHandler(logWriter{tb}, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Tracer:   trace.Discard(),
	}
}

type logWriter struct{ t testing.TB }

func (w logWriter) Write(b []byte) (int, error) {
	w.t.Log(string(b))
	return len(b), nil
}

// Runner is a controller.
type Runner interface {
	Run(ctx context.Context) error
}

// Start starts the informers and the controllers; both end with the test.
func (c *Cluster) Start(tb testing.TB, runners ...Runner) {
	tb.Helper()
	ctx, stop := context.WithCancel(tb.Context())
	c.Informers.Start(ctx.Done())
	var running sync.WaitGroup
	for _, r := range runners {
		running.Go(func() {
			if err := r.Run(ctx); err != nil {
				tb.Errorf("a controller ended with an error: %v", err)
			}
		})
	}
	tb.Cleanup(func() {
		stop()
		running.Wait()
		c.Informers.Shutdown()
	})
}

// Eventually fails the test unless ok becomes nil within 10 seconds.
func Eventually(tb testing.TB, ok func() error) {
	tb.Helper()
	deadline := time.After(10 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ok()
		if err == nil {
			return
		}
		select {
		case <-deadline:
			tb.Fatalf("did not come about: %v", err)
		case <-tick.C:
		}
	}
}

func (c *Cluster) next() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.version++
	return strconv.FormatInt(c.version, 10)
}

func (c *Cluster) born(m metav1.Object) {
	version := c.next()
	if m.GetName() == "" && m.GetGenerateName() != "" {
		m.SetName(m.GetGenerateName() + version)
	}
	if m.GetUID() == "" {
		m.SetUID(types.UID("uid-" + version))
	}
	if m.GetCreationTimestamp().Time.IsZero() {
		m.SetCreationTimestamp(metav1.Now())
	}
	m.SetGeneration(max(m.GetGeneration(), 1))
	m.SetResourceVersion(version)
}

func (c *Cluster) onCreate(action clienttesting.Action) (bool, runtime.Object, error) {
	create, ok := action.(clienttesting.CreateAction)
	if !ok || action.GetSubresource() != "" {
		return false, nil, nil
	}
	if m, err := meta.Accessor(create.GetObject()); err == nil {
		c.born(m)
	}
	return false, nil, nil
}

func (c *Cluster) onUpdate(action clienttesting.Action) (bool, runtime.Object, error) {
	update, ok := action.(clienttesting.UpdateAction)
	if !ok {
		return false, nil, nil
	}
	m, err := meta.Accessor(update.GetObject())
	if err != nil {
		return true, nil, err
	}
	stored, err := c.Client.Tracker().Get(action.GetResource(), m.GetNamespace(), m.GetName())
	if err != nil {
		return true, nil, err
	}
	was, err := meta.Accessor(stored)
	if err != nil {
		return true, nil, err
	}
	if v := m.GetResourceVersion(); v != "" && v != was.GetResourceVersion() {
		return true, nil, apierrors.NewConflict(action.GetResource().GroupResource(), m.GetName(),
			fmt.Errorf("the object has been modified: stored %s, sent %s", was.GetResourceVersion(), v))
	}
	m.SetResourceVersion(c.next())
	if action.GetSubresource() == "" {
		return false, nil, nextGeneration(update.GetObject(), m, stored, was)
	}
	return false, nil, nil
}

// nextGeneration gives an object a generation of its own where more than its metadata and status differs from what is
// stored, as the API does: by it a controller knows that what it reads is older than what it wrote.
func nextGeneration(obj runtime.Object, m metav1.Object, stored runtime.Object, was metav1.Object) error {
	m.SetGeneration(was.GetGeneration())
	sent, err := wanted(obj)
	if err != nil {
		return err
	}
	before, err := wanted(stored)
	if err != nil {
		return err
	}
	if !reflect.DeepEqual(sent, before) {
		m.SetGeneration(was.GetGeneration() + 1)
	}
	return nil
}

// wanted is what somebody wants of an object.
func wanted(obj runtime.Object) (map[string]any, error) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		return nil, err
	}
	for _, other := range []string{"apiVersion", "kind", "metadata", "status"} {
		delete(fields, other)
	}
	return fields, nil
}

// onPatch lets the fake patch, and gives the result a version of its own: informers
// take an update without one for a resync.
func (c *Cluster) onPatch(action clienttesting.Action) (bool, runtime.Object, error) {
	patch, ok := action.(clienttesting.PatchAction)
	if !ok || patch.GetPatchType() == types.ApplyPatchType {
		return false, nil, nil
	}
	stored, err := c.Client.Tracker().Get(action.GetResource(), action.GetNamespace(), patch.GetName())
	if err != nil {
		return true, nil, err
	}
	// On a tracker of its own, so that watchers see one change and not two.
	aside := clienttesting.NewObjectTracker(scheme.Scheme, scheme.Codecs.UniversalDecoder())
	if err := aside.Create(action.GetResource(), stored.DeepCopyObject(), action.GetNamespace()); err != nil {
		return true, nil, err
	}
	_, obj, err := clienttesting.ObjectReaction(aside)(action)
	if err != nil {
		return true, nil, err
	}
	m, err := meta.Accessor(obj)
	if err != nil {
		return true, nil, err
	}
	m.SetResourceVersion(c.next())
	was, err := meta.Accessor(stored)
	if err != nil {
		return true, nil, err
	}
	if action.GetSubresource() == "" {
		if err := nextGeneration(obj, m, stored, was); err != nil {
			return true, nil, err
		}
	}
	return true, obj, c.Client.Tracker().Update(action.GetResource(), obj, m.GetNamespace())
}

// Kind is a shorthand for tests that build owner references.
func Kind(group, version, kind string) schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: group, Version: version, Kind: kind}
}
