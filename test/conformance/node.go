// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// The second node is this machine once more: a kubelet, a containerd and a
// service proxy in a network namespace of their own, with names of their own for
// whatever is shared. Tests that want two nodes see two: two addresses, two pod
// networks with a route between them.
const (
	secondName = "second"
	secondNet  = "wpconf2"
	hostLink   = "wpconf2h"
	nodeLink   = "wpconf2n"
	hostEnd    = "198.18.77.1"
	nodeEnd    = "198.18.77.2"
	// The same of IPv6, in a cluster of both families. This machine has hostEnd6 also where it has no other
	// link, before the second node comes.
	hostEnd6 = "fd77:6366:7761:736d::1"
	nodeEnd6 = "fd77:6366:7761:736d::2"
)

// secondNode has its data beside the cluster's.
type secondNode struct {
	*cluster
	dir   string
	parts []*part
}

// state is what wasmplane keeps of a cluster for later commands.
type state map[string]any

func (c *cluster) state() (state, error) {
	data, err := os.ReadFile(filepath.Join(c.dir, "state.json"))
	if err != nil {
		return nil, err
	}
	s := state{}
	return s, json.Unmarshal(data, &s)
}

func (s state) text(key string) string {
	v, _ := s[key].(string)
	return v
}

// addNode starts the second node and waits until it is ready. What it answers has
// to be stopped, after an error too.
func (c *cluster) addNode(ctx context.Context, images string) (*secondNode, error) {
	n := &secondNode{cluster: c, dir: c.dir + "-" + secondName}
	if err := os.MkdirAll(n.dir, 0o700); err != nil {
		return n, err
	}
	server, err := n.server(ctx)
	if err != nil {
		return n, err
	}
	if err := n.files(server, images); err != nil {
		return n, err
	}
	if err := n.connect(ctx); err != nil {
		return n, err
	}
	for _, name := range []string{"kubelet", "proxy"} {
		if err := n.start(ctx, name); err != nil {
			return n, err
		}
	}
	if err := n.awaitReady(ctx); err != nil {
		return n, err
	}
	return n, n.routes(ctx)
}

func (n *secondNode) kubectlOut(ctx context.Context, args ...string) (string, error) {
	out, err := command(ctx, n.wasmplane, append([]string{"kubectl", "--kubeconfig", n.kubeconfig()}, args...)...)
	return strings.TrimSpace(out), err
}

// server is where pods, and so the second node, reach the API.
func (n *secondNode) server(ctx context.Context) (string, error) {
	endpoint, err := n.kubectlOut(ctx, "get", "--raw", "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes")
	if err != nil {
		return "", err
	}
	var slice struct {
		Endpoints []struct{ Addresses []string }
		Ports     []struct{ Port int }
	}
	if err := json.Unmarshal([]byte(endpoint), &slice); err != nil {
		return "", err
	}
	if len(slice.Endpoints) == 0 || len(slice.Ports) == 0 {
		return "", errors.New("the Service kubernetes has no endpoint")
	}
	u := url.URL{Scheme: "https", Host: fmt.Sprintf("%s:%d", slice.Endpoints[0].Addresses[0], slice.Ports[0].Port)}
	return u.String(), nil
}

// files writes configuration, state and kubeconfigs of the node.
func (n *secondNode) files(server, images string) error {
	s, err := n.state()
	if err != nil {
		return err
	}
	address := nodeEnd
	if n.dual {
		address += "," + nodeEnd6
	}
	config := n.configuration(fmt.Sprintf("cluster: {name: %s, podCIDR: %q, serviceCIDR: %q}\nnode:\n  name: %s\n  address: %s\n  kubeletListen: \"%s:10250\"\n",
		s.text("cluster")+"-2", s.text("podCIDR"), s.text("serviceCIDR"), secondName, address, nodeEnd), images)
	s["cluster"], s["nodeName"], s["nodes"] = s.text("cluster")+"-2", secondName, "node "+secondName
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if err := errors.Join(
		os.WriteFile(filepath.Join(n.dir, "config.yaml"), []byte(config), 0o600),
		os.WriteFile(filepath.Join(n.dir, "state.json"), data, 0o600),
		symlink(filepath.Join(n.cluster.dir, "pki"), filepath.Join(n.dir, "pki")),
	); err != nil {
		return err
	}
	for name, id := range map[string]pkix.Name{
		"kubelet": {CommonName: "system:node:" + secondName, Organization: []string{"system:nodes"}},
		"proxy":   {CommonName: "system:kube-proxy"},
		"dns":     {CommonName: "system:serviceaccount:kube-system:coredns", Organization: []string{"system:serviceaccounts", "system:serviceaccounts:kube-system"}},
	} {
		if err := n.identity(filepath.Join(n.dir, name+".kubeconfig"), server, id); err != nil {
			return fmt.Errorf("kubeconfig of the second node's %s: %w", name, err)
		}
	}
	return nil
}

func symlink(to, at string) error {
	if err := os.Symlink(to, at); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return nil
}

