// SPDX-License-Identifier: Apache-2.0

// Package feeds is what kubelets read from the API all the time: their pods, their node,
// the Services.
package feeds

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/wasmplane/wasmplane/core/kubelet/static"
)

// Feeds are what kubelets read from the API all the time: their pods, their
// node, the Services. One kubelet's Feeds ask for no more than its node is
// concerned with; the Feeds that many kubelets of one process share hold one
// watch on all pods and split it by node.
type Feeds struct {
	pods     cache.SharedIndexInformer
	nodes    cache.SharedIndexInformer
	services cache.SharedIndexInformer
	synced   chan struct{}

	mu        sync.Mutex
	followers map[string]Follower
}

// Follower is told of a node's pods. Its functions must not block.
type Follower struct{ Changed, Gone func(*corev1.Pod) }

// Client of the API, as far as feeds need it.
type Client interface {
	CoreV1() typedcorev1.CoreV1Interface
}

// New watches for one node, or, if nodeName is empty, for all.
func New(client Client, nodeName string) (*Feeds, error) {
	if client == nil {
		return nil, errors.New("feeds need a client of the API")
	}
	var pods, nodes string // selectors of fields
	if nodeName != "" {
		pods = fields.OneTermEqualSelector("spec.nodeName", nodeName).String()
		nodes = fields.OneTermEqualSelector("metadata.name", nodeName).String()
	} else {
		pods = fields.OneTermNotEqualSelector("spec.nodeName", "").String()
	}
	core := client.CoreV1()
	f := &Feeds{
		pods:     informer(client, &corev1.Pod{}, core.Pods(metav1.NamespaceAll), pods),
		nodes:    informer(client, &corev1.Node{}, core.Nodes(), nodes),
		services: informer(client, &corev1.Service{}, core.Services(metav1.NamespaceAll), ""),
		synced:   make(chan struct{}), followers: map[string]Follower{},
	}
	// Managed fields are half of a pod, and of no use here.
	for _, i := range []cache.SharedIndexInformer{f.pods, f.nodes, f.services} {
		if err := i.SetTransform(strip); err != nil {
			return nil, fmt.Errorf("watch what concerns nodes: %w", err)
		}
	}
	if err := f.pods.AddIndexers(cache.Indexers{"node": func(o any) ([]string, error) {
		if p, ok := o.(*corev1.Pod); ok {
			return []string{p.Spec.NodeName}, nil
		}
		return nil, nil
	}}); err != nil {
		return nil, fmt.Errorf("index pods by node: %w", err)
	}
	if _, err := f.pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { f.route(o, false) },
		UpdateFunc: func(before, o any) { f.replaced(before, o); f.route(o, false) },
		DeleteFunc: func(o any) { f.route(o, true) },
	}); err != nil {
		return nil, fmt.Errorf("watch pods: %w", err)
	}
	return f, nil
}

// reader reads one kind of object; its lists are an L.
type reader[L runtime.Object] interface {
	List(ctx context.Context, o metav1.ListOptions) (L, error)
	Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
}

// informer of the objects of a kind that a selector of fields chooses.
func informer[L runtime.Object](client Client, kind runtime.Object, r reader[L], selector string) cache.SharedIndexInformer {
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = selector
			return r.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = selector
			return r.Watch(ctx, o)
		},
	}
	return cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(lw, client), kind, 0,
		cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
}

// replaced tells of a pod whose end was missed because another took its name.
func (f *Feeds) replaced(before, after any) {
	a, ok1 := before.(*corev1.Pod)
	b, ok2 := after.(*corev1.Pod)
	if ok1 && ok2 && a.UID != b.UID {
		f.route(a, true)
	}
}

func (f *Feeds) route(o any, gone bool) {
	if t, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = t.Obj
	}
	p, ok := o.(*corev1.Pod)
	if !ok {
		return
	}
	f.mu.Lock()
	h, ok := f.followers[p.Spec.NodeName]
	f.mu.Unlock()
	switch {
	case !ok:
	case gone:
		h.Gone(p)
	default:
		h.Changed(p)
	}
}

// Run feeds until ctx ends.
func (f *Feeds) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { f.pods.RunWithContext(ctx) })
	wg.Go(func() { f.nodes.RunWithContext(ctx) })
	wg.Go(func() { f.services.RunWithContext(ctx) })
	if cache.WaitForCacheSync(ctx.Done(), f.pods.HasSynced, f.nodes.HasSynced, f.services.HasSynced) {
		close(f.synced)
	}
	<-ctx.Done()
	wg.Wait()
	return nil
}

// Synced is closed once all that existed at the start is known.
func (f *Feeds) Synced() <-chan struct{} { return f.synced }

// Follow calls the functions for a node's pods, those that are already there first.
func (f *Feeds) Follow(node string, h Follower) {
	f.mu.Lock()
	f.followers[node] = h
	f.mu.Unlock()
	for _, p := range f.Pods(node) {
		h.Changed(p)
	}
}

// Unfollow ends that.
func (f *Feeds) Unfollow(node string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.followers, node)
}

// Pods of a node.
func (f *Feeds) Pods(node string) []*corev1.Pod {
	objs, err := f.pods.GetIndexer().ByIndex("node", node)
	if err != nil {
		return nil
	}
	out := make([]*corev1.Pod, 0, len(objs))
	for _, o := range objs {
		if p, ok := o.(*corev1.Pod); ok {
			out = append(out, p)
		}
	}
	return out
}

// Node by name.
func (f *Feeds) Node(name string) (*corev1.Node, error) {
	o, ok, err := f.nodes.GetIndexer().GetByKey(name)
	if err != nil {
		return nil, fmt.Errorf("look node %s up: %w", name, err)
	}
	n, isNode := o.(*corev1.Node)
	if !ok || !isNode {
		return nil, apierrors.NewNotFound(corev1.Resource("nodes"), name)
	}
	return n, nil
}

// ServicesFor are the Services that the environment of a namespace's pods tells of.
func (f *Feeds) ServicesFor(namespace string) ([]*corev1.Service, error) {
	services := corelisters.NewServiceLister(f.services.GetIndexer())
	out, err := services.Services(namespace).List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("list services of namespace %s: %w", namespace, err)
	}
	if namespace == corev1.NamespaceDefault {
		return out, nil
	}
	api, err := services.Services(corev1.NamespaceDefault).Get("kubernetes")
	if apierrors.IsNotFound(err) {
		return out, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look up the API's service: %w", err)
	}
	return append(out, api), nil
}

// strip changes nothing that o shares with others (see client.New), but for its own fields.
func strip(o any) (any, error) {
	if m, ok := o.(metav1.Object); ok {
		m.SetManagedFields(nil)
	}
	// Which pods come from files is the node's to say: nobody makes a pod that it cannot do without.
	if p, ok := o.(*corev1.Pod); ok && p.Annotations[static.SourceAnnotation] != "" && !static.IsMirror(p) {
		p.Annotations = maps.Clone(p.Annotations)
		p.Annotations[static.SourceAnnotation] = "api"
	}
	return o, nil
}
