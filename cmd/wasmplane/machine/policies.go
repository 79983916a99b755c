// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"fmt"

	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/kubelet/engine"
	"github.com/wasmplane/wasmplane/core/kubelet/guarded"
	"github.com/wasmplane/wasmplane/core/kubelet/hostcheck"
	"github.com/wasmplane/wasmplane/core/kubelet/linuxhost"
	"github.com/wasmplane/wasmplane/core/networkpolicy/filter"
)

// policies enforces NetworkPolicies and ClusterNetworkPolicies on this node's pods; what eng starts waits for them.
// own: the pods' bridge is ours.
func (n *Node) policies(set *client.Set, eng engine.Engine, names linuxhost.Names,
	own bool,
) (guardedEngine engine.Engine, enforce func(context.Context) error, err error) {
	c := n.component.Options.Config.Node
	if !c.NetworkPolicies {
		return eng, func(ctx context.Context) error {
			<-ctx.Done()
			return nil
		}, nil
	}
	cfg := filter.Config{Table: names.Table("policies"), Node: c.Name, Client: set.Kube, Dynamic: set.Dynamic, Log: n.component.Options.Logger}
	var link func(sandbox string) (string, error)
	if own && c.CNIConfigDir == "" {
		cfg.Bridge, cfg.Sees = true, hostcheck.BridgeFiltered
		link = func(sandbox string) (string, error) { return linuxhost.LinkOf(names, sandbox) }
	}
	f, err := filter.New(cfg)
	if err != nil {
		return nil, nil, fmt.Errorf("%w; node.networkPolicies: false does without", err)
	}
	return guarded.New(eng, f, link), f.Run, nil
}
