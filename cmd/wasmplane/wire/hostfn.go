package wire

import (
	"context"
	"fmt"
	"strings"
	"sync"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedv1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/retry"

	"github.com/wasmplane/wasmplane/core/auth/authz"
	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/registry"
	"github.com/wasmplane/wasmplane/plugins/hostfn"
	"github.com/wasmplane/wasmplane/plugins/manifest"
)

// hostBackend is what this server offers to its plugins.
func (s *server) hostBackend(events *pluginEvents) hostfn.Backend {
	return hostfn.Backend{
		Objects: cachedObjects{s}, Access: chainAccess{s}, Events: events,
		State: configMapState{s.internal.Kube}, Images: hostfn.NewImages(nil), Logger: s.o.Logger,
	}
}

// remoteBackend is what a component by itself offers, by its own client and with its
// own rights. A node keeps what its plugins keep on its own disk: no node may write
// what another's plugins, or the control plane's, go by.
func remoteBackend(o Options, component string, set *client.Set, events *pluginEvents) hostfn.Backend {
	var state hostfn.StateStore = configMapState{set.Kube}
	if component == "kubelet" {
		state = &fileState{dir: o.Dir.PluginState()}
	}
	return hostfn.Backend{
		State:   state,
		Objects: newClientObjects(set), Access: clientAccess{set.Kube}, Events: events,
		Images: hostfn.NewImages(nil), Logger: o.Logger,
	}
}

// cachedObjects reads from the watch cache, in the served versions. What it hands
// out is the cache's own.
type cachedObjects struct{ s *server }

// Find implements hostfn.Objects.
func (c cachedObjects) Find(_ context.Context, gv schema.GroupVersion, kind, resource string) (hostfn.Resource, error) {
	if c.s.registries == nil {
		return hostfn.Resource{}, apierrors.NewServiceUnavailable("the apiserver is starting")
	}
	rows, _ := c.s.registries.Resources()
	for _, r := range rows {
		if r.Group == gv.Group && !r.Virtual && r.Serves(gv.Version) && (resource == "" || r.Resource == resource) && (kind == "" || r.Kind == kind) {
			return hostfn.Resource{GroupVersionResource: gv.WithResource(r.Resource), Kind: r.Kind, Namespaced: r.Namespaced}, nil
		}
	}
	return hostfn.Resource{}, apierrors.NewNotFound(gv.WithResource(resource).GroupResource(), kind)
}

// Get implements hostfn.Objects.
func (c cachedObjects) Get(ctx context.Context, r hostfn.Resource, namespace, name string, fresh bool) (runtime.Object, string, error) {
	reg, err := c.registry(r)
	if err != nil {
		return nil, "", err
	}
	seen := registry.FormatRevision(c.s.cache.Revision())
	o, err := reg.Get(ctx, &registry.Request{Version: r.Version, Namespace: namespace, Name: name}, freshness(fresh))
	if apierrors.IsNotFound(err) {
		return nil, seen, nil
	}
	if err != nil {
		return nil, "", err
	}
	v, err := o.Versioned()
	return v, seen, err
}

// List implements hostfn.Objects.
func (c cachedObjects) List(ctx context.Context, r hostfn.Resource, s hostfn.Selection) (hostfn.Page, error) {
	reg, err := c.registry(r)
	if err != nil {
		return hostfn.Page{}, err
	}
	list, err := reg.List(ctx, &registry.Request{Version: r.Version, Namespace: s.Namespace},
		registry.ListOptions{Labels: s.Labels, Fields: s.Fields, ResourceVersion: freshness(s.Fresh)})
	if err != nil {
		return hostfn.Page{}, err
	}
	page := hostfn.Page{ResourceVersion: registry.FormatRevision(list.Revision)}
	for _, item := range list.Items {
		if s.Limit > 0 && len(page.Items) == s.Limit {
			page.More = true
			break
		}
		o, err := reg.InVersion(ctx, item, r.Version)
		if err != nil {
			return page, err
		}
		v, err := o.Versioned()
		if err != nil {
			return page, err
		}
		page.Items = append(page.Items, v)
	}
	return page, nil
}

