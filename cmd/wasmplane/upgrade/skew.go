// SPDX-License-Identifier: Apache-2.0

package upgrade

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/wasmplane/wasmplane/core/join/peers"
	"github.com/wasmplane/wasmplane/core/store/mark"
)

// besideServers fails where a server of that release cannot work beside one of the others:
// they share a store, so of any two one may be at most one minor version newer.
func besideServers(is release, others []peers.Peer) error {
	for _, o := range others {
		for _, v := range []struct{ of, is, other string }{
			{"wasmplane", is.version, o.Server.Version},
			{"Kubernetes", is.kubernetes, o.Server.Kubernetes},
		} {
			next, ok := mark.Parse(v.is)
			theirs, too := mark.Parse(v.other)
			switch {
			case !ok || !too: // of a working tree
			case next.After(theirs) && !next.Next(theirs):
				return fmt.Errorf("server %s is of %s %s, and this one would be of %s: servers share a store and are at most one minor version apart, so upgrade %s first", o.Called(), v.of, v.other, v.is, o.Called())
			case theirs.After(next) && !theirs.Next(next):
				return fmt.Errorf("server %s is of %s %s already, and this one would be of %s: servers share a store and are at most one minor version apart, so choose a newer release", o.Called(), v.of, v.other, v.is)
			}
		}
	}
	return nil
}

// oldestKubelet is by how many minor versions a kubelet may be older than a server
// (kubernetes.io/releases/version-skew-policy).
const oldestKubelet = 3

// beforeKubelets fails where a node's kubelet would be newer than the server, or too old for it.
// own is the node of this machine, whose kubelet changes with the server.
func beforeKubelets(kubernetes, own string, nodes []corev1.Node) error {
	server, err := version.ParseSemantic(kubernetes)
	if err != nil {
		return nil //nolint:nilerr // of a working tree: there is nothing to compare
	}
	for i := range nodes {
		kubelet, err := version.ParseSemantic(nodes[i].Status.NodeInfo.KubeletVersion)
		if err != nil || nodes[i].Name == own {
			continue
		}
		behind := int(server.Minor()) - int(kubelet.Minor())
		switch text := nodes[i].Status.NodeInfo.KubeletVersion; {
		case kubelet.Major() > server.Major() || kubelet.Major() == server.Major() && behind < 0:
			return fmt.Errorf("the kubelet of node %s is of Kubernetes %s, newer than this server would be (%s): no kubelet may be newer than a server, so choose a newer release", nodes[i].Name, text, kubernetes)
		case kubelet.Major() == server.Major() && behind > oldestKubelet:
			return fmt.Errorf("the kubelet of node %s is of Kubernetes %s, and a server of %s works with kubelets that are at most %d minor versions older: upgrade that machine first, to the version of today's servers", nodes[i].Name, text, kubernetes, oldestKubelet)
		}
	}
	return nil
}

// afterServers fails where a worker of that release would be newer than a server.
func afterServers(is release, servers []peers.Peer) error {
	for _, o := range servers {
		for _, v := range []struct{ of, is, server string }{
			{"wasmplane", is.version, o.Server.Version},
			{"Kubernetes", is.kubernetes, o.Server.Kubernetes},
		} {
			next, ok := mark.Parse(v.is)
			theirs, too := mark.Parse(v.server)
			if ok && too && next.After(theirs) {
				return fmt.Errorf("the new binary is of %s %s, and server %s of %s: upgrade the servers first", v.of, v.is, o.Called(), v.server)
			}
		}
	}
	return kubeletOf(is.kubernetes, servers)
}

// kubeletOf fails where a kubelet would be too old for a server.
func kubeletOf(kubernetes string, servers []peers.Peer) error {
	kubelet, err := version.ParseSemantic(kubernetes)
	if err != nil {
		return nil //nolint:nilerr // of a working tree: there is nothing to compare
	}
	for _, o := range servers {
		server, err := version.ParseSemantic(o.Server.Kubernetes)
		if err == nil && kubelet.Major() == server.Major() && int(server.Minor())-int(kubelet.Minor()) > oldestKubelet {
			return fmt.Errorf("the new binary is of Kubernetes %s, and server %s of %s works with kubelets that are at most %d minor versions older: choose a newer release", kubernetes, o.Called(), o.Server.Kubernetes, oldestKubelet)
		}
	}
	return nil
}
