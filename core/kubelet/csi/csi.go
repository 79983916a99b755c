// SPDX-License-Identifier: Apache-2.0

// Package csi is a node's side of the Container Storage Interface: drivers register by
// a socket, and the volumes of pods are staged, published and taken down through them.
//
// What is mounted is known by what is on disk. Before a driver is asked for anything, a
// file beside the place says which volume of which driver it is for, and only when the
// driver has taken it down, and the kernel's table shows no mount there, the file goes.
// So a kubelet that was killed at any moment finds all that it has to look after, and
// nothing is kept in memory that would have to be right.
//
// The places are upstream's: pods/UID/volumes/kubernetes.io~csi/NAME/mount for a pod,
// plugins/kubernetes.io/csi/DRIVER/SHA256/globalmount where a volume is staged.
//
// A driver that hangs, crashes or lies keeps up its own volumes alone: each call has a
// deadline, calls about one volume wait for each other, and no call is made for one
// volume while another is held.
package csi

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/wasmplane/wasmplane/core/kubelet/podidentity"
	"github.com/wasmplane/wasmplane/core/run"
)

// Config of a Node.
type Config struct {
	NodeName string
	// RootDir is the kubelet's: absolute, without symbolic links.
	RootDir string
	// SeenAs is where drivers see RootDir, where that is another path: a link to it.
	SeenAs string
	Client kubernetes.Interface
	Logger *slog.Logger
	// Timeout of one call of a driver (2 minutes if zero, as upstream).
	Timeout time.Duration
	// Look is how often the claims of mounted volumes are asked for whether they have
	// grown, and how often a driver that wants it publishes again (a minute if zero).
	Look time.Duration
	// Again is after how long what failed in the background is tried again (10 s if zero).
	Again time.Duration
}

// Node is the CSI side of a node. It is the volume.Plugin of CSI volumes.
type Node struct {
	cfg      Config
	registry *registry
	turns    turns
	tokens   *podidentity.Tokens
	events   record.EventBroadcaster
	rec      record.EventRecorder
	staged   marks
	inUse    inUse
	stats    measured
	nudged   chan struct{}
	metrics  *prometheus.Registry
}

// New makes the CSI side of a node; Run runs it.
func New(cfg Config) (*Node, error) {
	if cfg.NodeName == "" || cfg.Client == nil || !filepath.IsAbs(cfg.RootDir) || cfg.SeenAs != "" && !filepath.IsAbs(cfg.SeenAs) {
		return nil, errors.New("csi: a node's name, a client and absolute directories are needed")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	for _, d := range []struct {
		field  *time.Duration
		byRule time.Duration
	}{{&cfg.Timeout, 2 * time.Minute}, {&cfg.Look, time.Minute}, {&cfg.Again, 10 * time.Second}} {
		if *d.field <= 0 {
			*d.field = d.byRule
		}
	}
	cfg.RootDir = filepath.Clean(cfg.RootDir)
	n := &Node{
		cfg: cfg, tokens: podidentity.NewTokens(cfg.Client), nudged: make(chan struct{}, 1), events: record.NewBroadcaster(),
		metrics: prometheus.NewRegistry(),
	}
	n.rec = n.events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "kubelet", Host: cfg.NodeName})
	n.registry = newRegistry(cfg, n.nudge)
	n.metrics.MustRegister(n.registry.took) // alone in it
	return n, nil
}

// Metrics of the drivers, under upstream's names.
func (n *Node) Metrics() prometheus.Gatherer { return n.metrics }

// Run makes the node's CSINode, and takes down what no pod uses any more, until ctx ends.
// Volumes stay mounted then. Drivers register by way of a pluginwatch.Watcher.
func (n *Node) Run(ctx context.Context) error {
	n.events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: n.cfg.Client.CoreV1().Events("")})
	defer n.events.Shutdown()
	return run.Parallel(n.registry.announce, n.sweep, n.recount)(ctx)
}

// nudge has the background look at once.
func (n *Node) nudge() {
	select {
	case n.nudged <- struct{}{}:
	default:
	}
}

// seen is a path as drivers see it.
func (c *Config) seen(path string) string {
	if rest, below := strings.CutPrefix(path, c.RootDir); below && c.SeenAs != "" {
		return c.SeenAs + rest
	}
	return path
}
