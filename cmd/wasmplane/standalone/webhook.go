// SPDX-License-Identifier: Apache-2.0

package standalone

import (
	"context"
	"path/filepath"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/process"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/webhookserver"
	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/plugins/reviewserver"
)

// Webhook serves admission, conversion and authorization plugins to the cluster of a
// kubeconfig, and registers itself there for admission.
func Webhook(ctx context.Context, o process.Options, ready func(process.Info)) error {
	server, err := webhookserver.New(webhookserver.Config{
		Options: o.Webhook, Dir: o.Dir.Webhook(), Files: filepath.Join(string(o.Dir), "webhook", "authorization"),
		ClusterDomain: o.Config.Cluster.Domain, Logger: o.Logger, Note: o.Inform,
	})
	if err != nil {
		return err
	}
	return process.Run(ctx, o, process.Parts.Webhook, func(ctx context.Context, c *process.Component, ready func()) error {
		set, err := client.New(c.Config)
		if err != nil {
			return err
		}
		defer c.Plugins.OnChange(server.Changed)()
		return server.Run(ctx, set.Kube, c.Plugins.Loader(), ready)
	}, ready)
}

// RemoveWebhook takes back what Webhook has registered.
func RemoveWebhook(ctx context.Context, o process.Options) error {
	set, err := client.Open(o.Kubeconfig, process.Parts.Webhook.Name)
	if err != nil {
		return err
	}
	return (&reviewserver.Registration{Client: set.Kube, Logger: o.Logger}).Remove(ctx)
}
