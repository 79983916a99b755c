// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"fmt"
	"slices"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/process"
	"github.com/wasmplane/wasmplane/core/bootstrap"
	"github.com/wasmplane/wasmplane/core/chart/chartobject"
	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/core/run/presence"
	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/apiobject"
	"github.com/wasmplane/wasmplane/plugins/apiobject/plugindefinition"
	"github.com/wasmplane/wasmplane/plugins/hostfn"
	"github.com/wasmplane/wasmplane/plugins/hostfn/backend"
	"github.com/wasmplane/wasmplane/plugins/policies/gatekeeper/externaldata"
	"github.com/wasmplane/wasmplane/plugins/policies/policyobject"
	"github.com/wasmplane/wasmplane/plugins/policies/scan"
)

// extensions are the Wasm plugins of this server: those of files, and those that are
// objects of the API.
type extensions struct {
	*process.Plugins
	access   *backend.ChainAccess // what they ask who may do what
	objects  *apiobject.Controller
	tenants  *apiobject.Controller // of namespaces
	presence *presence.Keeper      // the lease that says that this server lives, for their status
	// providers of external data are asked by constraints and mutators; nil without Gatekeeper's kinds.
	providers *externaldata.Providers
}

// loadExtensions loads those that points ask; nil = all.
func loadExtensions(ctx context.Context, b base, points []abi.Point) (_ *extensions, err error) {
	e := &extensions{access: &backend.ChainAccess{}}
	events := backend.NewEvents(b.internal.Kube)
	b.Options.Attempts.EventsTo(process.EventsOfAttempts(events))
	signers, err := process.Signers(b.Options)
	if err != nil {
		return nil, err
	}
	host := hostfn.Backend{
		Objects: backend.Cached{View: b.view}, Access: e.access, Events: events,
		State: backend.ConfigMapState{Kube: b.internal.Kube}, Images: hostfn.NewImages(nil, b.Options.Attempts),
		Signers: signers, Attempts: b.Options.Attempts, Logger: b.Options.Logger,
	}
	if slices.Contains(b.Options.Config.PolicyKinds, policyobject.Gatekeeper) {
		e.providers = externaldata.New(b.view, *process.OperatorsDial(b.Options))
		host.External = e.providers
	}
	if e.Plugins, err = process.NewPlugins(ctx, b.Options, process.Environment{
		Kube: b.internal.Kube, Host: host, Events: events, Namespaces: b.namespaceLabels, Metrics: b.metrics, Points: points,
	}); err != nil {
		return nil, err
	}
	self, err := process.Identity(b.Options)
	if err != nil {
		return nil, err
	}
	objects := process.ObjectsOptions{Client: b.internal.Dynamic, Part: process.Parts.APIServer, Holder: self, Answers: true}
	objects.Presence = e.Presence(objects, b.internal.Kube)
	e.presence = objects.Presence
	if e.objects, err = e.Objects(objects); err != nil {
		return nil, err
	}
	objects.Tenants = true
	e.tenants, err = e.Objects(objects)
	return e, err
}

// expect has requests wait for what Plugins of the API guard, before there are any requests:
// the Plugins are loaded by follow, which needs a server that answers.
func (e *extensions) expect(ctx context.Context, b base) {
	for _, c := range []*apiobject.Controller{e.objects, e.tenants} {
		if err := c.Expect(ctx); err != nil && ctx.Err() == nil {
			b.Options.Inform("plugins: " + err.Error())
		}
	}
	e.Refresh()
}

// follow installs the definitions of Plugins, policies and Helm charts, keeps them, and follows the objects.
func (e *extensions) follow(b base, begun <-chan struct{}) func(context.Context) error {
	return func(ctx context.Context) error {
		if !run.Await(ctx, begun) {
			return nil
		}
		own, err := apiextensions.NewForConfig(b.internal.Config)
		if err != nil {
			return fmt.Errorf("client of the definition of plugins: %w", err)
		}
		definitions := append(policyobject.Definitions(b.Options.Config.PolicyKinds),
			plugindefinition.Definition(), plugindefinition.TenantDefinition(),
			chartobject.Definition())
		definitions = append(definitions, scan.Definitions(scan.Format(b.Options.Config.PolicyReports))...)
		err = bootstrap.Definitions(ctx, own.CustomResourceDefinitions(), definitions...)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // it was stopped: what it did not get done is no failure
		}
		if err != nil {
			return err
		}
		keep := func(ctx context.Context) error {
			return bootstrap.KeepDefinitions(ctx, b.internal.Metadata, own.CustomResourceDefinitions(), b.Options.Logger, definitions...)
		}
		return run.Parallel(keep, e.presence.Run, e.objects.Run, e.tenants.Run)(ctx)
	}
}
