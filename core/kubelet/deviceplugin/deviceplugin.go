// SPDX-License-Identifier: Apache-2.0

// Package deviceplugin is a node's side of upstream's device plugins (v1beta1): a plugin
// registers by the kubelet's socket, or by a socket of its own in the folder of plugins,
// and says which devices of an extended resource there are and which are healthy; pods
// that ask for some get them when they are admitted.
//
// Which container has which devices, and what its plugin said about them, is written down
// before the pod starts: a kubelet that starts anew gives the same devices, asks for
// nothing twice, and gives none of them to another.
//
// A plugin that hangs, crashes or lies keeps up its own resource alone: calls have
// deadlines, answers have bounds, and no call is made while another resource is held.
package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/wasmplane/wasmplane/core/kubelet/allot"
	"github.com/wasmplane/wasmplane/core/kubelet/pluginwatch"
	"github.com/wasmplane/wasmplane/core/resourcename"
	"github.com/wasmplane/wasmplane/core/run"
)

// Directory below the kubelet's: plugins find the kubelet's socket there, and have theirs.
const Directory = "device-plugins"

const (
	// within bounds a call of a plugin.
	within = 30 * time.Second
	// forgetAfter is how long a resource stays known whose plugin is gone.
	forgetAfter = 5 * time.Minute
	// mostResources and mostDevices bound what is kept in mind.
	mostResources = 256
	mostDevices   = 4096
	longestID     = 253
)

// Config of a Manager.
type Config struct {
	// RootDir is the kubelet's: absolute.
	RootDir string
	// Changed is called when there are other devices.
	Changed func()
	Logger  *slog.Logger
	// Timeout of a call of a plugin (30 s if zero), and how long a resource whose plugin is
	// gone stays known (5 minutes if zero).
	Timeout, Forget time.Duration
	// WithTimeout bounds the calls (context.WithTimeout if nil).
	WithTimeout func(context.Context, time.Duration) (context.Context, context.CancelFunc)
}

// Manager of a node's devices.
type Manager struct {
	cfg Config

	mu        sync.Mutex
	resources map[string]*plugin
	given     table
	fresh     bool
	stopped   bool
	watches   run.Tasks
	// affected are the pods whose devices have changed, until somebody asks.
	affected      map[types.UID]bool
	healthChanged chan struct{}
}

// plugin of one resource, as it registered last.
type plugin struct {
	resource, endpoint, socket string
	options                    *api.DevicePluginOptions
	// devices by ID.
	devices map[string]device
	// gone is when its connection broke; zero while it lives.
	gone time.Time
	// turn is held while devices of the resource are chosen.
	turn chan struct{}
	// stop ends the watch; nil when there is none.
	stop context.CancelFunc
}

// device is healthy, and says on which NUMA nodes it is; 0: it does not.
type device struct {
	healthy bool
	nodes   allot.Nodes
}

