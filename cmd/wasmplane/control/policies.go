// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/restmapper"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/process"
	"github.com/wasmplane/wasmplane/core/bootstrap"
	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/plugins/apiobject"
	"github.com/wasmplane/wasmplane/plugins/policies/policyobject"
)

// installTime bounds how long the definition of a kind may take until it is served.
const installTime = 30 * time.Second

// policies makes Plugins of other projects' policies, where that is configured.
func policies(ctx context.Context, c *process.Component) error {
	enabled := c.Options.Config.PolicyKinds
	if len(enabled) == 0 {
		<-ctx.Done() // the loops beside this one end with it
		return nil
	}
	cfg, err := c.Identities.ForServiceAccount(apiobject.PolicyControllerNamespace, apiobject.PolicyControllerAccount)
	if err != nil {
		return err
	}
	set, err := client.New(cfg)
	if err != nil {
		return err
	}
	definitions, err := apiextensions.NewForConfig(cfg)
	if err != nil {
		return err
	}
	kinds, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return err
	}
	return policyobject.New(policyobject.Config{
		Client: set.Dynamic, Enabled: enabled, Logger: c.Options.Logger,
		Mapper: restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(kinds)),
		Install: func(ctx context.Context, d *apiextensionsv1.CustomResourceDefinition) error {
			ctx, cancel := context.WithTimeout(ctx, installTime)
			defer cancel()
			return bootstrap.Definitions(ctx, definitions.CustomResourceDefinitions(), d)
		},
	}).Run(ctx)
}
