// SPDX-License-Identifier: Apache-2.0

// Package wire puts the components together by ordinary calls: what runs in one
// process, what in several, with which identity each, and in which order. It is
// the only place that knows all of them.
package wire

import (
	"log/slog"
	"time"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
	"github.com/wasmplane/wasmplane/cmd/wasmplane/webhookserver"
	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/core/run"
)

// Options of a process.
type Options struct {
	Config *config.Configuration
	Dir    datadir.Dir
	Logger *slog.Logger
	// Version of wasmplane itself.
	Version string
	// Kubeconfig is the identity of a component that runs by itself.
	Kubeconfig string
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

func (o *Options) note(text string) {
	if o.Note != nil {
		o.Note(text)
	}
	o.Logger.Info(text)
}

// Info is what a ready cluster says of itself.
type Info struct {
	Cluster string
	Server  string // URL
	Nodes   string // for people: "3 simulated nodes"
}

// stopTimeout bounds how long one part may take to stop: longer than a graceful
// end of the requests in flight, shorter than the patience of a person at Ctrl-C.
const stopTimeout = 15 * time.Second
