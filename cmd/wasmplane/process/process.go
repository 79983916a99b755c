// SPDX-License-Identifier: Apache-2.0

// Package process has what every process of a cluster begins with: its options, the table of
// a cluster's parts, and what each part gets (an identity, plugins, a tracer, metrics). It
// knows how the parts differ, and not what any of them does.
package process

import (
	"context"
	"crypto"
	"log/slog"
	"os"

	"k8s.io/client-go/rest"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/webhookserver"
	"github.com/wasmplane/wasmplane/core/api/satoken"
	"github.com/wasmplane/wasmplane/core/attempts"
	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/core/dial"
	"github.com/wasmplane/wasmplane/core/pki"
	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/core/zpages"
)

// Options of a process.
type Options struct {
	Config *config.Configuration
	Dir    datadir.Dir
	Logger *slog.Logger
	// Attempts that were refused are written down here; nil = they are not.
	Attempts *attempts.Ledger
	// ToPods is how this process connects to pods that its machine has no route to; nil = directly.
	ToPods dial.Through
	// Version of wasmplane itself.
	Version string
	// Flags that the process was started with.
	Flags zpages.Flags
	// Kubeconfig is the identity of a component that runs by itself.
	Kubeconfig string
	// API is that identity where no kubeconfig has it; nil = Kubeconfig does.
	API *rest.Config
	// Lease is the name of the lease that a scheduler or control loops by themselves
	// compete for; "" = the one of the cluster's own.
	Lease string
	// OnlyPlugins leaves the cluster's own control loops to others.
	OnlyPlugins bool
	// Webhook is for Webhook.
	Webhook webhookserver.Options
	// MergeKubeconfig is a kubeconfig that gets a context for the cluster; "" = none.
	MergeKubeconfig string
	// Progress is told of parts that become ready, Note of what else a person
	// wants to know. Both may be nil.
	Progress run.Progress
	Note     func(string)
}

// End ends the process at once, for a reason after which nothing can be closed in order.
func (o *Options) End(why error) {
	o.Inform("error: " + why.Error())
	os.Exit(1)
}

// Inform says text to the person at the terminal, and to the log.
func (o *Options) Inform(text string) {
	if o.Note != nil {
		o.Note(text)
	}
	o.Logger.Info(text)
}

// TokenKey is the key that signs service account tokens.
func (o *Options) TokenKey(authority *pki.Authority) (crypto.Signer, error) {
	if f := o.Config.APIServer.ServiceAccountSigningKeyFile; f != "" {
		return satoken.ReadSigningKey(o.Config.Path(f))
	}
	return authority.ServiceAccountKey(), nil
}

// Info is what a ready cluster says of itself.
type Info struct {
	Cluster string
	Server  string // URL
	Nodes   string // for people: "3 simulated nodes"
	// Healthy fails where the process does not answer itself; nil = nobody knows.
	Healthy func(context.Context) error
}
