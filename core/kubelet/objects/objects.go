// SPDX-License-Identifier: Apache-2.0

// Package objects holds the ConfigMaps and Secrets that the pods of a node refer
// to, and nothing else: a node may read no others. Each is watched by its own
// name while a pod refers to it, so that a change is told at once; what is not
// (yet) known is asked for.
package objects

import (
	"context"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/wasmplane/wasmplane/core/kubelet/rounds"
	"github.com/wasmplane/wasmplane/core/run"
)

// Kind of an object that is held.
type Kind string

// Kinds that are held.
const (
	ConfigMap Kind = "ConfigMap"
	Secret    Kind = "Secret"
)

// Key names an object.
type Key struct {
	Kind            Kind
	Namespace, Name string
}

// Client of the API, as far as objects need it.
type Client interface {
	CoreV1() typedcorev1.CoreV1Interface
}

// Store holds objects for the pods of a node.
type Store struct {
	client Client
	log    *slog.Logger
	// references of a pod that are held.
	references func(*corev1.Pod) []Key
	// changed is called for each pod that refers to an object that changed.
	changed func(pod types.UID)

	mu    sync.Mutex
	held  map[Key]*held
	byPod map[types.UID][]Key
	start []*held      // wait for Run to watch them
	turn  *rounds.Turn // nil: nobody watches yet
}

type held struct {
	key    Key
	pods   map[types.UID]struct{}
	object runtime.Object
	stop   context.CancelFunc
	gone   bool
}

// New makes a Store; Run runs its watches. Before that, and without it, objects
// are asked for one by one.
func New(client Client, log *slog.Logger) *Store {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Store{client: client, log: log, references: References, held: map[Key]*held{}, byPod: map[types.UID][]Key{}}
}

// NewUnmounted is New for a node that mounts no volumes, so that it needs nothing that only these refer to: every pod has a
// volume with the cluster's authority, and each node would watch that in each namespace.
func NewUnmounted(client Client, log *slog.Logger) *Store {
	s := New(client, log)
	s.references = ofContainers
	return s
}

// Changed sets whom to tell of pods whose objects changed; before Run.
func (s *Store) Changed(f func(pod types.UID)) { s.changed = f }

// Follow watches what a pod refers to until Unfollow.
func (s *Store) Follow(p *corev1.Pod) {
	keys := s.references(p)
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.byPod[p.UID]
	s.byPod[p.UID] = keys
	for _, k := range keys {
		h := s.held[k]
		if h == nil {
			h = &held{key: k, pods: map[types.UID]struct{}{}}
			s.held[k] = h
			s.start = append(s.start, h)
		}
		h.pods[p.UID] = struct{}{}
	}
	s.dropAll(p.UID, before, keys)
	if s.turn != nil {
		s.turn.Soon()
	}
}

// Unfollow ends what Follow began.
func (s *Store) Unfollow(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropAll(uid, s.byPod[uid], nil)
	delete(s.byPod, uid)
}

// dropAll lets go of keys but for those to keep. Lock held.
func (s *Store) dropAll(uid types.UID, keys, keep []Key) {
	kept := map[Key]bool{}
	for _, k := range keep {
		kept[k] = true
	}
	for _, k := range keys {
		h := s.held[k]
		if h == nil || kept[k] {
			continue
		}
		delete(h.pods, uid)
		if len(h.pods) == 0 {
			h.gone = true
			if h.stop != nil {
				h.stop()
			}
			delete(s.held, k)
		}
	}
}

// Run watches until ctx ends.
func (s *Store) Run(ctx context.Context) error {
	r := rounds.New(1)
	s.Join(ctx, r)
	return r.Run(ctx)
}

