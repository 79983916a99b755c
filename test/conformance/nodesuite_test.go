// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The suite of nodes is told of our runtime's socket, wherever that is.
func TestRuntimeSocket(t *testing.T) {
	c := &cluster{dir: t.TempDir()}
	if _, err := c.runtimeSocket(); err == nil {
		t.Error("a cluster without a node has a socket")
	}
	dir := filepath.Join(c.dir, "node", "etc")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "containerd.toml")
	for text, want := range map[string]string{
		"[plugins.'io.containerd.server.v1.grpc']\n  address = \"/run/wp-x/containerd.sock\"\n[plugins.'io.containerd.server.v1.ttrpc']\n  address = \"/run/wp-x/containerd.sock.ttrpc\"\n": "/run/wp-x/containerd.sock",
		"root = \"/x\"\n": "",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := c.runtimeSocket()
		if got != want || (err != nil) != (want == "") {
			t.Errorf("the socket is %q (%v), want %q", got, err, want)
		}
	}
}

// Nothing of upstream's services is started: the kubelet under test is ours.
func TestTheNodeSuiteStartsNothing(t *testing.T) {
	if flags := strings.Join(nodeFlags(), " "); !strings.Contains(flags, "--start-services=false") || !strings.Contains(flags, "--stop-services=false") {
		t.Errorf("the suite of nodes is started with %s", flags)
	}
	if s, err := setOf(nodeSuite); err != nil || !s.takes("[sig-node] Anything [Serial]") {
		t.Errorf("the set %q takes not all: %v", nodeSuite, err)
	}
}
