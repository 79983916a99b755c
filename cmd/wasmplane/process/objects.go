// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/wasmplane/wasmplane/core/run/presence"
	"github.com/wasmplane/wasmplane/plugins/apiobject"
	"github.com/wasmplane/wasmplane/plugins/loader"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/policies/policyobject"
	"github.com/wasmplane/wasmplane/plugins/rego"
	"github.com/wasmplane/wasmplane/plugins/rights"
)

// rules are what Plugins of the API may ask for.
func (p *Plugins) rules() apiobject.Rules {
	r := apiobject.Rules{Taken: func(name string) bool { return p.loader.Holds(loader.File, name) }}
	if folder := p.o.Config.PluginFiles; folder != "" {
		r.Files = p.o.Config.Path(folder)
		if abs, err := filepath.Abs(r.Files); err == nil {
			r.Files = abs // the loader's relative paths start at the configuration's folder already
		}
	}
	return r
}

// Guard refuses Plugins that could never be loaded. list reads objects of a kind.
func (p *Plugins) Guard(
	list func(context.Context, schema.GroupVersionKind, string, labels.Selector) ([]runtime.Object, error),
) apiobject.Guard {
	check := policyobject.Check{
		Enabled: p.o.Config.PolicyKinds, Rules: p.rules(),
		Compile: func(ctx context.Context, policy rego.Policy) error {
			_, err := p.loader.Rego(ctx, policy)
			return err
		},
	}
	count := func(ctx context.Context, kind schema.GroupVersionKind, namespace string) (int, error) {
		objects, err := list(ctx, kind, namespace, labels.Everything())
		return len(objects), err
	}
	return apiobject.Guard{Rules: p.rules(), Rights: p.functions.Rights(), Policies: check, Count: count, Settings: p.loader.CheckSettings}
}

// ObjectsOptions say whose Plugins of the API a process loads, and what it writes.
type ObjectsOptions struct {
	Client  dynamic.Interface
	Part    Part   // of the cluster, that the process is
	Holder  string // the process among those of its part, in the status
	Tenants bool   // those of namespaces, instead of the cluster's
	// Presence says which processes live, this one among them (Plugins.Presence).
	Presence *presence.Keeper
	Answers  bool // it writes for those that no process asks, too, and shows the configuration's
}

// identity names the process in the status of Plugins.
func (o ObjectsOptions) identity() string { return o.Part.Name + "_" + o.Holder }

// Presence keeps the lease by which a process that reports shows that it lives; all that it loads has one.
// Servers collect the leases of those that have ended.
func (p *Plugins) Presence(o ObjectsOptions, kube kubernetes.Interface) *presence.Keeper {
	return presence.New(presence.Config{
		Client: kube, Namespace: manifest.StateNamespace, Group: "plugins", Identity: o.identity(), Collect: o.Answers, Logger: p.o.Logger,
	})
}

// Objects loads the Plugins of the API into this process.
func (p *Plugins) Objects(o ObjectsOptions) (*apiobject.Controller, error) {
	var says *rights.Checker
	if o.Answers {
		says = p.functions.Rights()
	}
	cfg := apiobject.Config{
		Rights: says,
		Client: o.Client, Loader: p.loader, Rules: p.rules(), Tenants: o.Tenants, Identity: o.identity(),
		Reports: o.Part.reports, Answers: o.Answers, Mirror: o.Answers && !o.Tenants, Logger: p.o.Logger,
		Event: func(about corev1.ObjectReference, kind, reason, message string) {
			p.events.RecordAs("wasmplane", about, kind, reason, message)
		},
	}
	if o.Presence != nil {
		cfg.Presence = o.Presence
	}
	return apiobject.New(cfg)
}