// Join is Run by rounds.
func (s *Store) Join(ctx context.Context, r *rounds.Rounds) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turn = r.Add("kubelet: objects", 0, func(context.Context) time.Duration {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, h := range s.start {
			if h.gone {
				continue
			}
			wctx, cancel := context.WithCancel(ctx)
			h.stop = cancel
			r.Go("kubelet: watch of an object", func() {
				defer cancel()
				s.watch(wctx, h)
			})
		}
		s.start = nil
		return rounds.Never
	})
	context.AfterFunc(ctx, s.turn.Stop)
}

// reader reads one kind of object of a namespace; its lists are an L.
type reader[L runtime.Object] interface {
	List(ctx context.Context, o metav1.ListOptions) (L, error)
	Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
}

// selected lists and watches what a field selector chooses.
func selected[L runtime.Object](r reader[L], only string) *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = only
			return r.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = only
			return r.Watch(ctx, o)
		},
	}
}

func (s *Store) watch(ctx context.Context, h *held) {
	only := fields.OneTermEqualSelector("metadata.name", h.key.Name).String()
	var lw *cache.ListWatch
	var kind runtime.Object
	switch h.key.Kind {
	case ConfigMap:
		kind, lw = &corev1.ConfigMap{}, selected(s.client.CoreV1().ConfigMaps(h.key.Namespace), only)
	case Secret:
		kind, lw = &corev1.Secret{}, selected(s.client.CoreV1().Secrets(h.key.Namespace), only)
	}
	if !s.readable(ctx, h.key) {
		return
	}
	r := cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(lw, s.client), kind, &sink{s: s, h: h},
		cache.ReflectorOptions{
			Name: "kubelet/" + string(h.key.Kind) + "/" + h.key.Namespace + "/" + h.key.Name,
		})
	r.RunWithContext(ctx)
}

// readable waits until the API lets the node read the object: its authorizer may
// learn of the pod that refers to it a little later than the node does.
func (s *Store) readable(ctx context.Context, k Key) bool {
	retry := run.Backoff{First: 5 * time.Millisecond, Longest: time.Minute}
	for {
		var err error
		switch k.Kind {
		case ConfigMap:
			_, err = s.client.CoreV1().ConfigMaps(k.Namespace).Get(ctx, k.Name, metav1.GetOptions{})
		case Secret:
			_, err = s.client.CoreV1().Secrets(k.Namespace).Get(ctx, k.Name, metav1.GetOptions{})
		}
		if !apierrors.IsForbidden(err) {
			return ctx.Err() == nil
		}
		wait := retry.Next()
		if wait > time.Second {
			s.log.WarnContext(ctx, "the API forbids to read an object that a pod of this node refers to; trying again",
				"kind", k.Kind, "namespace", k.Namespace, "name", k.Name, "error", err, "retryIn", wait)
		}
		if !run.Sleep(ctx, wait) {
			return false
		}
	}
}

func (s *Store) set(h *held, o runtime.Object) {
	s.mu.Lock()
	before := h.object
	h.object = o
	var tell []types.UID
	if s.changed != nil && !h.gone && version(before) != version(o) {
		for uid := range h.pods {
			tell = append(tell, uid)
		}
	}
	s.mu.Unlock()
	for _, uid := range tell {
		s.changed(uid)
	}
}

func version(o runtime.Object) string {
	if m, ok := o.(metav1.Object); ok && m != nil {
		return string(m.GetUID()) + "/" + m.GetResourceVersion()
	}
	return ""
}

func (s *Store) known(k Key) runtime.Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.held[k]; h != nil {
		return h.object
	}
	return nil
}

// ConfigMap answers one; it is not to be changed.
func (s *Store) ConfigMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error) {
	if o, ok := s.known(Key{ConfigMap, namespace, name}).(*corev1.ConfigMap); ok {
		return o, nil
	}
	o, err := s.client.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
	return o, inTheSingular(err, "configmap", name)
}

// inTheSingular says of an object that is not there what upstream's kubelet says: people
// and tools look for it in the events of pods.
func inTheSingular(err error, kind, name string) error {
	if apierrors.IsNotFound(err) {
		return apierrors.NewNotFound(corev1.Resource(kind), name)
	}
	return err
}

