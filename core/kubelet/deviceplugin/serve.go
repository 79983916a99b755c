// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/wasmplane/wasmplane/core/kubelet/allot"
	"github.com/wasmplane/wasmplane/core/kubelet/pluginwatch"
	"github.com/wasmplane/wasmplane/core/run"
)

// door is the kubelet's socket, at which plugins register. One that sees it made anew registers again.
type door struct {
	api.UnimplementedRegistrationServer
	manager *Manager
}

// Run takes plugins until ctx ends.
func (m *Manager) Run(ctx context.Context) error {
	const most = 64 << 10 // of a request: a name, an endpoint
	serving := run.Go("device plugins", func() error {
		return pluginwatch.Serve(ctx, filepath.Join(m.dir(), "kubelet.sock"), func(s *grpc.Server) {
			api.RegisterRegistrationServer(s, &door{manager: m})
		}, grpc.MaxRecvMsgSize(most))
	})
	tick := time.NewTicker(max(m.cfg.Forget/10, time.Millisecond))
	defer tick.Stop()
	defer m.stopAll()
	for {
		select {
		case err := <-serving:
			return err
		case <-tick.C:
			m.forget()
		}
	}
}

// Register implements the kubelet's part of the API.
func (d *door) Register(ctx context.Context, r *api.RegisterRequest) (*api.Empty, error) {
	endpoint := filepath.Join(d.manager.dir(), filepath.Base(r.GetEndpoint()))
	err := examine(r.GetResourceName(), endpoint, []string{r.GetVersion()})
	if err == nil && (r.GetEndpoint() != filepath.Base(endpoint) || r.GetEndpoint() == "..") {
		err = fmt.Errorf("the plugin of %s has the endpoint %q: expected the name of a socket in this folder", r.GetResourceName(),
			r.GetEndpoint())
	}
	if err == nil {
		err = d.manager.take(ctx, r.GetResourceName(), endpoint, "")
	}
	if err != nil {
		d.manager.cfg.Logger.WarnContext(ctx, "a device plugin cannot register", "resource", r.GetResourceName(), "error", err)
		return nil, err
	}
	return &api.Empty{}, nil
}

// take has a plugin followed, in the place of the one that had its resource. A plugin that does not say how it works is not
// taken, and hears why.
func (m *Manager) take(ctx context.Context, res, endpoint, socket string) error {
	m.mu.Lock()
	full := m.full(res)
	m.mu.Unlock()
	if full {
		return errMany
	}
	options, err := m.optionsOf(ctx, endpoint)
	if err != nil {
		return err
	}
	m.mu.Lock()
	if m.full(res) {
		m.mu.Unlock()
		return errMany
	}
	former, p := m.resources[res], m.newPlugin(res)
	if former != nil {
		p.devices, p.turn = former.devices, former.turn
	}
	p.endpoint, p.socket, p.options = endpoint, socket, options
	// The watch outlives the call that begins it.
	watch, stop := context.WithCancel(context.WithoutCancel(ctx))
	p.stop = stop
	m.resources[res] = p
	m.mu.Unlock()
	if former != nil && former.stop != nil {
		former.stop()
	}
	m.cfg.Logger.InfoContext(ctx, "device plugin registered", "resource", res, "endpoint", endpoint)
	m.watches.Go("device plugin", func() {
		defer stop()
		err := m.watch(watch, p)
		m.broken(p, err)
	})
	return nil
}

// full reports whether a plugin of the resource has no place. Lock held.
func (m *Manager) full(res string) bool {
	return m.stopped || m.resources[res] == nil && len(m.resources) >= mostResources
}

func (m *Manager) optionsOf(ctx context.Context, endpoint string) (*api.DevicePluginOptions, error) {
	conn, err := pluginwatch.Connect(endpoint)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ctx, cancel := m.cfg.WithTimeout(ctx, m.cfg.Timeout)
	defer cancel()
	options, err := api.NewDevicePluginClient(conn).GetDevicePluginOptions(ctx, &api.Empty{}, grpc.WaitForReady(true))
	if err != nil {
		return nil, fmt.Errorf("failed to get device plugin options: %w", err)
	}
	return options, nil
}

