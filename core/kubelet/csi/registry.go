// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/wasmplane/wasmplane/core/kubelet/pluginwatch"
	"github.com/wasmplane/wasmplane/core/run"
)

// registry knows the drivers that have registered.
type registry struct {
	cfg     Config
	took    *prometheus.HistogramVec
	changed func() // called when a driver has come
	// announced is closed once there is a CSINode.
	announced chan struct{}

	mu      sync.Mutex
	drivers map[string]*driver // by name
	holder  map[string]string  // name: the socket by which it registered
}

func newRegistry(cfg Config, changed func()) *registry {
	return &registry{
		cfg: cfg, took: operations(), changed: changed, announced: make(chan struct{}), drivers: map[string]*driver{},
		holder: map[string]string{},
	}
}

// driver by its name.
func (r *registry) driver(name string) (*driver, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if d := r.drivers[name]; d != nil {
		return d, nil
	}
	return nil, &missing{name}
}

// missing is a driver that has not registered; in upstream's words, by which people look.
type missing struct{ name string }

func (m *missing) Error() string {
	return fmt.Sprintf("driver name %s not found in the list of registered CSI drivers of this node: see whether the driver's pod runs here", m.name)
}

func isMissing(err error) bool {
	_, ok := errors.AsType[*missing](err)
	return ok
}

// Register implements pluginwatch.Handler.
func (n *Node) Register(ctx context.Context, p pluginwatch.Plugin) error {
	r := n.registry
	if !run.Await(ctx, r.announced) {
		return ctx.Err()
	}
	d, err := r.examine(p)
	if err != nil {
		return err
	}
	if err := r.accept(ctx, d, p.Socket); err != nil {
		return err
	}
	r.changed()
	return nil
}

// Withdraw implements pluginwatch.Handler.
func (n *Node) Withdraw(ctx context.Context, p pluginwatch.Plugin) {
	n.registry.withdraw(ctx, p.Socket)
}

// driverName is what may be a driver's name: it becomes the name of a directory.
var driverName = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`)

// examine looks at what a plugin says of itself.
func (r *registry) examine(p pluginwatch.Plugin) (*driver, error) {
	if !driverName.MatchString(p.Name) {
		return nil, fmt.Errorf("%q is no name of a CSI driver: letters, digits, dots, dashes, at most 63", p.Name)
	}
	one := func(v string) bool { v = strings.TrimPrefix(v, "v"); return v == "1" || strings.HasPrefix(v, "1.") }
	if !slices.ContainsFunc(p.Versions, one) {
		return nil, fmt.Errorf("CSI driver %s supports the versions %v, and this node versions 1.x", p.Name, p.Versions)
	}
	return &driver{name: p.Name, endpoint: p.Endpoint, timeout: r.cfg.Timeout, took: r.took}, nil
}

// accept learns what the driver is on this node and makes it known.
func (r *registry) accept(ctx context.Context, d *driver, path string) error {
	got, err := ask(ctx, d, "NodeGetInfo", func(ctx context.Context, c spec.NodeClient) (*spec.NodeGetInfoResponse, error) {
		return c.NodeGetInfo(ctx, &spec.NodeGetInfoRequest{})
	})
	if err != nil {
		return err
	}
	if got.GetNodeId() == "" {
		return fmt.Errorf("driver %s: NodeGetInfo: node_id is empty", d.name)
	}
	if err := r.publish(ctx, d.name, got); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	// The one that registered last counts, as upstream: a driver that is rolled over has two for a while.
	r.drivers[d.name], r.holder[d.name] = d, path
	return nil
}

// withdraw forgets the driver whose socket is gone.
func (r *registry) withdraw(ctx context.Context, path string) {
	r.mu.Lock()
	name := ""
	for n, p := range r.holder {
		if p == path {
			name = n
		}
	}
	delete(r.drivers, name)
	delete(r.holder, name)
	r.mu.Unlock()
	if name == "" {
		return
	}
	r.cfg.Logger.InfoContext(ctx, "CSI driver unregistered", "driver", name, "socket", path)
	if err := r.retract(ctx, name); err != nil && ctx.Err() == nil {
		r.cfg.Logger.WarnContext(ctx, "a CSI driver that is gone cannot be taken off the CSINode", "driver", name, "error", err)
	}
}