// New makes a Manager, with what an earlier one has written down; Run runs it.
func New(cfg Config) (*Manager, error) {
	if !filepath.IsAbs(cfg.RootDir) {
		return nil, fmt.Errorf("deviceplugin: the kubelet's directory %q is no absolute path", cfg.RootDir)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Changed == nil {
		cfg.Changed = func() {}
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = within
	}
	if cfg.WithTimeout == nil {
		cfg.WithTimeout = context.WithTimeout
	}
	if cfg.Forget <= 0 {
		cfg.Forget = forgetAfter
	}
	m := &Manager{
		cfg: cfg, resources: map[string]*plugin{}, affected: map[types.UID]bool{}, healthChanged: make(chan struct{}, 1),
	}
	known, err := m.load()
	if err == nil && m.fresh {
		err = m.save() // the next one is not
	}
	if err != nil {
		return nil, err
	}
	for name, ids := range known {
		// As of a plugin that is gone: it has the time to come back.
		p := m.newPlugin(name)
		for _, id := range ids {
			p.devices[id] = device{}
		}
		m.resources[name] = p
	}
	return m, nil
}

// Fresh reports whether there was no Manager before in this folder.
func (m *Manager) Fresh() bool { return m.fresh }

func (m *Manager) newPlugin(name string) *plugin {
	return &plugin{resource: name, devices: map[string]device{}, gone: time.Now(), turn: make(chan struct{}, 1)}
}

func (m *Manager) dir() string { return filepath.Join(m.cfg.RootDir, Directory) }

// Resources are how many devices there are, and how many of them are healthy, by resource.
func (m *Manager) Resources() (capacity, allocatable corev1.ResourceList) {
	m.mu.Lock()
	defer m.mu.Unlock()
	capacity, allocatable = corev1.ResourceList{}, corev1.ResourceList{}
	for name, p := range m.resources {
		healthy := 0
		for _, d := range p.devices {
			if d.healthy {
				healthy++
			}
		}
		capacity[corev1.ResourceName(name)] = *resource.NewQuantity(int64(len(p.devices)), resource.DecimalSI)
		allocatable[corev1.ResourceName(name)] = *resource.NewQuantity(int64(healthy), resource.DecimalSI)
	}
	return capacity, allocatable
}

// Has reports whether a pod has devices.
func (m *Manager) Has(uid types.UID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.ContainsFunc(m.given, func(e entry) bool { return e.Key.Pod == uid })
}

// Refusal says why a pod gets no devices, or no CPUs and memory with them.
type Refusal struct{ Reason, Message string }

func (r *Refusal) Error() string { return r.Message }

// Refuse a pod, for one of upstream's reasons.
func Refuse(reason, format string, args ...any) error {
	return &Refusal{reason, fmt.Sprintf(format, args...)}
}

func refuse(format string, args ...any) error {
	return Refuse("UnexpectedAdmissionError", format, args...)
}

// Near decides on which NUMA nodes the devices of a container should be (0: any), from where
// they can be had, and where those of the whole pod can.
type Near func(c *corev1.Container, hints, ofPod []allot.Hints) (allot.Nodes, error)

// Allocate gives a pod's containers the devices that they ask for; those that they have
// stay. An error that is a Refusal ends the pod.
func (m *Manager) Allocate(ctx context.Context, p *corev1.Pod) error {
	return m.AllocateNear(ctx, p, func(*corev1.Container, []allot.Hints, []allot.Hints) (allot.Nodes, error) { return 0, nil })
}

// AllocateNear is Allocate, and asks near before each container.
func (m *Manager) AllocateNear(ctx context.Context, p *corev1.Pod, near Near) error {
	// Init containers end before the others begin: what they had is used again.
	reusable := map[string][]string{}
	whole := m.hints(p.UID, "", resourcehelper.PodLimits(p, resourcehelper.PodResourcesOptions{}), nil)
	each := func(c *corev1.Container, ends bool) error {
		nodes, err := near(c, m.hints(p.UID, c.Name, c.Resources.Limits, reusable), whole)
		if err != nil {
			return err
		}
		for name, q := range c.Resources.Limits {
			res := string(name)
			if q.IsZero() || !m.known(res) {
				continue
			}
			ids, err := m.allocate(ctx, key{p.UID, c.Name, res}, int(q.Value()), reusable[res], nodes)
			if err != nil {
				return err
			}
			if ends {
				reusable[res] = union(reusable[res], ids)
			} else {
				reusable[res] = without(reusable[res], ids)
			}
		}
		return nil
	}
	for i := range p.Spec.InitContainers {
		c := &p.Spec.InitContainers[i]
		if err := each(c, c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways); err != nil {
			return err
		}
	}
	for i := range p.Spec.Containers {
		if err := each(&p.Spec.Containers[i], false); err != nil {
			return err
		}
	}
	return nil
}

// hints are where the devices can be had that are asked for; of a container that has its devices
// already, where these are. Without a container they are those of the whole pod, of which some
// containers may have theirs from an earlier turn: all others are found with these.
func (m *Manager) hints(pod types.UID, container string, asked corev1.ResourceList, reusable map[string][]string) (out []allot.Hints) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all allot.Nodes
	for _, p := range m.resources {
		for _, d := range p.devices {
			all |= d.nodes
		}
	}
	for _, name := range slices.Sorted(maps.Keys(asked)) {
		res, q := string(name), asked[name]
		p := m.resources[res]
		if p == nil || q.IsZero() {
			continue
		}
		var nodes allot.Nodes
		have := m.given.of(pod, container, res)
		for id := range have {
			nodes |= p.devices[id].nodes
		}
		if nodes != 0 {
			out = append(out, allot.Hints{{Nodes: nodes, Preferred: true}})
		}
		if len(have) >= int(q.Value()) {
			continue
		}
		taken := m.given.taken(res)
		var devices, free []allot.Nodes
		for id, d := range p.devices {
			devices = append(devices, d.nodes)
			if have[id] || d.healthy && (!taken[id] || slices.Contains(reusable[res], id)) {
				free = append(free, d.nodes)
			}
		}
		out = append(out, allot.DeviceHints(all, int(q.Value()), devices, free))
	}
	return out
}

func (m *Manager) known(res string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.resources[res] != nil
}

