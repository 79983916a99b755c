// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/informers"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/process"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/site"
	"github.com/wasmplane/wasmplane/core/airgap/lending"
	"github.com/wasmplane/wasmplane/core/api"
	"github.com/wasmplane/wasmplane/core/apiserver/tunnel/podforward"
	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/client/trim"
	"github.com/wasmplane/wasmplane/core/pki"
	"github.com/wasmplane/wasmplane/core/registry/view"
	"github.com/wasmplane/wasmplane/core/run"
)

// base is what all parts of a server are built upon.
type base struct {
	site.Site
	contract  *api.Contract
	view      *view.View // of registries, which are made later
	local     *lateHandler
	internal  *client.Set // the server's own identity
	informers informers.SharedInformerFactory
	metrics   *prometheus.Registry
	spans     *process.Tracing
	follows   *follows
	lights    *lightServers
	shelf     *lending.Shelf // the archives that other machines may take over
	group     *run.Group     // the parts of this process, added once all are made
}

// serverUser is the server towards itself: its informers, its admission plugins
// and the bootstrap of a new cluster, before there are any roles. No component
// that could also run by itself has it.
var serverUser = &user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated}}

func newBase(at site.Site) (base, error) {
	b := base{
		Site: at, local: &lateHandler{}, metrics: prometheus.NewRegistry(),
		group:   &run.Group{Logger: at.Options.Logger, Progress: at.Options.Progress, StopTimeout: stopTimeout},
		lights:  &lightServers{},
		follows: &follows{log: at.Options.Logger, note: at.Options.Note},
		shelf:   &lending.Shelf{Dir: at.Options.Dir.Airgap(), Log: at.Options.Logger},
	}
	if err := b.Options.KeepAttempts(b.metrics, nil); err != nil {
		return base{}, err
	}
	var err error
	if b.spans, err = process.NewTracing(at.Options); err != nil {
		return base{}, err
	}
	if err := api.EnableFeatures(at.Options.Config.FeatureGates); err != nil {
		return base{}, err
	}
	if b.contract, err = api.New(); err != nil {
		return base{}, err
	}
	keepEvents(b.contract, time.Duration(at.Options.Config.APIServer.EventTTL))
	b.view = view.New(b.contract)
	if b.internal, err = client.New(client.InMemory(b.local, serverUser, process.Parts.APIServer.Name)); err != nil {
		return base{}, err
	}
	if at.Options.Config.APIServer.PodsThroughKubelets(at.Options.Config.Node.Mode) {
		pair, err := b.Authority.Client(pki.KubeletClient())
		if err != nil {
			return base{}, err
		}
		b.Options.ToPods = podforward.New(podforward.Config{
			API: b.internal.Kube, Pods: at.Options.Config.Cluster.PodNetworks(), Kubelets: b.kubeletClient(pair),
		}).Through
	}
	b.informers = informers.NewSharedInformerFactoryWithOptions(b.internal.Kube, 0, informers.WithTransform(trim.Server))
	return b, nil
}

// lateHandler lets clients of the server be made before the server is.
type lateHandler struct{ handler atomic.Pointer[http.Handler] }

func (l *lateHandler) use(h http.Handler) { l.handler.Store(&h) }

// ServeHTTP implements http.Handler.
func (l *lateHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h := l.handler.Load(); h != nil {
		(*h).ServeHTTP(w, r)
		return
	}
	http.Error(w, "the apiserver is starting", http.StatusServiceUnavailable)
}

// keepEvents makes Events expire; both groups' rows store the same objects.
func keepEvents(contract *api.Contract, ttl time.Duration) {
	for _, group := range []string{"", "events.k8s.io"} {
		if r, ok := contract.Resource(schema.GroupResource{Group: group, Resource: "events"}); ok {
			r.TTL = func(runtime.Object) time.Duration { return ttl }
		}
	}
}

// namespaceLabels answers plugins' namespaceSelectors.
func (b base) namespaceLabels(ctx context.Context, name string) (map[string]string, bool) {
	ns, err := b.informers.Core().V1().Namespaces().Lister().Get(name)
	if apierrors.IsNotFound(err) { // the informer may lag behind a namespace that was just made
		ns, err = b.internal.Kube.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	}
	if err != nil {
		return nil, false
	}
	return ns.Labels, true
}
