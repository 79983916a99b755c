// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/auth/authz"
	"github.com/wasmplane/wasmplane/core/controllers"
	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/plugins/foreign/schedwasm"
	"github.com/wasmplane/wasmplane/plugins/point"
	pointadmission "github.com/wasmplane/wasmplane/plugins/point/admission"
	"github.com/wasmplane/wasmplane/plugins/point/authorization"
	"github.com/wasmplane/wasmplane/plugins/point/customresource"
	"github.com/wasmplane/wasmplane/plugins/point/nodeadmission"
	"github.com/wasmplane/wasmplane/plugins/point/reconcile"
	"github.com/wasmplane/wasmplane/plugins/point/scheduling"
)

// adapters are a plugin's faces at the points of core; nil where it has none.
type adapters struct {
	admission  admission.Plugin
	authorizer authz.Authorizer
	scheduling framework.Plugin
	reconciler controllers.Reconciler
	node       nodeadmission.Admitter
	custom     *customresource.Plugin
}

// adapt makes the adapters that the version in force calls for. Those that keep
// something (a node table, a running control loop) are kept.
func (l *Loader) adapt(p *point.Plugin, before adapters) adapters {
	return adapters{
		admission:  pointadmission.New(p, l.cluster()),
		authorizer: authorization.New(p),
		scheduling: newScheduling(p, before.scheduling),
		reconciler: reconcile.New(p, before.reconciler),
		node:       nodeadmission.New(p),
		custom:     customresource.New(p, l.cluster()),
	}
}

// cluster is what the adapters of admission know of the cluster.
func (l *Loader) cluster() pointadmission.Cluster {
	return pointadmission.Cluster{Namespaces: l.cfg.Namespaces, Rights: l.cfg.Functions.Rights()}
}

// newScheduling makes the adapter that the module's ABI calls for.
func newScheduling(p *point.Plugin, before framework.Plugin) framework.Plugin {
	if a := schedwasm.NewPlugin(p, before); a != nil {
		return a
	}
	if v := p.Current(); v != nil && v.Foreign() {
		return nil
	}
	return scheduling.New(p, before)
}

// release gives up what adapters hold of a plugin that is gone.
func (a adapters) release() {
	if p, ok := a.scheduling.(interface{ Close() }); ok {
		p.Close()
	}
}

// AdmissionPlugins are the admission plugins, in order.
func (l *Loader) AdmissionPlugins() []admission.Plugin {
	return collect(l, func(s *slot) admission.Plugin { return s.adapters.admission })
}

// Authorizers are the authorizers that stand before RBAC, and those behind it, in order.
func (l *Loader) Authorizers() (before, after []authz.Authorizer) {
	at := func(order string) []authz.Authorizer {
		return collect(l, func(s *slot) authz.Authorizer {
			if s.entry.Authorization.Order != order {
				return nil
			}
			return s.adapters.authorizer
		})
	}
	return at("before"), at("after")
}

// WeightedPlugin is a scheduling plugin with the weight of its scores.
type WeightedPlugin struct {
	framework.Plugin
	Weight int64
}

// SchedulerPlugins are the scheduling plugins, in order.
func (l *Loader) SchedulerPlugins() []WeightedPlugin {
	var out []WeightedPlugin
	for _, s := range l.list() {
		if s.adapters.scheduling != nil {
			out = append(out, WeightedPlugin{s.adapters.scheduling, s.entry.Scheduling.Weight})
		}
	}
	return out
}

// SchedulerTrials are the scheduling plugins for decisions that take no effect, on nodes that need not be
// there: each has a node table of its own, which release gives up. Calls belong into a context of host.WithDryRun
// and host.WithAside. untried are plugins that cannot be asked beside the scheduler: what their ABI has them keep of
// a cycle is one for all; the list has them by name alone, at no point.
func (l *Loader) SchedulerTrials() (out []WeightedPlugin, untried []string, release func()) {
	var mine []adapters
	for _, s := range l.list() {
		switch s.adapters.scheduling.(type) {
		case nil:
			continue
		case *schedwasm.Plugin:
			untried = append(untried, s.entry.Name)
			out = append(out, WeightedPlugin{named(s.entry.Name), s.entry.Scheduling.Weight})
			continue
		}
		if a := scheduling.New(s.plugin, nil); a != nil {
			mine = append(mine, adapters{scheduling: a})
			out = append(out, WeightedPlugin{a, s.entry.Scheduling.Weight})
		}
	}
	return out, untried, func() {
		for _, a := range mine {
			a.release()
		}
	}
}

// named is a plugin that is asked nothing.
type named string

// Name implements framework.Plugin.
func (n named) Name() string { return string(n) }

// Reconcilers are the control loops, in order.
func (l *Loader) Reconcilers() []controllers.Reconciler {
	return collect(l, func(s *slot) controllers.Reconciler { return s.adapters.reconciler })
}

// NodeAdmitters are the node admission plugins, in order.
func (l *Loader) NodeAdmitters() []nodeadmission.Admitter {
	return collect(l, func(s *slot) nodeadmission.Admitter { return s.adapters.node })
}

// CustomResources are the plugins that convert or validate custom resources, in order.
func (l *Loader) CustomResources() []*customresource.Plugin {
	return collect(l, func(s *slot) *customresource.Plugin { return s.adapters.custom })
}

func collect[T comparable](l *Loader, of func(*slot) T) []T {
	var none T
	var out []T
	for _, s := range l.list() {
		if a := of(s); a != none {
			out = append(out, a)
		}
	}
	return out
}