func (c cachedObjects) registry(r hostfn.Resource) (*registry.Registry, error) {
	reg, ok := c.s.registries.For(r.GroupVersionResource.GroupResource())
	if !ok {
		return nil, apierrors.NewNotFound(r.GroupVersionResource.GroupResource(), "")
	}
	return reg, nil
}

// freshness is a read's resourceVersion: the newest state, or the one that is there.
func freshness(fresh bool) string {
	if fresh {
		return ""
	}
	return "0"
}

// clientObjects reads by a client; the apiserver answers from its cache.
type clientObjects struct {
	set    *client.Set
	mapper meta.ResettableRESTMapper
}

func newClientObjects(set *client.Set) clientObjects {
	return clientObjects{set, restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(set.Kube.Discovery()))}
}

// Find implements hostfn.Objects.
func (c clientObjects) Find(_ context.Context, gv schema.GroupVersion, kind, resource string) (hostfn.Resource, error) {
	gvk := gv.WithKind(kind)
	if kind == "" {
		var err error
		if gvk, err = c.mapper.KindFor(gv.WithResource(resource)); err != nil {
			return hostfn.Resource{}, err
		}
	}
	m, err := c.mapper.RESTMapping(gvk.GroupKind(), gv.Version)
	if err != nil {
		return hostfn.Resource{}, err
	}
	if resource != "" && m.Resource.Resource != resource {
		return hostfn.Resource{}, apierrors.NewNotFound(gv.WithResource(resource).GroupResource(), kind)
	}
	return hostfn.Resource{GroupVersionResource: m.Resource, Kind: gvk.Kind, Namespaced: m.Scope.Name() == meta.RESTScopeNameNamespace}, nil
}

// Get implements hostfn.Objects.
func (c clientObjects) Get(ctx context.Context, r hostfn.Resource, namespace, name string, fresh bool) (runtime.Object, string, error) {
	o, err := c.set.Dynamic.Resource(r.GroupVersionResource).Namespace(namespace).Get(ctx, name, metav1.GetOptions{ResourceVersion: freshness(fresh)})
	if apierrors.IsNotFound(err) {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", err
	}
	return o, o.GetResourceVersion(), nil
}

// List implements hostfn.Objects.
func (c clientObjects) List(ctx context.Context, r hostfn.Resource, s hostfn.Selection) (hostfn.Page, error) {
	l, err := c.set.Dynamic.Resource(r.GroupVersionResource).Namespace(s.Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: s.Labels.String(), FieldSelector: s.Fields.String(), Limit: int64(s.Limit), ResourceVersion: freshness(s.Fresh),
	})
	if err != nil {
		return hostfn.Page{}, err
	}
	page := hostfn.Page{ResourceVersion: l.GetResourceVersion(), More: l.GetContinue() != ""}
	for i := range l.Items {
		if s.Limit > 0 && i == s.Limit { // a list from the cache comes whole
			page.More = true
			break
		}
		page.Items = append(page.Items, &l.Items[i])
	}
	return page, nil
}

// chainAccess asks the server's own authorizers.
type chainAccess struct{ s *server }

// Review implements hostfn.Access.
func (c chainAccess) Review(ctx context.Context, spec authorizationv1.SubjectAccessReviewSpec) (authorizationv1.SubjectAccessReviewStatus, error) {
	if c.s.chain == nil {
		return authorizationv1.SubjectAccessReviewStatus{}, apierrors.NewServiceUnavailable("the apiserver is starting")
	}
	return authz.Review(ctx, c.s.chain, spec), nil
}

// clientAccess asks by a SubjectAccessReview.
type clientAccess struct{ kube kubernetes.Interface }

// Review implements hostfn.Access.
func (c clientAccess) Review(ctx context.Context, spec authorizationv1.SubjectAccessReviewSpec) (authorizationv1.SubjectAccessReviewStatus, error) {
	r, err := c.kube.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		return authorizationv1.SubjectAccessReviewStatus{}, fmt.Errorf("ask the authorizers: %w", err)
	}
	return r.Status, nil
}

