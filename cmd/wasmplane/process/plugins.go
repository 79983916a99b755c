// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/auth/authz"
	"github.com/wasmplane/wasmplane/core/controllers"
	"github.com/wasmplane/wasmplane/core/kubelet"
	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/core/scheduler"
	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/hostfn"
	"github.com/wasmplane/wasmplane/plugins/hostfn/backend"
	"github.com/wasmplane/wasmplane/plugins/loader"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	pointcustom "github.com/wasmplane/wasmplane/plugins/point/customresource"
)

// Plugins are the Wasm plugins of this process.
type Plugins struct {
	o         Options
	loader    *loader.Loader
	functions *hostfn.Functions
	events    *backend.Events

	refreshing sync.Mutex

	mu        sync.Mutex
	listeners map[*listener]struct{} // told when the set has changed
}

// NewPlugins loads the plugins of the configuration. One that cannot be loaded
// doesn't keep the cluster from starting: its failure policy decides what its
// points answer, and the person at the terminal is told.
func NewPlugins(ctx context.Context, o Options, e Environment) (*Plugins, error) {
	entries, err := manifest.OfFile(o.Config)
	if err != nil {
		return nil, err
	}
	functions := hostfn.New(e.Host)
	l, err := loader.New(ctx, loader.Config{
		Entries: entries, Dir: filepath.Dir(o.Config.File), CacheDir: o.Dir.PluginCache(), ModuleDir: o.Dir.PluginModules(),
		DisabledDir: o.Dir.DisabledPlugins(), Logger: o.Logger,
		Registerer: e.Metrics, Namespaces: e.Namespaces, Functions: functions, Secrets: secrets(e.Kube), Points: e.Points,
		Operators: OperatorsDial(o), Tenants: TenantsDial(o), Attempts: o.Attempts,
	})
	if err != nil {
		return nil, err
	}
	p := &Plugins{o: o, loader: l, functions: functions, events: e.Events}
	begin := time.Now()
	what := fmt.Sprintf("%d plugins loaded", len(entries))
	if err := l.Load(ctx); err != nil {
		o.Inform("plugins: " + err.Error())
		what = fmt.Sprintf("%d plugins, of which not all loaded", len(entries))
	}
	// Compiling is most of a first start, and no unit's: told where it is done.
	if o.Progress != nil && len(entries) > 0 {
		o.Progress(what, true, time.Since(begin))
	}
	return p, nil
}

// Environment is what a process has for its plugins.
type Environment struct {
	Kube       kubernetes.Interface
	Host       hostfn.Backend
	Events     *backend.Events
	Namespaces func(context.Context, string) (map[string]string, bool)
	Metrics    prometheus.Registerer
	Points     []abi.Point // nil = all
}

// Authorizers that stand before and after the built-in ones.
func (p *Plugins) Authorizers() (before, after []authz.Authorizer) { return p.loader.Authorizers() }

// Admission plugins, in the order of the configuration.
func (p *Plugins) Admission() []admission.Plugin { return p.loader.AdmissionPlugins() }

// CustomResources convert between versions.
func (p *Plugins) CustomResources() []*pointcustom.Plugin { return p.loader.CustomResources() }

// Reconcilers are control loops.
func (p *Plugins) Reconcilers() []controllers.Reconciler { return p.loader.Reconcilers() }

// Scheduling plugins, with their weights.
func (p *Plugins) Scheduling() []scheduler.Weighted {
	var out []scheduler.Weighted
	for _, w := range p.loader.SchedulerPlugins() {
		out = append(out, scheduler.Weighted{Plugin: w.Plugin, Weight: w.Weight})
	}
	return out
}

// SchedulingTrials are those of Scheduling for decisions that take no effect (loader.SchedulerTrials).
func (p *Plugins) SchedulingTrials() (out []scheduler.Weighted, untried []string, release func()) {
	all, untried, release := p.loader.SchedulerTrials()
	for _, w := range all {
		out = append(out, scheduler.Weighted{Plugin: w.Plugin, Weight: w.Weight})
	}
	return out, untried, release
}

// NodeAdmitters decide which pods a node takes.
func (p *Plugins) NodeAdmitters() []kubelet.Admitter {
	var out []kubelet.Admitter
	for _, a := range p.loader.NodeAdmitters() {
		out = append(out, a)
	}
	return out
}

// Loader is what loads and holds them.
func (p *Plugins) Loader() *loader.Loader { return p.loader }

// listener is somebody who is told when the set of plugins has changed.
type listener struct{ changed func() }

// OnChange tells f whenever the set of plugins has changed, until the listener is
// taken off again by what is returned: a component that lost its leadership must not be told.
func (p *Plugins) OnChange(f func()) (off func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := &listener{f}
	if p.listeners == nil {
		p.listeners = map[*listener]struct{}{}
	}
	p.listeners[l] = struct{}{}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.listeners, l)
	}
}

// Run follows the modules' files and the configuration's plugins until ctx ends.
func (p *Plugins) Run(ctx context.Context) error {
	err := run.Parallel(p.loader.Run, p.notify, p.followFile, p.functions.Run, p.events.Run)(ctx)
	err = errors.Join(err, p.loader.Close(context.WithoutCancel(ctx)))
	p.functions.Close()
	return err
}

// notify has everybody of OnChange take on a set that has changed.
func (p *Plugins) notify(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.loader.Changes():
			p.Refresh()
		}
	}
}

// Refresh has everybody of OnChange take on the set as it is now.
func (p *Plugins) Refresh() {
	p.refreshing.Lock() // the last one to be told is told of the newest
	defer p.refreshing.Unlock()
	p.mu.Lock()
	listeners := slices.Collect(maps.Keys(p.listeners))
	p.mu.Unlock()
	for _, l := range listeners {
		l.changed()
	}
}

// followFile applies the plugins of the configuration file when it changes.
func (p *Plugins) followFile(ctx context.Context) error {
	file := p.o.Config.File
	if file == "" {
		<-ctx.Done()
		return nil
	}
	return manifest.FollowFile(ctx, file, p.o.Logger, func(entries []manifest.Entry, err error) {
		if err == nil {
			err = p.loader.Apply(ctx, loader.File, entries)
		}
		if err != nil {
			p.o.Inform("plugins: " + err.Error() + " (what was in force stays in force)")
			return
		}
		p.o.Logger.InfoContext(ctx, "plugins follow the configuration", "file", file, "plugins", len(entries))
	})
}

// secrets reads Secrets for fetching modules.
func secrets(kube kubernetes.Interface) func(ctx context.Context, namespace, name string) (map[string][]byte, error) {
	return func(ctx context.Context, namespace, name string) (map[string][]byte, error) {
		s, err := kube.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		return s.Data, nil
	}
}