// allocate gives one container devices of one resource.
func (m *Manager) allocate(ctx context.Context, k key, n int, reusable []string, near allot.Nodes) ([]string, error) {
	m.mu.Lock()
	have, p := m.given.get(k), m.resources[k.Resource]
	m.mu.Unlock()
	switch {
	case have != nil:
		return have.IDs, nil
	case p == nil:
		return nil, refuse("the resource %s has no plugin any more", k.Resource)
	}
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	ids, err := m.choose(ctx, p, k, n, reusable, near)
	if err != nil {
		return nil, err
	}
	answer, err := call(ctx, m, p, "Allocate", func(ctx context.Context, c client) (*api.AllocateResponse, error) {
		return c.Allocate(ctx, &api.AllocateRequest{ContainerRequests: []*api.ContainerAllocateRequest{{DevicesIds: ids}}})
	})
	if err != nil {
		return nil, err
	}
	if len(answer.GetContainerResponses()) != 1 {
		return nil, refuse("Allocate failed due to the plugin of %s, which answered for %d containers and was asked for one", k.Resource,
			len(answer.GetContainerResponses()))
	}
	given, err := grantOf(ids, answer.GetContainerResponses()[0])
	if err != nil {
		return nil, refuse("Allocate failed due to the plugin of %s: %v", k.Resource, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.given.put(k, given)
	if err := m.save(); err != nil {
		m.given.drop(k)
		return nil, err
	}
	return ids, nil
}

// choose picks devices that are healthy and free, those that the plugin prefers if it says
// so. Its turn is held.
func (m *Manager) choose(ctx context.Context, p *plugin, k key, n int, reusable []string, near allot.Nodes) ([]string, error) {
	m.mu.Lock()
	taken := m.given.taken(k.Resource)
	var free, nearby []string
	for id, d := range p.devices {
		if d.healthy && (!taken[id] || slices.Contains(reusable, id)) {
			free = append(free, id)
			if d.nodes&near != 0 {
				nearby = append(nearby, id)
			}
		}
	}
	prefers := p.options.GetGetPreferredAllocationAvailable()
	m.mu.Unlock()
	slices.Sort(free)
	if n > len(free) {
		return nil, refuse("Allocate failed due to requested number of devices unavailable for %s. "+
			"Requested: %d, Available: %d, which is unexpected", k.Resource, n, len(free))
	}
	slices.Sort(nearby)
	wanted := slices.Concat(reusable, nearby) // all that are close, and whichever others
	if len(nearby) >= n {
		free, wanted = nearby, reusable // the others are too far
	}
	var must []string
	for _, id := range wanted {
		if len(must) < n && slices.Contains(free, id) && !slices.Contains(must, id) {
			must = append(must, id)
		}
	}
	if !prefers || len(must) == n || n == len(free) {
		return pick(free, must, nil, n), nil
	}
	asked := &api.PreferredAllocationRequest{ContainerRequests: []*api.ContainerPreferredAllocationRequest{{
		AvailableDeviceIDs: free, MustIncludeDeviceIDs: must, AllocationSize: int32(n), //nolint:gosec // a number of devices
	}}}
	answer, err := call(ctx, m, p, "GetPreferredAllocation", func(ctx context.Context, c client) (*api.PreferredAllocationResponse, error) {
		return c.GetPreferredAllocation(ctx, asked)
	})
	if err != nil {
		return nil, err
	}
	var preferred []string
	if len(answer.GetContainerResponses()) == 1 {
		preferred = answer.GetContainerResponses()[0].GetDeviceIDs()
	}
	return pick(free, must, preferred, n), nil
}

// pick takes n of the free devices: those that it must, then the preferred ones, then the first.
func pick(free, must, preferred []string, n int) []string {
	out := slices.Clone(must)
	for _, id := range slices.Concat(preferred, free) {
		if len(out) < n && slices.Contains(free, id) && !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

func union(a, b []string) []string {
	out := slices.Concat(a, b)
	slices.Sort(out)
	return slices.Compact(out)
}

func without(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(id string) bool { return slices.Contains(b, id) })
}

// Release gives a pod's devices to others, once it has ended; idempotent.
func (m *Manager) Release(uid types.UID) {
	m.Retain(func(pod types.UID) bool { return pod != uid })
}

// Retain gives the devices of pods that do not hold any more to others.
func (m *Manager) Retain(holds func(types.UID) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.given.retain(holds) {
		return
	}
	if err := m.save(); err != nil { // the next one writes it, too
		m.cfg.Logger.Warn("which devices are free cannot be written down", "error", err)
	}
}

// examine checks what a plugin says of itself.
func examine(res, endpoint string, versions []string) error {
	switch {
	case !slices.Contains(versions, api.Version):
		return fmt.Errorf("the plugin of %q speaks %v, and this node %s", res, versions, api.Version)
	case !resourcename.Extended(res):
		return fmt.Errorf("%q is no name of an extended resource: expected one like example.com/device", res)
	case !filepath.IsAbs(endpoint):
		return fmt.Errorf("the plugin of %s has the endpoint %q, which is no absolute path", res, endpoint)
	}
	return nil
}

// Register implements pluginwatch.Handler.
func (m *Manager) Register(ctx context.Context, p pluginwatch.Plugin) error {
	if err := examine(p.Name, p.Endpoint, p.Versions); err != nil {
		return err
	}
	return m.take(ctx, p.Name, p.Endpoint, p.Socket)
}

// Withdraw implements pluginwatch.Handler.
func (m *Manager) Withdraw(_ context.Context, p pluginwatch.Plugin) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if have := m.resources[p.Name]; have != nil && have.socket == p.Socket && have.stop != nil {
		have.stop()
	}
}

var errMany = errors.New("this node takes no more device plugins")
