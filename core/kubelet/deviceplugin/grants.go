// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/wasmplane/wasmplane/core/run/atomicfile"
)

// key is whose devices they are, and of what.
type key struct {
	Pod       types.UID
	Container string
	Resource  string
}

// grant is the devices that a container has of one resource, and what it gets with them.
type grant struct {
	IDs     []string
	Env     map[string]string `json:",omitempty"`
	Mounts  []*cri.Mount      `json:",omitempty"`
	Devices []*cri.Device     `json:",omitempty"`
	Notes   map[string]string `json:",omitempty"`
	CDI     []string          `json:",omitempty"`
}

func grantOf(ids []string, r *api.ContainerAllocateResponse) (*grant, error) {
	g := &grant{IDs: ids, Env: r.GetEnvs(), Notes: r.GetAnnotations()}
	for _, x := range r.GetMounts() {
		if !filepath.IsAbs(x.GetContainerPath()) || !filepath.IsAbs(x.GetHostPath()) {
			return nil, fmt.Errorf("a mount from %q to %q: expected absolute paths", x.GetHostPath(), x.GetContainerPath())
		}
		g.Mounts = append(g.Mounts, &cri.Mount{ContainerPath: x.GetContainerPath(), HostPath: x.GetHostPath(), Readonly: x.GetReadOnly()})
	}
	for _, x := range r.GetDevices() {
		if !filepath.IsAbs(x.GetContainerPath()) || !filepath.IsAbs(x.GetHostPath()) {
			return nil, fmt.Errorf("a device from %q to %q: expected absolute paths", x.GetHostPath(), x.GetContainerPath())
		}
		g.Devices = append(g.Devices, &cri.Device{
			ContainerPath: x.GetContainerPath(), HostPath: x.GetHostPath(), Permissions: x.GetPermissions(),
		})
	}
	for _, x := range r.GetCdiDevices() {
		g.CDI = append(g.CDI, x.GetName())
	}
	return g, nil
}

// entry is a row of the table, as it is written down.
type entry struct {
	Key   key
	Grant *grant
}

// table of what is given.
type table []entry

func (t table) get(k key) *grant {
	for _, e := range t {
		if e.Key == k {
			return e.Grant
		}
	}
	return nil
}

// of are the devices of a resource that a container has; without its name, all of the pod's.
func (t table) of(pod types.UID, container, resource string) map[string]bool {
	out := map[string]bool{}
	for _, e := range t {
		if e.Key.Pod == pod && e.Key.Resource == resource && (container == "" || e.Key.Container == container) {
			for _, id := range e.Grant.IDs {
				out[id] = true
			}
		}
	}
	return out
}

func (t *table) put(k key, g *grant) { *t = append(*t, entry{k, g}) }

func (t *table) drop(k key) { *t = slices.DeleteFunc(*t, func(e entry) bool { return e.Key == k }) }

// retain reports whether anything went.
func (t *table) retain(holds func(types.UID) bool) bool {
	before := len(*t)
	*t = slices.DeleteFunc(*t, func(e entry) bool { return !holds(e.Key.Pod) })
	return len(*t) != before
}

// taken are the devices of a resource that somebody has.
func (t table) taken(resource string) map[string]bool {
	out := map[string]bool{}
	for _, e := range t {
		if e.Key.Resource == resource {
			for _, id := range e.Grant.IDs {
				out[id] = true
			}
		}
	}
	return out
}

// Equip adds to a container's configuration what comes with its devices. A plugin that
// asked for it is called before each start of the container.
func (m *Manager) Equip(ctx context.Context, uid types.UID, container string, cfg *cri.ContainerConfig) error {
	m.mu.Lock()
	var mine []entry
	plugins := map[string]*plugin{}
	for _, e := range m.given {
		if e.Key.Pod == uid && e.Key.Container == container {
			mine = append(mine, e)
			if p := m.resources[e.Key.Resource]; p != nil && p.options.GetPreStartRequired() {
				plugins[e.Key.Resource] = p
			}
		}
	}
	m.mu.Unlock()
	for _, e := range mine {
		if p := plugins[e.Key.Resource]; p != nil {
			_, err := call(ctx, m, p, "PreStartContainer", func(ctx context.Context, c client) (*api.PreStartContainerResponse, error) {
				return c.PreStartContainer(ctx, &api.PreStartContainerRequest{DevicesIds: e.Grant.IDs})
			})
			if err != nil {
				return err
			}
		}
		e.Grant.equip(cfg)
	}
	return nil
}

// equip: the container's own variables come last, and win.
func (g *grant) equip(cfg *cri.ContainerConfig) {
	var env []*cri.KeyValue
	for _, name := range sortedKeys(g.Env) {
		env = append(env, &cri.KeyValue{Key: name, Value: []byte(g.Env[name])})
	}
	cfg.Envs = append(env, cfg.Envs...)
	cfg.Mounts = append(cfg.Mounts, g.Mounts...)
	cfg.Devices = append(cfg.Devices, g.Devices...)
	for name, value := range g.Notes {
		if cfg.Annotations == nil {
			cfg.Annotations = map[string]string{}
		}
		cfg.Annotations[name] = value
	}
	for _, name := range g.CDI {
		cfg.CDIDevices = append(cfg.CDIDevices, &cri.CDIDevice{Name: name})
	}
}

func sortedKeys(of map[string]string) []string {
	var out []string
	for k := range of {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// record is what is written down.
type record struct {
	Given     table
	Resources map[string][]string // their devices
}

func (m *Manager) file() string { return filepath.Join(m.dir(), "allocations.json") }

// save writes down who has what. Lock held.
func (m *Manager) save() error {
	r := record{Given: m.given, Resources: map[string][]string{}}
	for name, p := range m.resources {
		for id := range p.devices {
			r.Resources[name] = append(r.Resources[name], id)
		}
		slices.Sort(r.Resources[name])
	}
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode the allocations of devices: %w", err)
	}
	if err := os.MkdirAll(m.dir(), 0o750); err != nil {
		return fmt.Errorf("make the folder of device plugins: %w", err)
	}
	if err := atomicfile.Write(m.file(), data, 0o600); err != nil {
		return fmt.Errorf("write down the allocations of devices: %w", err)
	}
	return nil
}

func (m *Manager) load() (resources map[string][]string, err error) {
	data, err := os.ReadFile(m.file())
	if errors.Is(err, os.ErrNotExist) {
		m.fresh = true
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the allocations of devices: %w", err)
	}
	r, err := decode(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: it is damaged; stop the pods that use devices, and remove it", m.file(), err)
	}
	m.given = r.Given
	return r.Resources, nil
}

// decode reads what was written down. What is no device, mount or grant in it is left out.
func decode(data []byte) (record, error) {
	var r record
	if err := json.Unmarshal(data, &r); err != nil {
		return record{}, err
	}
	r.Given = slices.DeleteFunc(r.Given, func(e entry) bool { return e.Grant == nil })
	for _, e := range r.Given {
		e.Grant.Mounts = slices.DeleteFunc(e.Grant.Mounts, func(m *cri.Mount) bool { return m == nil })
		e.Grant.Devices = slices.DeleteFunc(e.Grant.Devices, func(d *cri.Device) bool { return d == nil })
	}
	return r, nil
}
