// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/wasmplane/wasmplane/test/conformance/internal/image"
)

// kubernetesVersion is what the suite's programs call themselves; go.mod has the same.
const kubernetesVersion = "v1.37.1"

// program is something that is built from a module of go.mod.
type program struct {
	name, pkg string
	test      bool   // by go test -c
	module    string // folder of the module that it is built in; empty = this one
	suite     string // the only suite that it is built for; empty = all of them
}

// ours says whether a program's source is here, and may have changed since it was built.
func (p program) ours() bool { return strings.HasPrefix(p.pkg, "./") }

func programs() []program {
	const csi = "github.com/kubernetes-csi/"
	return []program{
		{name: "e2e.test", pkg: "k8s.io/kubernetes/test/e2e", test: true},
		{name: nodeProgram, pkg: "k8s.io/kubernetes/test/e2e_node", test: true, suite: nodeSuite},
		{name: "agnhost", pkg: "k8s.io/kubernetes/test/images/agnhost"},
		{name: "nnp", pkg: "k8s.io/kubernetes/test/images/nonewprivs"},
		{name: "resource-consumer", pkg: "k8s.io/kubernetes/test/images/resource-consumer"},
		{name: "consume-cpu", pkg: "k8s.io/kubernetes/test/images/resource-consumer/consume-cpu"},
		{name: "sample-device-plugin", pkg: "k8s.io/kubernetes/test/images/sample-device-plugin"},
		{name: "regression-issue-74839", pkg: "k8s.io/kubernetes/test/images/regression-issue-74839"},
		{name: "sample-apiserver", pkg: "k8s.io/sample-apiserver"},
		{name: "etcd", pkg: "go.etcd.io/etcd/server/v3"},
		{name: policyAPIProgram, pkg: policyAPIModule + "/conformance", test: true},
		{name: "nameserver", pkg: "./test/internal/nameserver", module: "../.."},
		{name: "pause", pkg: "./programs/pause"},
		{name: "registrar", pkg: "./programs/registrar"},
		{name: "livenessprobe", pkg: "./programs/livenessprobe"},
		{name: "hostpathplugin", pkg: "./programs/hostpathplugin"},
		{name: "csi-attacher", pkg: csi + "external-attacher/v4/cmd/csi-attacher", module: "sidecars"},
		{name: "csi-resizer", pkg: csi + "external-resizer/v2/cmd/csi-resizer", module: "sidecars"},
		{name: "csi-snapshotter", pkg: csi + "external-snapshotter/v8/cmd/csi-snapshotter", module: "sidecars"},
		{name: "csi-provisioner", pkg: csi + "external-provisioner/v6/cmd/csi-provisioner", module: "../clients/provisioner"},
	}
}

// builder builds what is missing in the cache.
type builder struct {
	cache string
	suite string
	out   io.Writer
}

func (b builder) path(name string) string { return filepath.Join(b.cache, name) }

// programs builds those that are not there yet. The first time that takes half an
// hour: the suite is large.
func (b builder) programs(ctx context.Context) error {
	if err := os.MkdirAll(b.cache, 0o755); err != nil {
		return err
	}
	for _, p := range programs() {
		if _, err := os.Stat(b.path(p.name)); (err == nil && !p.ours()) || (p.suite != "" && p.suite != b.suite) {
			continue
		}
		if !p.ours() {
			fmt.Fprintf(b.out, "building %s\n", p.name)
		}
		args := []string{"build"}
		if p.test {
			// What is not ours need not be vetted: that takes as long as to compile it.
			args = []string{"test", "-c", "-vet=off"}
		}
		args = append(args, "-ldflags", versionFlags(), "-o", b.path(p.name+".new"), p.pkg)
		cmd := exec.CommandContext(ctx, "go", args...)
		cmd.Dir = p.module
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		cmd.Stdout, cmd.Stderr = b.out, b.out
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("build %s: %w", p.name, err)
		}
		if err := b.replace(p.name); err != nil {
			return err
		}
	}
	return b.busybox(ctx)
}

// replace puts a new program into its place. One that is as the old one is dropped: an
// image is made again when its files are newer.
func (b builder) replace(name string) error {
	now, err := os.ReadFile(b.path(name + ".new"))
	if err != nil {
		return err
	}
	if old, err := os.ReadFile(b.path(name)); err == nil && bytes.Equal(old, now) {
		return os.Remove(b.path(name + ".new"))
	}
	return os.Rename(b.path(name+".new"), b.path(name))
}

func versionFlags() string {
	flags := []string{"-s", "-w"}
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		// In this order: another makes another file.
		for _, set := range []string{"gitVersion=" + kubernetesVersion, "gitMajor=1", "gitMinor=37"} {
			flags = append(flags, "-X "+pkg+"."+set)
		}
	}
	return strings.Join(flags, " ")
}

// images makes the archive of images, once for each recipe.
func (b builder) images(ctx context.Context) (string, error) {
	specs, err := b.specs(ctx)
	if err != nil {
		return "", err
	}
	recipe, err := image.Recipe(specs)
	if err != nil {
		return "", err
	}
	archive := b.path("images-" + recipe + ".tar")
	if _, err := os.Stat(archive); !errors.Is(err, os.ErrNotExist) {
		return archive, err
	}
	fmt.Fprintln(b.out, "making images")
	old, err := filepath.Glob(b.path("images*.tar"))
	if err != nil {
		return "", err
	}
	for _, o := range old {
		if err := os.Remove(o); err != nil {
			return "", err
		}
	}
	m := &image.Builder{Debian: b.debian(), Dir: b.path("layers")}
	return archive, m.Build(ctx, specs, archive)
}

// specs are the images of the suite that was built.
func (b builder) specs(ctx context.Context) ([]image.Spec, error) {
	wanted, err := command(ctx, b.path("e2e.test"), "-list-images")
	if err != nil {
		return nil, err
	}
	module, err := command(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes")
	if err != nil {
		return nil, err
	}
	applets, err := command(ctx, b.path("busybox"), "--list")
	if err != nil {
		return nil, err
	}
	others, err := policyAPIImages(ctx)
	if err != nil {
		return nil, err
	}
	names := append(strings.Fields(wanted), others...)
	slices.Sort(names) // the suite lists them in another order each time
	return image.Specs(image.Programs{
		Agnhost: b.path("agnhost"), Nameserver: b.path("nameserver"), NoNewPrivs: b.path("nnp"), SampleAPIServer: b.path("sample-apiserver"), Etcd: b.path("etcd"),
		Pause: b.path("pause"), ResourceConsumer: b.path("resource-consumer"), ConsumeCPU: b.path("consume-cpu"),
		DevicePlugin: b.path("sample-device-plugin"), Conntrack: b.path("regression-issue-74839"),
		Registrar: b.path("registrar"), LivenessProbe: b.path("livenessprobe"), HostPath: b.path("hostpathplugin"),
		Attacher: b.path("csi-attacher"), Provisioner: b.path("csi-provisioner"), Resizer: b.path("csi-resizer"),
		Snapshotter: b.path("csi-snapshotter"),
		Busybox:     b.path("busybox"), Applets: strings.Fields(applets), Kubernetes: strings.TrimSpace(module),
	}, names)
}

func command(ctx context.Context, name string, args ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, stderr.String())
	}
	return stdout.String(), nil
}
