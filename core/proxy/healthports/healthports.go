// SPDX-License-Identifier: Apache-2.0

// Package healthports answers load balancers' probes of Services with externalTrafficPolicy: Local, a listener for each,
// and keeps how far the service proxy's table is behind what it should be, by which they, and the proxy's own health, judge it.
package healthports

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/run"
)

// Late is how long a change may wait before the proxy calls itself unhealthy, as upstream.
const Late = time.Minute

// Pulse is how far the table is behind.
type Pulse struct {
	Now func() time.Time // the clock

	mu sync.Mutex
	// waits is since when a change waits; writes, since when one does that is being written. Zero: none.
	waits, writes time.Time
	Updated       time.Time // when the table was written last
}

// Queued says that there is a change to write.
func (p *Pulse) Queued() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waits.IsZero() {
		p.waits = p.Now()
	}
}

// Begun says that what waited is being written. What comes from now on is of the next time.
func (p *Pulse) Begun() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.writes, p.waits = p.waits, time.Time{}
}

// Ended says that it was written, or that it waits on.
func (p *Pulse) Ended(written bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case written:
		p.Updated = p.Now()
	case !p.writes.IsZero():
		p.waits = p.writes
	case p.waits.IsZero():
		p.waits = p.Now()
	}
	p.writes = time.Time{}
}

// State is whether nothing waits for too long, and when something was written last.
func (p *Pulse) State() (healthy bool, updated, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now = p.Now()
	for _, since := range []time.Time{p.waits, p.writes} {
		if !since.IsZero() && now.Sub(since) >= Late {
			return false, p.Updated, now
		}
	}
	return true, now, now // as upstream: the time of the last change says nothing of one that has none
}

// Want is a Service of a load balancer that asks each node whether it has
// an endpoint (externalTrafficPolicy: Local).
type Want struct {
	Service types.NamespacedName
	Port    int32
	Local   int
}

// Ports answers load balancers' probes, one listener for each Service.
type Ports struct {
	log   *slog.Logger
	pulse *Pulse
	open  map[int32]*port
}

type port struct {
	service types.NamespacedName
	local   atomic.Int64
	pulse   *Pulse
	server  *http.Server
	done    <-chan error
}

// New opens nothing yet.
func New(log *slog.Logger, p *Pulse) *Ports {
	return &Ports{log: log, pulse: p, open: map[int32]*port{}}
}

// Sync opens and closes ports, and keeps counts. A port that cannot be opened is
// logged, and tried again at the next change.
func (h *Ports) Sync(ctx context.Context, wanted map[int32]*Want) {
	for number, p := range h.open {
		if w := wanted[number]; w == nil || w.Service != p.service {
			h.close(ctx, number)
		}
	}
	for number, w := range wanted {
		if h.open[number] == nil {
			p, err := h.listen(ctx, w)
			if err != nil {
				h.log.WarnContext(ctx, "cannot answer a load balancer's health checks", "kind", "Service", "namespace", w.Service.Namespace,
					"name", w.Service.Name, "error", err)
				continue
			}
			h.open[number] = p
		}
		h.open[number].local.Store(int64(w.Local))
	}
}

func (h *Ports) close(ctx context.Context, number int32) {
	p := h.open[number]
	delete(h.open, number)
	End(ctx, p.server)
	<-p.done
}

// End gives the answers that are on their way a second.
func End(ctx context.Context, s *http.Server) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if err := s.Shutdown(ctx); err != nil {
		_ = s.Close()
	}
}

// CloseAll ends all listeners.
func (h *Ports) CloseAll(ctx context.Context) {
	for number := range h.open {
		h.close(ctx, number)
	}
}

func (h *Ports) listen(ctx context.Context, w *Want) (*port, error) {
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", ":"+strconv.Itoa(int(w.Port)))
	if err != nil {
		return nil, fmt.Errorf("listen on health check node port %d: %w", w.Port, err)
	}
	p := &port{service: w.Service, pulse: h.pulse}
	p.server, p.done = Serve(l, p)
	return p, nil
}

// Serve ends when the server is shut down.
func Serve(l net.Listener, h http.Handler) (*http.Server, <-chan error) {
	s := &http.Server{
		Handler: h, ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 8 << 10,
	}
	return s, run.Go("proxy: health checks", func() error {
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return errors.Join(err, l.Close())
		}
		return nil
	})
}

// ServeHTTP answers in upstream's form.
func (p *port) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	local := p.local.Load()
	healthy, _, _ := p.pulse.State()
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.FormatInt(local, 10))
	if local == 0 || !healthy {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(map[string]any{ // a prober that went away needs no answer
		"service":             map[string]string{"namespace": p.service.Namespace, "name": p.service.Name},
		"localEndpoints":      local,
		"serviceProxyHealthy": healthy,
	})
}
