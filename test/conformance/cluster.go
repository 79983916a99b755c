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

// kubeletDir is where the suite, and most drivers' manifests, expect the kubelet's
// directory of each node.
const kubeletDir = "/var/lib/kubelet"

// readyWithin is generous: other work may keep this machine busy.
const readyWithin = 3 * time.Minute

// cluster is a wasmplane of our own.
type cluster struct {
	wasmplane, dir string
	nodes          int    // 1: this machine alone; 2: again in a network namespace
	dual           bool   // IPv4 and IPv6
	profile        string // the configuration's
	server         *part  // nil where it was left running by another run
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
	families, address := "", ""
	if c.dual {
		host, err := hostAddress()
		if err != nil {
			return err
		}
		if err := c.secondFamily(ctx); err != nil {
			return err
		}
		families, address = ", ipFamilies: [IPv4, IPv6]", "  address: "+host+","+hostEnd6+"\n"
	}
	// Tests expect the kubelet at this port.
	begin := "cluster: {name: " + clusterName + families + "}\nnode:\n" + address + "  kubeletListen: \":10250\"\n"
	if c.nodes == 1 { // its tests put manifests of pods where the kubelet says that it looks for them
		manifests := filepath.Join(filepath.Dir(c.dir), "static-pods")
		if err := errors.Join(os.RemoveAll(manifests), os.MkdirAll(manifests, 0o755)); err != nil {
			return err
		}
		begin += fmt.Sprintf("  staticPodPath: %q\n", manifests)
	}
	if err := os.WriteFile(config, []byte(c.configuration(begin, images)), 0o600); err != nil {
		return err
	}
	if err := c.mountKubelet(ctx); err != nil {
		return err
	}
	listen, err := harness.FreeAddress()
	if err != nil {
		return err
	}
	log := filepath.Join(filepath.Dir(c.dir), "wasmplane.out")
	// Tests look on the node for a process of this name, by `pidof`.
	program, err := c.link(ctx, filepath.Dir(c.dir), "kubelet")
	if err != nil {
		return err
	}
	c.server, err = startPart(ctx, "wasmplane up", log, program, "up", "--data-dir", c.dir, "--config", config, "--listen", listen)
	if err != nil {
		return err
	}
	return c.await(ctx)
}

// secondFamily gives this machine an address of IPv6, and, where it has none, a default route of
// it, which the kernel asks for before it translates the address of a Service.
func (c *cluster) secondFamily(ctx context.Context) error {
	if _, err := command(ctx, "ip", "-6", "address", "replace", hostEnd6+"/128", "dev", "lo"); err != nil {
		return err
	}
	routes, err := command(ctx, "ip", "-6", "route", "show", "default")
	if err != nil || strings.TrimSpace(routes) != "" {
		return err
	}
	_, err = command(ctx, "ip", "-6", "route", "add", "default", "dev", "lo", "metric", ownMetric)
	return err
}

// oneFamily takes back what secondFamily gave.
func (c *cluster) oneFamily(ctx context.Context) {
	_, _ = command(ctx, "ip", "-6", "route", "delete", "default", "dev", "lo", "metric", ownMetric) // it need not be there
	_, _ = command(ctx, "ip", "-6", "address", "delete", hostEnd6+"/128", "dev", "lo")
}

// ownMetric is by what a route is known to be ours.
const ownMetric = "7766"

// mountKubelet has the kubelet's directory of this machine's node also where the suite
// expects it. It is a mount and no link, so that the second node can have its own
// there.
func (c *cluster) mountKubelet(ctx context.Context) error {
	if _, err := command(ctx, "mountpoint", "--quiet", "--nofollow", kubeletDir); err == nil {
		return fmt.Errorf("%s is a mount: another cluster of this machine has its kubelet there, or one that was not taken away (then `umount %s`)", kubeletDir, kubeletDir)
	}
	root := kubeletRoot(c.dir)
	if err := errors.Join(os.MkdirAll(root, 0o755), os.MkdirAll(kubeletDir, 0o755)); err != nil {
		return fmt.Errorf("make the kubelet's directory where the suite expects it: %w", err)
	}
	_, err := command(ctx, "mount", "--bind", root, kubeletDir)
	return err
}

// kubeletRoot is the kubelet's directory in a data directory.
func kubeletRoot(dir string) string { return filepath.Join(dir, "node", "kubelet") }

// unmountKubelet leaves what is at kubeletDir alone where it is not ours.
func (c *cluster) unmountKubelet(ctx context.Context) error {
	if at, err := os.Stat(kubeletDir); err != nil {
		return nil //nolint:nilerr // there is nothing to unmount
	} else if root, err := os.Stat(kubeletRoot(c.dir)); err != nil || !os.SameFile(at, root) {
		return nil //nolint:nilerr // as above
	}
	_, err := command(ctx, "umount", kubeletDir)
	return err
}

// configuration of a node: begin ends within the section node.
func (c *cluster) configuration(begin, images string) string {
	return fmt.Sprintf("apiVersion: wasmplane.dev/v1alpha1\nkind: Configuration\nprofile: %q\n", c.profile) + begin +
		fmt.Sprintf("  mode: real\n  kubeletLink: "+kubeletDir+"\n  registries:\n  - {host: %s, mirrors: [%q]}\n", upstreamRegistry, images) +
		// Upstream's nodes have this one for the tests of RuntimeClass.
		"  runtimeHandlers:\n  - {name: test-handler, runtimeType: io.containerd.runc.v2}\n"
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
	_, err := command(ctx, c.wasmplane, "down", "--data-dir", c.dir)
	if c.dual {
		c.oneFamily(ctx)
	}
	err = errors.Join(err, c.unmountKubelet(ctx))
	_, purgeErr := command(ctx, c.wasmplane, "down", "--purge", "--data-dir", c.dir)
	return errors.Join(err, purgeErr, leftovers(clusterName, c.dir))
}

// leftovers is an error where a cluster that was taken away has left something.
func leftovers(name, dir string) error {
	if err := harness.Leftovers(name, dir); err != nil {
		return fmt.Errorf("cluster %s is gone, and left on this machine: %w", name, err)
	}
	return nil
}

// link leaves the program in dir under another name.
func (c *cluster) link(ctx context.Context, dir, name string) (string, error) {
	file := filepath.Join(dir, name)
	// No script: a test copies kubectl into a pod. A copy where the two are on different disks.
	if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	if err := os.Link(c.wasmplane, file); err == nil {
		return file, nil
	}
	_, err := command(ctx, "cp", c.wasmplane, file)
	return file, err
}

func openFile(name string) (io.ReadCloser, error) { return os.Open(name) }
