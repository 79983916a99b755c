// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

const (
	// nodeSuite is the suite of upstream's tests of nodes.
	nodeSuite = "node"
	// nodeProgram is what it is built to.
	nodeProgram = "e2e_node.test"
	// tester is the account as which that suite asks: it takes a token, and no kubeconfig.
	tester = "node-e2e"
	// tokenLife is more than a run takes.
	tokenLife = "24h"
)

// nodeFlags keep the suite from starting a kubelet, an API server and etcd of upstream's: ours are tested.
func nodeFlags() []string {
	return []string{"--start-services=false", "--stop-services=false", "--prepull-images=false"}
}

// nodeArgs are what the suite of nodes is told of the cluster.
func (c *cluster) nodeArgs(ctx context.Context) ([]string, error) {
	kubectl := func(args ...string) (string, error) {
		out, err := command(ctx, c.wasmplane, append([]string{"kubectl", "--kubeconfig", c.kubeconfig()}, args...)...)
		return strings.TrimSpace(out), err
	}
	if _, err := kubectl("get", "serviceaccount", tester, "-n", "kube-system"); err != nil {
		if _, err := kubectl("create", "serviceaccount", tester, "-n", "kube-system"); err != nil {
			return nil, err
		}
	}
	if _, err := kubectl("get", "clusterrolebinding", tester); err != nil {
		if _, err := kubectl("create", "clusterrolebinding", tester, "--clusterrole=cluster-admin", "--serviceaccount=kube-system:"+tester); err != nil {
			return nil, err
		}
	}
	token, err := kubectl("create", "token", tester, "-n", "kube-system", "--duration="+tokenLife)
	if err != nil {
		return nil, err
	}
	host, err := kubectl("config", "view", "--minify", "-o", "jsonpath={.clusters[0].cluster.server}")
	if err != nil {
		return nil, err
	}
	s, err := c.state()
	if err != nil {
		return nil, err
	}
	node := s.text("nodeName")
	if node == "" {
		return nil, fmt.Errorf("the cluster in %s has no node of this machine", c.dir)
	}
	socket, err := c.runtimeSocket()
	if err != nil {
		return nil, err
	}
	return append(nodeFlags(), "--host="+host, "--bearer-token="+token, "--node-name="+node,
		"--container-runtime-endpoint=unix://"+socket), nil
}

var socketPattern = regexp.MustCompile(`(?m)^ +address = "(/.*\.sock)"$`)

// runtimeSocket is where the node's containerd listens: below its directory, or in /run where
// that has too long a path.
func (c *cluster) runtimeSocket() (string, error) {
	file := filepath.Join(c.dir, "node", "etc", "containerd.toml")
	text, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("look for containerd's socket: %w", err)
	}
	m := socketPattern.FindSubmatch(text)
	if m == nil {
		return "", fmt.Errorf("%s names no socket", file)
	}
	return string(m[1]), nil
}
