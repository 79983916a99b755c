// SPDX-License-Identifier: Apache-2.0

package upgrade

import (
	"fmt"
	"iter"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/wasmplane/wasmplane/core/join/peers"
	"github.com/wasmplane/wasmplane/core/store/mark"
)

// besideServers fails where a server of that release cannot work beside one of the others:
// they share a store, so of any two one may be at most one minor version newer.
func besideServers(is release, others []peers.Peer) error {
	for d := range is.differences(others) {
		switch {
		case d.next.After(d.theirs) && !d.next.Next(d.theirs):
			return fmt.Errorf("server %s is of %s %s, and this one would be of %s: servers share a store and are at most one minor version apart, so upgrade %s first", d.server, d.of, d.their, d.is, d.server)
		case d.theirs.After(d.next) && !d.theirs.Next(d.next):
			return fmt.Errorf("server %s is of %s %s already, and this one would be of %s: servers share a store and are at most one minor version apart, so choose a newer release", d.server, d.of, d.their, d.is)
		}
	}
	return nil
}

// difference is between a release and a server.
type difference struct {
	server, of   string // which server; of what: wasmplane or Kubernetes
	is, their    string // the versions as they are written
	next, theirs mark.Version
}

// differences are those to each of the servers, of wasmplane and of Kubernetes. Versions of a
// working tree are left out: there is nothing to compare.
func (r release) differences(servers []peers.Peer) iter.Seq[difference] {
	return func(yield func(difference) bool) {
		for _, s := range servers {
			for _, d := range []difference{
				{server: s.Called(), of: "wasmplane", is: r.version, their: s.Server.Version},
				{server: s.Called(), of: "Kubernetes", is: r.kubernetes, their: s.Server.Kubernetes},
			} {
				var ok, too bool
				d.next, ok = mark.Parse(d.is)
				d.theirs, too = mark.Parse(d.their)
				if ok && too && !yield(d) {
					return
				}
			}
		}
	}
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
	for d := range is.differences(servers) {
		if d.next.After(d.theirs) {
			return fmt.Errorf("the new binary is of %s %s, and server %s of %s: upgrade the servers first", d.of, d.is, d.server, d.their)
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
