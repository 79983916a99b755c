// SPDX-License-Identifier: Apache-2.0

// Package pinning gives containers CPUs and NUMA nodes' memory for themselves alone, beside
// their devices: upstream's CPU manager, memory manager and topology manager, by the rules of
// package allot. All others run on the CPUs that are left.
//
// Who has what is written down before the pod starts: a kubelet that starts anew gives the same
// again, and none of it to another.
package pinning

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
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/cpuset"

	"github.com/wasmplane/wasmplane/core/kubelet"
	"github.com/wasmplane/wasmplane/core/kubelet/allot"
	"github.com/wasmplane/wasmplane/core/kubelet/deviceplugin"
	"github.com/wasmplane/wasmplane/core/kubelet/engine"
	"github.com/wasmplane/wasmplane/core/kubelet/pod"
)

// often is how often the containers that run are compared with what they should have.
const often = 10 * time.Second

// Devices of the node, which know where they are.
type Devices interface {
	kubelet.Devices
	// AllocateNear is Allocate, and asks before each container on which NUMA nodes its
	// devices should be. hints are where they can be had.
	AllocateNear(ctx context.Context, p *corev1.Pod, near deviceplugin.Near) error
}

// Config of a Manager.
type Config struct {
	// Devices that are given together with CPUs and memory. Required.
	Devices Devices
	// Engine of the containers. Required.
	Engine engine.Engine
	// Machine that there is. Required.
	Machine *allot.Machine
	// RootDir is the kubelet's: absolute.
	RootDir string
	// CPUs and Memory are given by the managers' static policies.
	CPUs, Memory bool
	Options      allot.Options
	// Reserved CPUs are given to nobody alone; Shared: containers that have none alone may run on them.
	Reserved cpuset.CPUSet
	Shared   bool
	// ReservedMemory by node and kind is given to nobody.
	ReservedMemory map[int]map[string]int64
	Policy         allot.Policy
	// PodScope: all containers of a pod go to the same nodes.
	PodScope bool
	Logger   *slog.Logger
}

// Manager of a node.
type Manager struct {
	Devices
	cfg     Config
	nodes   allot.Nodes
	changed chan struct{}
	// admission is held while a pod is given what it asks for: from where the whole pod goes to what
	// its last container gets, as upstream's topology manager has it.
	admission chan struct{}

	mu    sync.Mutex
	given []Given
	// applied are the CPUs that running containers were last given, by their IDs.
	applied map[string]string
}

// Given is what a container has for itself.
type Given struct {
	Pod       types.UID
	Container string
	CPUs      string        `json:",omitempty"`
	Memory    []allot.Block `json:",omitempty"`
}

func (g *Given) cpus() cpuset.CPUSet {
	set, _ := cpuset.Parse(g.CPUs) //nolint:errcheck // load and Allocate write no others
	return set
}

