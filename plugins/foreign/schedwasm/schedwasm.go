// SPDX-License-Identifier: Apache-2.0

// Package schedwasm runs plugins of kube-scheduler-wasm-extension, unmodified, at
// the points of core's scheduler/framework.
//
// A guest has an instance to itself from the beginning of a pod's cycle until the
// pod is bound or its reservation is undone: what it remembers of the pod is its own.
// Pods and nodes are encoded as protobuf once. Calls of one instance follow one another; other
// pods' bindings go on in theirs.
package schedwasm

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/host"
	"github.com/wasmplane/wasmplane/plugins/hostfn"
	"github.com/wasmplane/wasmplane/plugins/manifest"
)

// Config is what a plugin runs with.
type Config struct {
	// Config is what the guest gets as its configuration.
	Config []byte
	Caller *hostfn.Caller
}

// Guest is a loaded plugin.
type Guest struct {
	cfg    Config
	module *host.Module
	has    map[string]bool
	hints  framework.ClusterEvent

	mu      sync.Mutex
	nodes   map[string]encodedNode
	waiting map[string]*cycle // pods that its permit holds back, by UID

	listing sync.Mutex
	list    []byte
	listOf  [2]int64
}

// New makes the guest of a configuration. Compile its module with ABI, then Load it.
func New(cfg Config) *Guest {
	return &Guest{cfg: cfg, has: map[string]bool{}, hints: framework.AnyEvent, waiting: map[string]*cycle{}}
}

// Settings is what a guest gets of an entry's settings: text as it is, anything else as JSON.
func Settings(settings []byte) []byte {
	var s string
	if json.Unmarshal(settings, &s) == nil {
		return []byte(s)
	}
	if string(settings) == "{}" {
		return nil
	}
	return settings
}

// Instances is how many instances may exist where an entry names no number: one for
// each pod that is being bound, and the cycle's.
const Instances = 72

// points are the points of our own ABI at which exports stand.
var points = []struct {
	export string
	point  abi.Point
}{
	{"prefilter", abi.SchedulingPreFilter},
	{"filter", abi.SchedulingFilter},
	{"postfilter", abi.SchedulingPostFilter},
	{"prescore", abi.SchedulingPreScore},
	{"score", abi.SchedulingScore},
	{"normalizescore", abi.SchedulingNormalize},
	{"reserve", abi.SchedulingReserve},
	{"unreserve", abi.SchedulingUnreserve},
	{"permit", abi.SchedulingPermit},
	{"prebind", abi.SchedulingPreBind},
	{"bind", abi.SchedulingBind},
	{"postbind", abi.SchedulingPostBind},
}

// Manifest says where a module with these exports takes part.
func Manifest(e *manifest.Entry, found []string) *abi.Manifest {
	m := &abi.Manifest{ABI: abi.Version, Name: e.Name, Settings: true}
	for i, p := range points {
		if slices.Contains(found, p.export) && e.Wants(p.point) {
			m.Hooks = append(m.Hooks, abi.Hook{Op: int32(i + 1), Point: p.point})
		}
	}
	return m
}

// Load starts a first instance, and asks it which events matter to it.
func (g *Guest) Load(ctx context.Context, m *host.Module, e *manifest.Entry) error {
	g.module = m
	return m.With(ctx, func(in *host.Instance) error {
		for name := range exports {
			g.has[name] = in.Has(name)
		}
		for _, p := range points { // the entry may leave points out
			g.has[p.export] = g.has[p.export] && e.Wants(p.point)
		}
		if !g.has["enqueue"] {
			return nil
		}
		_, err := in.StartAccount(ctx, func() error {
			_, err := in.Run("enqueue")
			return err
		})
		if events := sessionOf(in).answer.events; err == nil && events != 0 {
			g.hints = events
		}
		return err
	})
}

// Call implements point.Guest. Such modules are not called by our hooks.
func (g *Guest) Call(context.Context, int32, []byte) ([]byte, host.Usage, error) {
	return nil, host.Usage{}, &host.Fault{Plugin: g.module.Name(), Kind: host.Refused, Detail: "it takes part in scheduling only"}
}

// status is what a guest's status code means.
func status(code uint32, reason string) *framework.Status {
	codes := [...]framework.Code{
		framework.Success, framework.Error, framework.Unschedulable, framework.Unresolvable, framework.Wait,
		framework.Skip,
	}
	if code == 0 {
		return nil
	}
	if code >= uint32(len(codes)) {
		return framework.NewStatus(framework.Error, "the plugin answered an unknown status")
	}
	if reason = strings.TrimSpace(reason); reason == "" {
		return framework.NewStatus(codes[code])
	}
	return framework.NewStatus(codes[code], reason)
}

// hold notes that the guest's permit holds a pod back; let undoes it.
func (g *Guest) hold(uid string, c *cycle) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting[uid] = c
}

func (g *Guest) let(uid string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.waiting, uid)
}

// reject ends the waiting of a pod.
func (g *Guest) reject(uid string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	c, ok := g.waiting[uid]
	if ok {
		c.rejected.Store(true)
	}
	return ok
}

func (g *Guest) waitingPod(uid string) []byte {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c, ok := g.waiting[uid]; ok {
		return c.pod
	}
	return nil
}
