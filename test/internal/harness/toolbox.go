// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// tools are the names of the toolbox's programs in its image.
var tools = []string{
	"block", "cat", "count", "echo", "env", "exit", "fetch", "fill", "knock", "listen", "litter", "lookup", "ls", "name", "owner", "pods",
	"serve", "sh", "sleep", "tar", "touch", "write",
}

// Toolbox makes the image wasmplane.local/toolbox:1 of the tests' pods: one static program
// under several names, as in busybox. It builds in dir.
func Toolbox(dir, archive string) error {
	program := filepath.Join(dir, "toolbox")
	build := exec.Command("go", "build", "-ldflags", "-s -w", "-o", program, "github.com/wasmplane/wasmplane/test/story/toolbox")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the toolbox: %w\n%s", err, out)
	}
	layer, err := toolboxLayer(program)
	if err != nil {
		return err
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return err
	}
	cfg, err := img.ConfigFile()
	if err != nil {
		return err
	}
	cfg = cfg.DeepCopy()
	cfg.OS, cfg.Architecture = "linux", runtime.GOARCH
	cfg.Config.Env = []string{"PATH=/bin"}
	cfg.Config.Cmd = []string{"serve"}
	if img, err = mutate.ConfigFile(img, cfg); err != nil {
		return err
	}
	tag, err := name.NewTag("wasmplane.local/toolbox:1")
	if err != nil {
		return err
	}
	return tarball.WriteToFile(archive, tag, img)
}

func toolboxLayer(program string) (v1.Layer, error) {
	body, err := os.ReadFile(program)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	headers := []*tar.Header{
		{Name: "bin/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "etc/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777},
		{Name: "bin/toolbox", Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(body))},
	}
	for _, t := range tools {
		headers = append(headers, &tar.Header{Name: "bin/" + t, Typeflag: tar.TypeSymlink, Linkname: "toolbox", Mode: 0o777})
	}
	for _, h := range headers {
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := w.Write(body); err != nil {
				return nil, err
			}
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil })
}
