// SPDX-License-Identifier: Apache-2.0

package command

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/shell"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/standalone"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/webhookserver"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/wire"
)

// webhook serves plugins to a cluster whose API server is another.
func (a *app) webhook() *cobra.Command {
	var s settings
	var kubeconfig string
	var o webhookserver.Options
	var remove bool
	c := &cobra.Command{
		Use:   "webhook",
		Short: "Serve admission, conversion and authorization plugins to any Kubernetes cluster",
		Long: `Serve the admission, conversion and authorization plugins of a configuration to the cluster of
a kubeconfig, whoever made it.

Admission registers itself: a ValidatingWebhookConfiguration and a
MutatingWebhookConfiguration, both named wasmplane-plugins, follow the entries. The
certificate is renewed by itself, and the configurations' caBundle with it.

Conversion is asked for at /convert/NAME by a definition of custom resources whose
spec.conversion names that path.

Authorization needs the API server's help: an AuthorizationConfiguration and the
kubeconfig files that it names are written, and what to start the API server with is
said.`,
		Example: `  wasmplane webhook --kubeconfig admin.conf --config plugins.yaml --url https://10.0.0.5:9443
  wasmplane webhook --kubeconfig admin.conf --remove`,
		Args: shell.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := a.FromEnvironment(c.Flags()); err != nil {
				return err
			}
			if kubeconfig == "" {
				return errors.New("--kubeconfig is missing: that of the cluster to serve, with the right to write webhook configurations")
			}
			if remove {
				logger, err := newLogger(a.Err, &s)
				if err != nil {
					return err
				}
				return standalone.RemoveWebhook(c.Context(), wire.Options{Logger: logger, Kubeconfig: kubeconfig})
			}
			return a.runWith(c, &s, kubeconfig, standalone.Webhook, func(w *wire.Options) { w.Webhook = o })
		},
	}
	a.addSettings(c.Flags(), &s)
	f := c.Flags()
	f.StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig `FILE` of the cluster, with the right to write webhook configurations (required)")
	f.StringVar(&o.Address, "address", ":9443", "`HOST:PORT` to listen at")
	f.StringVar(&o.URL, "url", "", "`URL` under which the API server reaches this process (default: made of --address, where it names a host)")
	f.StringVar(&o.Service, "service", "", "Service `NAMESPACE/NAME:PORT` through which the API server reaches this process, instead of a URL")
	f.StringSliceVar(&o.Exclude, "exclude-namespaces", []string{"kube-system"}, "`NAMESPACES` whose objects no plugin sees: what the cluster and this process need to start")
	f.StringVar(&o.AuthorizationDir, "authorization-dir", "", "`DIR` for the files that the API server needs to ask authorization plugins (default DATA_DIR/webhook/authorization)")
	f.BoolVar(&remove, "remove", false, "remove the webhook configurations from the cluster, and end")
	return c
}
