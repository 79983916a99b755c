// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/process"
	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/core/kubelet"
	"github.com/wasmplane/wasmplane/core/kubelet/healthz"
	"github.com/wasmplane/wasmplane/core/kubelet/logind"
	"github.com/wasmplane/wasmplane/core/kubelet/oomwatch"
	"github.com/wasmplane/wasmplane/core/kubelet/shutdown"
	"github.com/wasmplane/wasmplane/core/run"
)

// healthz tells programs of this machine that the kubelet lives.
func (n *Node) healthz(ctx context.Context) error {
	configured := config.NoListen
	switch port := n.component.Options.Config.Node.HealthzPort; port {
	case 0:
	case config.UsualHealthzPort: // may be another cluster's
		configured = ""
	default:
		configured = loopback(port)
	}
	l, err := n.component.Listen(ctx, "the kubelet's health (node.healthzPort)", configured, loopback(config.UsualHealthzPort))
	if err != nil {
		return err
	}
	if l == nil {
		<-ctx.Done()
		return nil
	}
	return healthz.Serve(ctx, l)
}

// oomEvents says of the node which processes the kernel ends because the machine is out of memory, where the kernel's log
// can be read.
func (n *Node) oomEvents(k *kubelet.Kubelet) func(context.Context) error {
	log := n.component.Options.Logger
	return func(ctx context.Context) error {
		if !run.Await(ctx, k.Ready()) {
			return nil
		}
		bound := rate.NewLimiter(rate.Every(10*time.Second), 10)
		err := oomwatch.Watch(ctx, func(v oomwatch.Victim) {
			log.WarnContext(ctx, "the machine is out of memory, and the kernel has ended a process", "process", v.Process, "pid", v.PID)
			if bound.Allow() {
				k.NodeEvent(corev1.EventTypeWarning, "SystemOOM", v.String())
			}
		})
		if err != nil {
			log.InfoContext(ctx, "the node does not say when the machine is out of memory", "error", err)
		}
		<-ctx.Done()
		return nil
	}
}

// shutdowns of the machine wait for the node's pods.
func shutdowns(o process.Options) (*shutdown.Keeper, error) {
	settings := o.Config.Node.Shutdown()
	periods, err := settings.Read()
	if err != nil {
		return nil, fmt.Errorf("node.%w", err)
	}
	return shutdown.New(shutdown.Config{Periods: periods, Logger: o.Logger, Connect: func(ctx context.Context) (shutdown.Power, error) {
		m, err := logind.Connect(ctx, logind.Config{Who: "wasmplane " + o.Config.Cluster.Name})
		if err != nil {
			return nil, err
		}
		return m, nil
	}}), nil
}

// watchOver the machine, once the kubelet knows its pods.
func watchOver(ctx context.Context, down *shutdown.Keeper, k *kubelet.Kubelet) error {
	if !run.Await(ctx, k.Ready()) {
		return nil
	}
	return down.Run(ctx, k)
}

func loopback(port int32) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))) }

// Answers fails where the node's server does not answer on this machine, whatever it
// answers: that a container runtime or an API server is away is no reason to start
// this process anew.
func (n *Node) Answers(ctx context.Context) error {
	port := n.port.Load()
	if port == 0 {
		return errors.New("the kubelet does not listen yet")
	}
	if _, err := process.Alive(ctx, "https://"+net.JoinHostPort("localhost", strconv.Itoa(int(port)))+"/healthz", nil); err != nil {
		return fmt.Errorf("the kubelet: %w", err)
	}
	return nil
}
