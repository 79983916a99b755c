// SPDX-License-Identifier: Apache-2.0

// Package balance lets the clients of a worker reach any API server that answers. A Balancer
// is a dialer: it knows the addresses behind the `kubernetes` Service, keeps them in a file,
// so that a machine that comes back finds a server though the one it joined by is gone for
// good, and connects to the first that answers.
//
// It opens no port. Connections of a server that died end, and are made anew to another. So do those of
// one that is there and does not answer, as a process that is stopped or whose disk hangs: the system takes connections and
// keeps them alive for it. A connection on which nothing comes is held against such a server's answer to a new one.
package balance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	discoveryinformers "k8s.io/client-go/informers/discovery/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/wasmplane/wasmplane/core/run/atomicfile"
)

const (
	// attempt bounds how long one server may take to accept a connection: a machine that is
	// switched off doesn't even refuse.
	attempt = 3 * time.Second
	// most servers that are kept: a cluster has five.
	most = 32
)

// Config of a Balancer.
type Config struct {
	// File keeps the addresses; First is the one that is known without it, HOST:PORT.
	File, First string
	Log         *slog.Logger
	// Dial connects to one address; nil: by TCP.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Balancer knows the servers.
type Balancer struct {
	cfg Config

	mu      sync.Mutex
	servers []string // the one that answered last comes first, one that was silent last
	silent  int      // how often in a row a server was; whoever is slow himself finds all of them so
}

// New reads the file. One that is missing or damaged leaves Config.First.
func New(c Config) *Balancer {
	if c.Dial == nil {
		c.Dial = (&net.Dialer{Timeout: attempt, KeepAlive: 15 * time.Second}).DialContext
	}
	b := &Balancer{cfg: c}
	var kept []string
	data, err := os.ReadFile(c.File)
	if err == nil {
		err = json.Unmarshal(data, &kept)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		c.Log.Warn("the list of servers cannot be read; it is made anew", "file", c.File, "error", err)
	}
	b.use(kept)
	return b
}

// use takes on a list: servers that are known keep their order, the one that was
// joined by stays as the last resort.
func (b *Balancer) use(found []string) (changed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var next []string
	for _, s := range b.servers {
		if slices.Contains(found, s) {
			next = append(next, s)
		}
	}
	for _, s := range append(found, b.cfg.First) {
		if _, _, err := net.SplitHostPort(s); err == nil && !slices.Contains(next, s) && len(next) < most {
			next = append(next, s)
		}
	}
	changed = !slices.Equal(slices.Sorted(slices.Values(b.servers)), slices.Sorted(slices.Values(next)))
	b.servers = next
	return changed
}

// Servers are the addresses in the order in which they are tried.
func (b *Balancer) Servers() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.servers)
}

// DialContext connects to a server that accepts, whichever address is asked for. One that then says nothing loses the
// connection, and its turn. It is for rest.Config.Dial: whoever connects speaks first, by TLS.
func (b *Balancer) DialContext(ctx context.Context, network, _ string) (net.Conn, error) {
	var errs []error
	for _, s := range b.Servers() {
		one, cancel := context.WithTimeout(ctx, attempt)
		conn, err := b.cfg.Dial(one, network, s)
		cancel()
		if err == nil {
			return b.watch(ctx, conn, network, s), nil
		}
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
		b.last(s)
	}
	return nil, fmt.Errorf("no server of the cluster can be reached: %w", errors.Join(errs...))
}

// prefer has a server that answers be asked first.
func (b *Balancer) prefer(server string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.silent = 0
	if i := slices.Index(b.servers, server); i > 0 {
		b.servers = slices.Insert(slices.Delete(b.servers, i, i+1), 0, server)
	}
}

// Follow keeps the list in step with the `kubernetes` Service until ctx ends.
func (b *Balancer) Follow(ctx context.Context, kube kubernetes.Interface) error {
	informer := discoveryinformers.NewFilteredEndpointSliceInformer(kube, metav1.NamespaceDefault, 0, cache.Indexers{},
		func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, "kubernetes").String()
		})
	seen := func(o any) {
		if s, ok := o.(*discoveryv1.EndpointSlice); ok {
			b.learn(ctx, s)
		}
	}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: seen, UpdateFunc: func(_, o any) { seen(o) }}); err != nil {
		return fmt.Errorf("watch the addresses of the servers: %w", err)
	}
	informer.RunWithContext(ctx)
	return nil
}

// learn takes on the servers that s names. None at all is no news: there is one, which said so.
func (b *Balancer) learn(ctx context.Context, s *discoveryv1.EndpointSlice) {
	var found []string
	for _, e := range s.Endpoints {
		for _, a := range e.Addresses {
			for _, p := range s.Ports {
				if ip := net.ParseIP(a); ip != nil && !ip.IsLoopback() && p.Port != nil {
					found = append(found, net.JoinHostPort(a, strconv.Itoa(int(*p.Port))))
				}
			}
		}
	}
	if len(found) == 0 || !b.use(found) {
		return
	}
	b.cfg.Log.InfoContext(ctx, "the cluster's servers are others now", "servers", b.Servers())
	data, err := json.Marshal(b.Servers())
	if err == nil {
		err = atomicfile.Write(b.cfg.File, append(data, '\n'), 0o600)
	}
	if err != nil {
		b.cfg.Log.WarnContext(ctx, "the list of servers could not be kept; after a restart this machine knows the old ones", "file", b.cfg.File, "error", err)
	}
}