// Secret answers one; it is not to be changed.
func (s *Store) Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	if o, ok := s.known(Key{Secret, namespace, name}).(*corev1.Secret); ok {
		return o, nil
	}
	o, err := s.client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
	return o, inTheSingular(err, "secret", name)
}

// sink takes one object from a reflector.
type sink struct {
	s *Store
	h *held
}

func (k *sink) put(o any) error {
	if obj, ok := o.(runtime.Object); ok {
		k.s.set(k.h, obj)
	}
	return nil
}

// Add is for cache.ReflectorStore.
func (k *sink) Add(o any) error { return k.put(o) }

// Update is for cache.ReflectorStore.
func (k *sink) Update(o any) error { return k.put(o) }

// Delete is for cache.ReflectorStore.
func (k *sink) Delete(any) error {
	k.s.set(k.h, nil)
	return nil
}

// Replace is for cache.ReflectorStore.
func (k *sink) Replace(list []any, _ string) error {
	if len(list) == 0 {
		return k.Delete(nil)
	}
	return k.put(list[0])
}

// Resync is for cache.ReflectorStore.
func (k *sink) Resync() error { return nil }

// References are the objects that a pod refers to.
func References(p *corev1.Pod) []Key {
	keys := keysOf(p)
	keys.containers()
	for i := range p.Spec.Volumes {
		volumeReferences(&p.Spec.Volumes[i], keys.add)
	}
	return keys.all
}

// ofContainers are the objects that a pod refers to but by its volumes.
func ofContainers(p *corev1.Pod) []Key {
	keys := keysOf(p)
	keys.containers()
	return keys.all
}

// keys are being collected of a pod, each once.
type keys struct {
	pod  *corev1.Pod
	seen map[Key]bool
	all  []Key
}

func keysOf(p *corev1.Pod) *keys { return &keys{pod: p, seen: map[Key]bool{}} }

func (c *keys) add(kind Kind, name string) {
	if k := (Key{kind, c.pod.Namespace, name}); name != "" && !c.seen[k] {
		c.seen[k] = true
		c.all = append(c.all, k)
	}
}

// containers adds what environments refer to, and the secrets that images are pulled with.
func (c *keys) containers() {
	p := c.pod
	for _, s := range p.Spec.ImagePullSecrets {
		c.add(Secret, s.Name)
	}
	containers := append(append([]corev1.Container{}, p.Spec.InitContainers...), p.Spec.Containers...)
	for i := range p.Spec.EphemeralContainers {
		containers = append(containers, corev1.Container(p.Spec.EphemeralContainers[i].EphemeralContainerCommon))
	}
	for i := range containers {
		for _, f := range containers[i].EnvFrom {
			if f.ConfigMapRef != nil {
				c.add(ConfigMap, f.ConfigMapRef.Name)
			}
			if f.SecretRef != nil {
				c.add(Secret, f.SecretRef.Name)
			}
		}
		for _, e := range containers[i].Env {
			if e.ValueFrom == nil {
				continue
			}
			if r := e.ValueFrom.ConfigMapKeyRef; r != nil {
				c.add(ConfigMap, r.Name)
			}
			if r := e.ValueFrom.SecretKeyRef; r != nil {
				c.add(Secret, r.Name)
			}
		}
	}
}

func volumeReferences(v *corev1.Volume, add func(Kind, string)) {
	switch {
	case v.ConfigMap != nil:
		add(ConfigMap, v.ConfigMap.Name)
	case v.Secret != nil:
		add(Secret, v.Secret.SecretName)
	case v.Projected != nil:
		for _, src := range v.Projected.Sources {
			if src.ConfigMap != nil {
				add(ConfigMap, src.ConfigMap.Name)
			}
			if src.Secret != nil {
				add(Secret, src.Secret.Name)
			}
		}
	}
}