// New makes a Manager, with what an earlier one has written down; Run runs it.
func New(cfg Config) (*Manager, error) {
	if cfg.Devices == nil || cfg.Engine == nil || cfg.Machine == nil || !filepath.IsAbs(cfg.RootDir) {
		return nil, errors.New("pinning: devices, an engine, a machine and an absolute directory are needed")
	}
	if !cfg.Reserved.IsSubsetOf(cfg.Machine.All()) {
		return nil, fmt.Errorf("node.reservedSystemCPUs: expected some of this machine's CPUs %s, found %s", cfg.Machine.All(), cfg.Reserved)
	}
	if cfg.CPUs && (cfg.Reserved.IsEmpty() || cfg.Reserved.Equals(cfg.Machine.All())) {
		return nil, fmt.Errorf("node.reservedSystemCPUs: the CPU manager's policy static needs some, not all, of this machine's CPUs %s "+
			"for the system, found %q",
			cfg.Machine.All(), cfg.Reserved)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	m := &Manager{
		Devices: cfg.Devices, cfg: cfg, nodes: cfg.Machine.Nodes(), changed: make(chan struct{}, 1),
		admission: make(chan struct{}, 1), applied: map[string]string{},
	}
	return m, m.load()
}

// assignable CPUs are those that a container may have alone.
func (m *Manager) assignable() cpuset.CPUSet {
	return m.cfg.Machine.Usable(m.cfg.Machine.All().Difference(m.cfg.Reserved), m.cfg.Options)
}

// taken CPUs are those that some container has alone. Lock held.
func (m *Manager) taken() cpuset.CPUSet {
	out := cpuset.New()
	for i := range m.given {
		out = out.Union(m.given[i].cpus())
	}
	return out
}

// shared CPUs are those of containers that have none alone. Lock held.
func (m *Manager) shared() cpuset.CPUSet {
	all := m.cfg.Machine.All().Difference(m.taken())
	if !m.cfg.Shared {
		all = all.Difference(m.cfg.Reserved)
	}
	return all
}

// ledger of the memory that is given, without that of one pod. Lock held.
func (m *Manager) ledger(without types.UID) *allot.Ledger {
	l := &allot.Ledger{Allocatable: map[int]map[string]int64{}}
	for id, kinds := range m.cfg.Machine.Memory {
		l.Allocatable[id] = maps.Clone(kinds)
		for kind, bytes := range m.cfg.ReservedMemory[id] {
			l.Allocatable[id][kind] -= bytes
		}
	}
	for i := range m.given {
		if m.given[i].Pod != without {
			l.Blocks = append(l.Blocks, m.given[i].Memory...)
		}
	}
	return l
}

func (m *Manager) of(uid types.UID, container string) *Given {
	for i := range m.given {
		if m.given[i].Pod == uid && m.given[i].Container == container {
			return &m.given[i]
		}
	}
	return nil
}

// Allocate gives a pod's containers CPUs, memory and devices; idempotent. A deviceplugin.Refusal ends the pod.
func (m *Manager) Allocate(ctx context.Context, p *corev1.Pod) error {
	select {
	case m.admission <- struct{}{}:
		defer func() { <-m.admission }()
	case <-ctx.Done():
		return ctx.Err()
	}
	turn := &turn{Manager: m, pod: p, reusable: cpuset.New()}
	err := m.Devices.AllocateNear(ctx, p, turn.near)
	if err != nil {
		m.drop(func(g Given) bool { return g.Pod == p.UID })
	}
	return err
}

// Equip pins a container, and adds its devices.
func (m *Manager) Equip(ctx context.Context, uid types.UID, container string, cfg *cri.ContainerConfig) error {
	m.mu.Lock()
	g := m.of(uid, container)
	var cpus, nodes string
	if m.cfg.CPUs {
		cpus = m.shared().String()
	}
	if g != nil && g.CPUs != "" {
		cpus = g.CPUs
	}
	if g != nil {
		var s allot.Nodes
		for _, b := range g.Memory {
			s |= b.Nodes
		}
		nodes = s.String()
	}
	m.mu.Unlock()
	if r := cfg.GetLinux().GetResources(); r != nil {
		r.CpusetCpus, r.CpusetMems = cpus, nodes
	}
	return m.Devices.Equip(ctx, uid, container, cfg)
}

// Release takes back what a pod has; idempotent.
func (m *Manager) Release(uid types.UID) {
	m.drop(func(g Given) bool { return g.Pod == uid })
	m.Devices.Release(uid)
}

// Retain takes back what pods have that hold nothing any more.
func (m *Manager) Retain(holds func(types.UID) bool) {
	m.drop(func(g Given) bool { return !holds(g.Pod) })
	m.Devices.Retain(holds)
}

func (m *Manager) drop(which func(Given) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := len(m.given)
	m.given = slices.DeleteFunc(m.given, which)
	if len(m.given) == before {
		return
	}
	if err := m.save(); err != nil {
		m.cfg.Logger.Warn("who has which CPUs cannot be written down", "error", err)
	}
	m.kick()
}

func (m *Manager) kick() {
	select {
	case m.changed <- struct{}{}:
	default:
	}
}

// Run moves the containers that have no CPUs alone to those that are left, whenever these
// change, until ctx ends.
func (m *Manager) Run(ctx context.Context) error {
	if !m.cfg.CPUs {
		<-ctx.Done()
		return nil
	}
	tick := time.NewTicker(often)
	defer tick.Stop()
	for {
		m.move(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-m.changed:
		case <-tick.C:
		}
	}
}

func (m *Manager) move(ctx context.Context) {
	list, err := m.cfg.Engine.ListContainers(ctx)
	if err != nil {
		return // the next time tells
	}
	running := map[string]bool{}
	for _, c := range list {
		if c.State != cri.ContainerState_CONTAINER_RUNNING {
			continue
		}
		running[c.Id] = true
		m.mu.Lock()
		want := m.shared().String()
		if g := m.of(types.UID(c.Labels[pod.UIDLabel]), c.Labels[pod.ContainerNameLabel]); g != nil && g.CPUs != "" {
			want = g.CPUs
		}
		same := m.applied[c.Id] == want
		m.mu.Unlock()
		if same {
			continue
		}
		if err := m.cfg.Engine.UpdateResources(ctx, c.Id, &cri.LinuxContainerResources{CpusetCpus: want}); err != nil {
			if ctx.Err() == nil {
				m.cfg.Logger.WarnContext(ctx, "a container cannot be moved to other CPUs; trying again", "container", c.Id, "cpus", want, "error", err)
			}
			continue
		}
		m.mu.Lock()
		m.applied[c.Id] = want
		m.mu.Unlock()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.applied, func(id string, _ string) bool { return !running[id] })
}
