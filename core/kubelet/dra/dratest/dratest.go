// SPDX-License-Identifier: Apache-2.0

// Package dratest is a driver of devices for tests, made with the library with which real ones
// are made. A device is an environment variable of the containers that use it.
package dratest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

// Config of a driver.
type Config struct {
	// Name of the driver, and the node on which it runs.
	Name, Node string
	// Kubelet is the kubelet's directory: there it registers.
	Kubelet string
	// CDI is the directory for the description of its devices; "" = none is written.
	CDI     string
	Devices []string
	Client  kubernetes.Interface
	// V1beta1: the driver speaks the older version alone.
	V1beta1 bool
	// Prepare, where it is set, is asked before a claim is prepared, and Unprepare before that is taken back.
	Prepare, Unprepare func(ctx context.Context, claim string) error
	// Health, where it is set, is what the driver reports of its devices, until it is closed; OlderHealth: by the older version alone.
	Health      <-chan kubeletplugin.DeviceHealthReport
	OlderHealth bool
}

// Driver that runs.
type Driver struct {
	Config
	helper *kubeletplugin.Helper
	mu     sync.Mutex
	ready  map[types.UID]string
}

// Start registers the driver and publishes its devices.
func Start(ctx context.Context, cfg Config) (*Driver, error) {
	d := &Driver{Config: cfg, ready: map[types.UID]string{}}
	if err := d.describe(); err != nil {
		return nil, err
	}
	data := filepath.Join(cfg.Kubelet, "plugins", cfg.Name)
	if err := os.MkdirAll(data, 0o750); err != nil {
		return nil, fmt.Errorf("make the driver's directory: %w", err)
	}
	helper, err := kubeletplugin.Start(ctx, d, kubeletplugin.DriverName(cfg.Name), kubeletplugin.NodeName(cfg.Node),
		kubeletplugin.KubeClient(cfg.Client),
		kubeletplugin.RegistrarDirectoryPath(filepath.Join(cfg.Kubelet, "plugins_registry")), kubeletplugin.PluginDataDirectoryPath(data),
		kubeletplugin.NodeV1(!cfg.V1beta1), kubeletplugin.NodeV1beta1(cfg.V1beta1), kubeletplugin.Serialize(false),
		kubeletplugin.HealthService(cfg.Health != nil), kubeletplugin.HealthV1(!cfg.OlderHealth), kubeletplugin.HealthV1alpha1(cfg.OlderHealth))
	if err != nil {
		return nil, fmt.Errorf("start the driver: %w", err)
	}
	d.helper = helper
	offer := resourceslice.Slice{}
	for _, name := range cfg.Devices {
		offer.Devices = append(offer.Devices, resourcev1.Device{Name: name})
	}
	err = helper.PublishResources(ctx,
		resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{cfg.Node: {Slices: []resourceslice.Slice{offer}}}})
	if err != nil {
		helper.Stop()
		return nil, fmt.Errorf("publish the driver's devices: %w", err)
	}
	return d, nil
}

// Stop ends the driver: its sockets go.
func (d *Driver) Stop() {
	d.helper.Stop()
	if d.CDI != "" {
		_ = os.Remove(d.description()) // whoever starts the next one finds it replaced
	}
}

// Prepared are the claims that are.
func (d *Driver) Prepared() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Sorted(maps.Values(d.ready))
}

func (d *Driver) description() string { return filepath.Join(d.CDI, d.Name+".json") }

// describe writes what the runtime adds for each device.
func (d *Driver) describe() error {
	if d.CDI == "" {
		return nil
	}
	type edits struct {
		Env []string `json:"env"`
	}
	type device struct {
		Name           string `json:"name"`
		ContainerEdits edits  `json:"containerEdits"`
	}
	var devices []device
	for _, name := range d.Devices {
		devices = append(devices, device{name, edits{[]string{"DEVICE_" + name + "=" + name}}})
	}
	data, err := json.Marshal(map[string]any{"cdiVersion": "0.5.0", "kind": d.Name + "/device", "devices": devices})
	if err != nil {
		return fmt.Errorf("describe the devices: %w", err)
	}
	if err := os.MkdirAll(d.CDI, 0o755); err != nil { //nolint:gosec // the runtime reads there
		return fmt.Errorf("describe the devices: %w", err)
	}
	return os.WriteFile(d.description(), data, 0o644) //nolint:gosec // so does it
}

// PrepareResourceClaims implements kubeletplugin.DRAPlugin.
func (d *Driver) PrepareResourceClaims(ctx context.Context,
	claims []*resourcev1.ResourceClaim,
) (map[types.UID]kubeletplugin.PrepareResult, error) {
	out := map[types.UID]kubeletplugin.PrepareResult{}
	for _, c := range claims {
		if d.Prepare != nil {
			if err := d.Prepare(ctx, c.Name); err != nil {
				out[c.UID] = kubeletplugin.PrepareResult{Err: err}
				continue
			}
		}
		var result kubeletplugin.PrepareResult
		for _, r := range c.Status.Allocation.Devices.Results {
			if r.Driver == d.Name {
				result.Devices = append(result.Devices, kubeletplugin.Device{
					Requests: []string{resourceclaim.BaseRequestRef(r.Request)}, PoolName: r.Pool, DeviceName: r.Device,
					CDIDeviceIDs: []string{d.Name + "/device=" + r.Device},
				})
			}
		}
		d.mu.Lock()
		d.ready[c.UID] = c.Name
		d.mu.Unlock()
		out[c.UID] = result
	}
	return out, nil
}

// UnprepareResourceClaims implements kubeletplugin.DRAPlugin.
func (d *Driver) UnprepareResourceClaims(ctx context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	out := map[types.UID]error{}
	for _, c := range claims {
		out[c.UID] = nil
		if d.Unprepare != nil {
			if out[c.UID] = d.Unprepare(ctx, c.Name); out[c.UID] != nil {
				continue
			}
		}
		d.mu.Lock()
		delete(d.ready, c.UID)
		d.mu.Unlock()
	}
	return out, nil
}

// HandleError implements kubeletplugin.DRAPlugin. What cannot be published is tried again.
func (*Driver) HandleError(context.Context, error, string) {}

// WatchHealthStatus implements kubeletplugin.DRAPlugin.
func (d *Driver) WatchHealthStatus(ctx context.Context, reports chan<- kubeletplugin.DeviceHealthReport) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case r, ok := <-d.Health:
			if !ok {
				return nil
			}
			select {
			case <-ctx.Done():
				return nil
			case reports <- r:
			}
		}
	}
}

// Serve runs a driver until ctx ends, and says on out that it runs.
func Serve(ctx context.Context, cfg Config, out io.Writer) error {
	d, err := Start(ctx, cfg)
	if err != nil {
		return err
	}
	defer d.Stop()
	fmt.Fprintln(out, "the driver runs") //nolint:errcheck // a test waits for it
	<-ctx.Done()
	return nil
}
