// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"net/http"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	oteltrace "go.opentelemetry.io/otel/trace"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"

	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/pki"
	"github.com/wasmplane/wasmplane/core/run/leader"
)

// Component is what a part of the cluster is given where it runs.
type Component struct {
	Options    Options
	Config     *rest.Config // the component's own identity
	Identities client.Identities
	Tracer     oteltrace.Tracer
	Plugins    *Plugins
	Metrics    *prometheus.Registry

	// Of a process of its own.
	dynamic dynamic.Interface
	kube    kubernetes.Interface
	spans   *Tracing

	watch      *leader.Watch // of a process of its own; nil = nobody asks
	catchingUp atomic.Bool   // it works, and has not seen the cluster yet
	scheduled  atomic.Pointer[corelisters.PodLister]
}

// SetPods says which pods the scheduler of this process knows; nil while it does not lead.
func (c *Component) SetPods(l corelisters.PodLister) { c.scheduled.Store(&l) }

// pods that the scheduler of this process knows.
func (c *Component) pods() []*corev1.Pod {
	l := c.scheduled.Load()
	if l == nil || *l == nil {
		return nil
	}
	all, _ := (*l).List(labels.Everything()) // an informer's lister has no errors
	return all
}

// Holder is this process among those that compete for a lease. Where it has the
// data directory to itself, the directory's identity stands for it: after a kill -9 the
// next process there need not wait until the lease of the dead one has run out. On a
// shared store the machine's boot goes with it, since a clone has a copy of the directory.
func (c *Component) Holder() (string, error) {
	if c.spans != nil {
		return hostname() + "_" + string(uuid.NewUUID()), nil
	}
	return Identity(c.Options)
}

// Identity names this server among those that share a cluster, for people by its host first.
func Identity(o Options) (string, error) { return IdentityOf(o, hostname()) }

// IdentityOf is Identity, for people by another name.
func IdentityOf(o Options, name string) (string, error) {
	identity := o.Dir.Identity
	if len(o.Config.Store.Endpoints) > 0 || o.Config.Join.Light {
		identity = o.Dir.IdentityHere
	}
	id, err := identity()
	if err != nil {
		return "", err
	}
	return name + "_" + id, nil
}

// hostname is for people to recognize a process by; nothing depends on it.
func hostname() string {
	if host, err := os.Hostname(); err == nil {
		return host
	}
	return "unknown"
}

// Lead runs work while this process leads the component's election. follows is called
// when another process is seen to lead; it may be nil.
func (c *Component) Lead(ctx context.Context, kube kubernetes.Interface, name string, follows func(),
	work func(context.Context) error,
) error {
	if c.Options.Lease != "" {
		name = c.Options.Lease
	}
	holder, err := c.Holder()
	if err != nil {
		return err
	}
	lease := c.Options.Config.LeaderElection
	return leader.Election{
		Client: kube, Namespace: "kube-system", Name: name, Identity: holder, Logger: c.Options.Logger, Watch: c.watch, Follows: follows,
		LeaseDuration: time.Duration(lease.LeaseDuration), Quick: time.Duration(lease.QuickLeaseDuration),
	}.Stand(ctx, work)
}

// SetCatchingUp has the check of readiness fail until the component has seen the cluster.
func (c *Component) SetCatchingUp(yes bool) { c.catchingUp.Store(yes) }

// Local gives out the parts that run in the server's own process. They reach the API
// through Handler, each under its own identity.
type Local struct {
	Options Options
	Handler http.Handler
	Tracing *Tracing
	Plugins *Plugins
	Metrics *prometheus.Registry
}

// Component is a part under the identity of the table.
func (l Local) Component(ctx context.Context, p Part) (*Component, error) {
	return l.As(ctx, p, p.Identity(l.Options.Config))
}

// As is a part under another identity than the table's.
func (l Local) As(ctx context.Context, p Part, as pki.Identity) (*Component, error) {
	tracer, err := l.Tracing.Tracer(ctx, p.Name)
	if err != nil {
		return nil, err
	}
	id := &user.DefaultInfo{Name: as.User, Groups: append(slices.Clone(as.Groups), user.AllAuthenticated)}
	return &Component{
		Options: l.Options, Config: client.InMemory(l.Handler, id, p.Name),
		Identities: client.InMemoryIdentities{Handler: l.Handler},
		Tracer:     tracer, Plugins: l.Plugins, Metrics: l.Metrics,
	}, nil
}
