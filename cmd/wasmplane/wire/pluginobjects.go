// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"fmt"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	"k8s.io/client-go/dynamic"

	"github.com/wasmplane/wasmplane/core/bootstrap"
	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/plugins/apiobject"
	"github.com/wasmplane/wasmplane/plugins/loader"
)

// rules are what Plugins of the API may ask for.
func (p *plugins) rules() apiobject.Rules {
	r := apiobject.Rules{Taken: func(name string) bool { return p.loader.Holds(loader.File, name) }}
	if folder := p.o.Config.PluginFiles; folder != "" {
		r.Files = p.o.Config.Path(folder)
		if abs, err := filepath.Abs(r.Files); err == nil {
			r.Files = abs // the loader's relative paths start at the configuration's folder already
		}
	}
	return r
}

// guard refuses Plugins that could never be loaded.
func (p *plugins) guard() apiobject.Guard {
	return apiobject.Guard{Rules: p.rules(), Rights: p.functions.Rights()}
}

// objectsOptions say whose Plugins of the API a process loads, and what it writes.
type objectsOptions struct {
	client   dynamic.Interface
	identity string // of the process, in the status
	tenants  bool   // those of namespaces, instead of the cluster's
	reports  bool   // it writes the status
	answers  bool   // it writes for those that no process asks, too, and shows the configuration's
}

// objects loads the Plugins of the API into this process.
func (p *plugins) objects(o objectsOptions) (*apiobject.Controller, error) {
	return apiobject.New(apiobject.Config{
		Client: o.client, Loader: p.loader, Rules: p.rules(), Tenants: o.tenants, Identity: o.identity, Reports: o.reports, Answers: o.answers, Mirror: o.answers && !o.tenants, Logger: p.o.Logger,
		Event: func(about corev1.ObjectReference, kind, reason, message string) {
			p.events.RecordAs("wasmplane", about, kind, reason, message)
		},
	})
}

// pluginObjects installs the definition of Plugins, and follows them.
func (s *server) pluginObjects(ctx context.Context) error {
	if !run.Await(ctx, s.boot.Ready()) {
		return nil
	}
	own, err := apiextensions.NewForConfig(s.internal.Config)
	if err != nil {
		return fmt.Errorf("client of the definition of plugins: %w", err)
	}
	err = bootstrap.Definitions(ctx, own.CustomResourceDefinitions(), apiobject.Definition(), apiobject.TenantDefinition())
	if ctx.Err() != nil {
		return nil //nolint:nilerr // it was stopped: what it did not get done is no failure
	}
	if err != nil {
		return err
	}
	return run.Parallel(s.objects.Run, s.tenants.Run)(ctx)
}