// pluginEvents writes events in the names of plugins, in the background.
type pluginEvents struct {
	kube        kubernetes.Interface
	broadcaster record.EventBroadcaster

	mu        sync.Mutex
	recorders map[string]record.EventRecorder
}

func newPluginEvents(kube kubernetes.Interface) *pluginEvents {
	return &pluginEvents{kube: kube, broadcaster: record.NewBroadcaster(), recorders: map[string]record.EventRecorder{}}
}

// run writes until ctx ends.
func (p *pluginEvents) run(ctx context.Context) error {
	w := p.broadcaster.StartRecordingToSink(&typedv1.EventSinkImpl{Interface: p.kube.CoreV1().Events("")})
	<-ctx.Done()
	w.Stop()
	p.broadcaster.Shutdown()
	return nil
}

// Record implements hostfn.Events.
func (p *pluginEvents) Record(plugin string, about corev1.ObjectReference, kind, reason, message string) {
	p.record("plugin/"+plugin, about, kind, reason, message)
}

func (p *pluginEvents) record(source string, about corev1.ObjectReference, kind, reason, message string) {
	p.mu.Lock()
	r := p.recorders[source]
	if r == nil {
		r = p.broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: source})
		p.recorders[source] = r
	}
	p.mu.Unlock()
	r.Event(&about, kind, reason, message)
}

// configMapState keeps what plugins put in a ConfigMap each, in a namespace of their
// own, so that it is in every backup and shared by all processes of the control plane.
type configMapState struct{ kube kubernetes.Interface }

// stateLabel marks the ConfigMaps.
const stateLabel = "plugins.wasmplane.dev/state"

func stateName(plugin string) string {
	return manifest.StatePrefix + strings.ReplaceAll(plugin, "_", "..")
}

// Sync implements hostfn.StateStore.
func (c configMapState) Sync(ctx context.Context, plugin string, changes map[string][]byte) (map[string][]byte, error) {
	maps := c.kube.CoreV1().ConfigMaps(manifest.StateNamespace)
	name := stateName(plugin)
	var kept map[string][]byte
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		cm, err := maps.Get(ctx, name, metav1.GetOptions{})
		absent := apierrors.IsNotFound(err)
		if absent {
			cm = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{stateLabel: "true"}}}
		} else if err != nil {
			return err
		}
		kept = cm.BinaryData
		if len(changes) == 0 {
			return nil
		}
		if cm.BinaryData == nil {
			cm.BinaryData = map[string][]byte{}
		}
		for k, v := range changes {
			if v == nil {
				delete(cm.BinaryData, k)
			} else {
				cm.BinaryData[k] = v
			}
		}
		kept = cm.BinaryData
		if absent {
			_, err = maps.Create(ctx, cm, metav1.CreateOptions{})
			if apierrors.IsAlreadyExists(err) {
				err = apierrors.NewConflict(corev1.Resource("configmaps"), name, err)
			}
			return err
		}
		_, err = maps.Update(ctx, cm, metav1.UpdateOptions{})
		return err
	})
	switch {
	case apierrors.IsForbidden(err) || apierrors.IsNotFound(err):
		return nil, fmt.Errorf("keep the state of plugin %q in configmap %s/%s: %w; the namespace and the right to get, create and update configmaps there come with wasmplane, another cluster needs them made (docs/plugins/hostcalls.md)",
			plugin, manifest.StateNamespace, name, err)
	case err != nil:
		return nil, fmt.Errorf("keep the state of plugin %q in configmap %s/%s: %w", plugin, manifest.StateNamespace, name, err)
	}
	return kept, nil
}

// secrets reads Secrets for fetching modules.
func secrets(kube kubernetes.Interface) func(ctx context.Context, namespace, name string) (map[string][]byte, error) {
	return func(ctx context.Context, namespace, name string) (map[string][]byte, error) {
		s, err := kube.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		return s.Data, nil
	}
}
