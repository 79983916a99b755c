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
	"strings"

	"github.com/wasmplane/wasmplane/test/conformance/internal/image"
)

// kubernetesVersion is what the suite's programs call themselves; go.mod has the same.
const kubernetesVersion = "v1.37.1"

// program is something that is built from a module of go.mod.
type program struct {
	name, pkg string
	test      bool // by go test -c
}

func programs() []program {
	return []program{
		{name: "e2e.test", pkg: "k8s.io/kubernetes/test/e2e", test: true},
		{name: "agnhost", pkg: "k8s.io/kubernetes/test/images/agnhost"},
		{name: "nnp", pkg: "k8s.io/kubernetes/test/images/nonewprivs"},
		{name: "sample-apiserver", pkg: "k8s.io/sample-apiserver"},
		{name: "etcd", pkg: "go.etcd.io/etcd/server/v3"},
		{name: "pause", pkg: "./programs/pause"},
	}
}

// builder builds what is missing in the cache.
type builder struct {
	cache string
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
		if _, err := os.Stat(b.path(p.name)); err == nil {
			continue
		}
		fmt.Fprintf(b.out, "building %s\n", p.name)
		args := []string{"build"}
		if p.test {
			args = []string{"test", "-c"}
		}
		args = append(args, "-ldflags", versionFlags(), "-o", b.path(p.name+".new"), p.pkg)
		cmd := exec.CommandContext(ctx, "go", args...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		cmd.Stdout, cmd.Stderr = b.out, b.out
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("build %s: %w", p.name, err)
		}
		if err := os.Rename(b.path(p.name+".new"), b.path(p.name)); err != nil {
			return err
		}
	}
	return nil
}

func versionFlags() string {
	flags := []string{"-s", "-w"}
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		for name, value := range map[string]string{"gitVersion": kubernetesVersion, "gitMajor": "1", "gitMinor": "37"} {
			flags = append(flags, "-X "+pkg+"."+name+"="+value)
		}
	}
	return strings.Join(flags, " ")
}

// images makes the archive of images, once.
func (b builder) images(ctx context.Context) (string, error) {
	archive := b.path("images.tar")
	if _, err := os.Stat(archive); err == nil {
		return archive, nil
	} else if !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	fmt.Fprintln(b.out, "making images")
	wanted, err := command(ctx, b.path("e2e.test"), "-list-images")
	if err != nil {
		return "", err
	}
	module, err := command(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes")
	if err != nil {
		return "", err
	}
	busybox, err := command(ctx, "busybox", "--list")
	if err != nil {
		return "", fmt.Errorf("busybox-static is missing on this machine: %w", err)
	}
	specs, err := image.Specs(image.Programs{
		Agnhost: b.path("agnhost"), NoNewPrivs: b.path("nnp"), SampleAPIServer: b.path("sample-apiserver"), Etcd: b.path("etcd"), Pause: b.path("pause"),
		Kubernetes: strings.TrimSpace(module), Applets: strings.Fields(busybox),
	}, strings.Fields(wanted))
	if err != nil {
		return "", err
	}
	m := &image.Builder{Debian: image.Debian{Dir: b.path("debian")}, Dir: b.path("layers")}
	return archive, m.Build(ctx, specs, archive)
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
