// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/wasmplane/wasmplane/test/internal/harness"
)

// clusterName is always the same: a later run finds a cluster that was kept.
const clusterName = "conformance"

// readyWithin is generous: other work may keep this machine busy.
const readyWithin = 3 * time.Minute

// cluster is a wasmplane of our own.
type cluster struct {
	wasmplane, dir string
	server         *part // nil where it was left running by another run
}

func (c *cluster) kubeconfig() string { return filepath.Join(c.dir, "kubeconfig") }

// answers says whether a cluster that was left there can be used.
func (c *cluster) answers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	_, err := command(ctx, c.wasmplane, "kubectl", "--kubeconfig", c.kubeconfig(), "wait", "--for=condition=Ready", "node", "--all",
		"--timeout=15s")
	return err == nil
}

// start starts the control plane and a real node, and waits until it is ready.
func (c *cluster) start(ctx context.Context, images string) error {
	if err := os.MkdirAll(c.dir, 0o755); err != nil {
		return err
	}
	config := filepath.Join(filepath.Dir(c.dir), "conformance.yaml")
	// Tests expect the kubelet at this port.
	begin := "cluster: {name: " + clusterName + "}\nnode:\n  kubeletListen: \":10250\"\n"
	if err := os.WriteFile(config, []byte(configuration(begin, images)), 0o600); err != nil {
		return err
	}
	listen, err := harness.FreeAddress()
	if err != nil {
		return err
	}
	log := filepath.Join(filepath.Dir(c.dir), "wasmplane.out")
	c.server, err = startPart(ctx, "wasmplane up", log, c.wasmplane, "up", "--data-dir", c.dir, "--config", config, "--listen", listen)
	if err != nil {
		return err
	}
	return c.await(ctx)
}

// configuration of a node: begin ends within the section node.
func configuration(begin, images string) string {
	return "apiVersion: wasmplane.dev/v1alpha1\nkind: Configuration\n" + begin +
		fmt.Sprintf("  mode: real\n  registries:\n  - {host: %s, mirrors: [%q]}\n", upstreamRegistry, images)
}

func (c *cluster) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	notYet := errors.New("it does not say that it is ready")
	err := harness.Poll(ctx, time.Second, func() error {
		select {
		case <-c.server.done:
			cancel() // it never will be
			return c.server.ended()
		default:
		}
		if said, _ := os.ReadFile(c.server.log); strings.Contains(string(said), "Ready in") {
			return nil
		}
		return notYet
	})
	if errors.Is(err, notYet) {
		return fmt.Errorf("wasmplane is not ready after %s; %s has what it says", readyWithin, c.server.log)
	}
	return err
}

func (c *cluster) load(ctx context.Context, archive string) error {
	_, err := command(ctx, c.wasmplane, "image", "import", "--data-dir", c.dir, archive)
	return err
}

// stop ends the cluster and takes everything of it off this machine.
func (c *cluster) stop(ctx context.Context) error {
	if c.server != nil {
		c.server.interrupt(time.Minute)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Minute)
	defer cancel()
	_, err := command(ctx, c.wasmplane, "down", "--purge", "--data-dir", c.dir)
	return errors.Join(err, leftovers(clusterName, c.dir))
}

// leftovers is an error where a cluster that was taken away has left something.
func leftovers(name, dir string) error {
	if err := harness.Leftovers(name, dir); err != nil {
		return fmt.Errorf("cluster %s is gone, and left on this machine: %w", name, err)
	}
	return nil
}

// kubectl leaves a program of that name, for tests that run it.
func (c *cluster) kubectl(dir string) (string, error) {
	file := filepath.Join(dir, "kubectl")
	script := fmt.Sprintf("#!/bin/sh\nexec %q kubectl \"$@\"\n", c.wasmplane)
	if err := os.WriteFile(file, []byte(script), 0o755); err != nil {
		return "", err
	}
	return file, nil
}

func openFile(name string) (io.ReadCloser, error) { return os.Open(name) }