// stopAll ends all watches, and waits for them.
func (m *Manager) stopAll() {
	m.mu.Lock()
	m.stopped = true
	for _, p := range m.resources {
		if p.stop != nil {
			p.stop()
		}
	}
	m.mu.Unlock()
	m.watches.Wait()
}

// watch takes what a plugin says of its devices until that ends.
func (m *Manager) watch(ctx context.Context, p *plugin) error {
	const most = 4 << 20 // of a list of devices
	conn, err := pluginwatch.Connect(p.endpoint, grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(most)))
	if err != nil {
		return err
	}
	defer conn.Close()
	stream, err := api.NewDevicePluginClient(conn).ListAndWatch(ctx, &api.Empty{})
	if err != nil {
		return fmt.Errorf("list devices: %w", err)
	}
	err = pluginwatch.Each(ctx, stream.Recv, func(list *api.ListAndWatchResponse) error { return m.listed(p, list.GetDevices()) })
	return fmt.Errorf("list devices: %w", err)
}

// listed takes a plugin's new list.
func (m *Manager) listed(p *plugin, list []*api.Device) error {
	if len(list) > mostDevices {
		return fmt.Errorf("it lists %d devices, and a node takes %d of a resource", len(list), mostDevices)
	}
	devices := map[string]device{}
	for _, d := range list {
		if id := d.GetID(); id == "" || len(id) > longestID {
			return fmt.Errorf("it lists a device with the ID %q: expected 1 to %d bytes", id, longestID)
		}
		var nodes allot.Nodes
		for _, n := range d.GetTopology().GetNodes() {
			if id := n.GetID(); id >= 0 && id < allot.MostNodes {
				nodes |= allot.NodesOf(int(id))
			}
		}
		devices[d.GetID()] = device{d.GetHealth() == api.Healthy, nodes}
	}
	m.mu.Lock()
	current := m.resources[p.resource] == p
	if current {
		m.change(p.resource, func() { p.devices, p.gone = devices, time.Time{} })
		if err := m.save(); err != nil {
			m.cfg.Logger.Warn("which devices there are cannot be written down", "resource", p.resource, "error", err)
		}
	}
	m.mu.Unlock()
	if current {
		m.cfg.Changed()
	}
	return nil
}

// broken has no device of a plugin healthy that is gone.
func (m *Manager) broken(p *plugin, err error) {
	m.mu.Lock()
	current := m.resources[p.resource] == p
	if current {
		p.stop = nil
		m.change(p.resource, func() {
			p.gone = time.Now()
			for id := range p.devices {
				p.devices[id] = device{nodes: p.devices[id].nodes}
			}
		})
	}
	m.mu.Unlock()
	if current {
		m.cfg.Logger.Warn("device plugin gone; its devices are given to nobody until it registers again", "resource", p.resource, "error", err)
		m.cfg.Changed()
	}
}

// forget drops resources whose plugins have not come back.
func (m *Manager) forget() {
	m.mu.Lock()
	changed := false
	for name, p := range m.resources {
		if !p.gone.IsZero() && p.stop == nil && time.Since(p.gone) > m.cfg.Forget {
			delete(m.resources, name)
			changed = true
		}
	}
	if changed {
		if err := m.save(); err != nil {
			m.cfg.Logger.Warn("which devices there are cannot be written down", "error", err)
		}
	}
	m.mu.Unlock()
	if changed {
		m.cfg.Changed()
	}
}

// client of a plugin.
type client = api.DevicePluginClient

// call makes one call of a plugin, within its deadline. What fails is a Refusal.
func call[A any](ctx context.Context, m *Manager, p *plugin, what string,
	do func(context.Context, client) (A, error),
) (answer A, err error) {
	conn, err := pluginwatch.Connect(p.endpoint)
	if err != nil {
		return answer, err
	}
	defer conn.Close()
	bounded, cancel := m.cfg.WithTimeout(ctx, m.cfg.Timeout)
	defer cancel()
	answer, err = do(bounded, api.NewDevicePluginClient(conn))
	if err != nil && ctx.Err() == nil {
		return answer, refuse("%s failed due to the plugin of %s: %v, which is unexpected", what, p.resource, err)
	}
	return answer, err
}
