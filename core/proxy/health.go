// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/run"
)

// healthWant is a Service of a load balancer that asks each node whether it has
// an endpoint (externalTrafficPolicy: Local).
type healthWant struct {
	service types.NamespacedName
	port    int32
	local   int
}

// healthPorts answer load balancers' probes, one listener for each Service.
type healthPorts struct {
	log   *slog.Logger
	pulse *pulse
	open  map[int32]*healthPort
}

type healthPort struct {
	service types.NamespacedName
	local   atomic.Int64
	pulse   *pulse
	server  *http.Server
	done    <-chan error
}

func newHealthPorts(log *slog.Logger, p *pulse) *healthPorts {
	return &healthPorts{log: log, pulse: p, open: map[int32]*healthPort{}}
}

// sync opens and closes ports, and keeps counts. A port that cannot be opened is
// logged, and tried again at the next change.
func (h *healthPorts) sync(ctx context.Context, wanted map[int32]*healthWant) {
	for port, p := range h.open {
		if w := wanted[port]; w == nil || w.service != p.service {
			h.close(ctx, port)
		}
	}
	for port, w := range wanted {
		if h.open[port] == nil {
			p, err := h.listen(ctx, w)
			if err != nil {
				h.log.WarnContext(ctx, "cannot answer a load balancer's health checks", "kind", "Service", "namespace", w.service.Namespace,
					"name", w.service.Name, "error", err)
				continue
			}
			h.open[port] = p
		}
		h.open[port].local.Store(int64(w.local))
	}
}

func (h *healthPorts) close(ctx context.Context, port int32) {
	p := h.open[port]
	delete(h.open, port)
	end(ctx, p.server)
	<-p.done
}

// end gives the answers that are on their way a second.
func end(ctx context.Context, s *http.Server) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if err := s.Shutdown(ctx); err != nil {
		_ = s.Close()
	}
}

func (h *healthPorts) closeAll(ctx context.Context) {
	for port := range h.open {
		h.close(ctx, port)
	}
}

func (h *healthPorts) listen(ctx context.Context, w *healthWant) (*healthPort, error) {
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", ":"+strconv.Itoa(int(w.port)))
	if err != nil {
		return nil, fmt.Errorf("listen on health check node port %d: %w", w.port, err)
	}
	p := &healthPort{service: w.service, pulse: h.pulse}
	p.server, p.done = serve(l, p)
	return p, nil
}

// serve ends when the server is shut down.
func serve(l net.Listener, h http.Handler) (*http.Server, <-chan error) {
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
func (p *healthPort) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	local := p.local.Load()
	healthy, _, _ := p.pulse.state()
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