// identity writes a kubeconfig with a certificate of the cluster's authority.
func (n *secondNode) identity(file, server string, subject pkix.Name) error {
	pki := filepath.Join(n.cluster.dir, "pki")
	authority, err := tls.LoadX509KeyPair(filepath.Join(pki, "ca.crt"), filepath.Join(pki, "ca.key"))
	if err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: subject, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(30 * 24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, authority.Leaf, key.Public(), authority.PrivateKey)
	if err != nil {
		return err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	ca, err := os.ReadFile(filepath.Join(pki, "ca.crt"))
	if err != nil {
		return err
	}
	named := func(key string, fields map[string]any) []map[string]any {
		return []map[string]any{{"name": "c", key: fields}}
	}
	data, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"clusters": named("cluster", map[string]any{"server": server, "certificate-authority-data": ca}),
		"users": named("user", map[string]any{
			"client-certificate-data": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
			"client-key-data":         pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}),
		}),
		"contexts": named("context", map[string]any{"cluster": "c", "user": "c"}),
	})
	if err != nil {
		return err
	}
	return os.WriteFile(file, data, 0o600)
}

// connect makes the network namespace and its link to this machine.
func (n *secondNode) connect(ctx context.Context) error {
	n.disconnect(ctx)
	host, err := hostAddress()
	if err != nil {
		return err
	}
	commands := [][]string{
		{"ip", "netns", "add", secondNet},
		{"ip", "link", "add", hostLink, "type", "veth", "peer", "name", nodeLink, "netns", secondNet},
		{"ip", "address", "add", hostEnd + "/30", "dev", hostLink},
		{"ip", "link", "set", hostLink, "up"},
		// Tests expect that a node speaks from its own address, not from the link's.
		{"ip", "route", "replace", nodeEnd + "/32", "dev", hostLink, "src", host},
		{"ip", "-n", secondNet, "link", "set", "lo", "up"},
		{"ip", "-n", secondNet, "address", "add", nodeEnd + "/30", "dev", nodeLink},
		{"ip", "-n", secondNet, "link", "set", nodeLink, "up"},
		{"ip", "-n", secondNet, "route", "add", "default", "via", hostEnd},
	}
	if n.dual {
		commands = append(commands,
			[]string{"ip", "address", "add", hostEnd6 + "/64", "dev", hostLink, "nodad"},
			[]string{"ip", "-n", secondNet, "address", "add", nodeEnd6 + "/64", "dev", nodeLink, "nodad"},
			[]string{"ip", "-n", secondNet, "route", "add", "default", "via", hostEnd6})
	}
	for _, args := range commands {
		if _, err := command(ctx, args[0], args[1:]...); err != nil {
			return err
		}
	}
	return nil
}

func (n *secondNode) disconnect(ctx context.Context) {
	_, _ = command(ctx, "ip", "netns", "delete", secondNet) // it need not be there
	_, _ = command(ctx, "ip", "link", "delete", hostLink)
}

// ownKubelet mounts a directory ($1) at kubeletDir ($0), and runs the rest there. What
// it mounts, nobody else sees: the first node's mount, which it covers, is shared, as
// drivers want it, and with nobody. What is mounted below either of the two directories
// is below both.
const ownKubelet = `mount --make-private "$0" && mount --make-shared "$0" && mount --bind "$1" "$0" && shift && exec "$@"`

// start runs a component in the network namespace, and in a mount namespace of which
// only kubeletDir is its own: other mounts and cgroups are this machine's.
func (n *secondNode) start(ctx context.Context, name string) error {
	root := kubeletRoot(n.dir)
	if err := os.MkdirAll(root, 0o755); err != nil {
		return err
	}
	p, err := startPart(ctx, "the second node's "+name, filepath.Join(n.dir, name+".log"), "nsenter", "--net=/run/netns/"+secondNet,
		"unshare", "--mount", "--propagation", "unchanged", "sh", "-c", ownKubelet, kubeletDir, root, n.wasmplane, name,
		"--data-dir", n.dir, "--config", filepath.Join(n.dir, "config.yaml"), "--kubeconfig", filepath.Join(n.dir, name+".kubeconfig"))
	if err != nil {
		return err
	}
	n.parts = append(n.parts, p)
	return nil
}

func (n *secondNode) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	for {
		if _, err := n.kubectlOut(ctx, "wait", "--for=condition=Ready", "node/"+secondName, "--timeout=60s"); err == nil {
			return nil
		} else if ctx.Err() != nil {
			return fmt.Errorf("the second node is not ready, its logs are in %s: %w", n.dir, err)
		}
		timer := time.NewTimer(500 * time.Millisecond)
		select {
		case <-timer.C:
		case <-n.parts[0].done:
			return n.parts[0].ended()
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

// routes lets the nodes' pods reach one another.
func (n *secondNode) routes(ctx context.Context) error {
	pods, err := n.kubectlOut(ctx, "get", "node", secondName, "-o", "jsonpath={.spec.podCIDRs[*]}")
	if err != nil {
		return err
	}
	for _, network := range strings.Fields(pods) {
		via := nodeEnd
		if strings.Contains(network, ":") {
			via = nodeEnd6
		}
		if _, err := command(ctx, "ip", "route", "replace", network, "via", via); err != nil {
			return err
		}
	}
	return nil
}

// load imports images into the second node's runtime.
func (n *secondNode) load(ctx context.Context, archive string) error {
	_, err := command(ctx, n.wasmplane, "image", "import", "--data-dir", n.dir, archive)
	return err
}

// stop takes the node away.
func (n *secondNode) stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Minute)
	defer cancel()
	for _, p := range n.parts {
		p.interrupt(30 * time.Second)
	}
	_, err := command(ctx, "nsenter", "--net=/run/netns/"+secondNet, n.wasmplane, "down", "--data-dir", n.dir)
	n.disconnect(ctx)
	return errors.Join(err, leftovers(clusterName+"-2", n.dir), os.RemoveAll(n.dir))
}
