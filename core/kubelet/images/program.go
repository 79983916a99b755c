// SPDX-License-Identifier: Apache-2.0

package images

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// Program describes an image that holds one static program.
type Program struct {
	Name    string // of the image, with a tag
	Path    string // of the program in the image, and its entry point
	Content []byte // the program
	Arch    string // GOARCH
	Env     []string
	Ports   []string // "80/tcp"
	User    string
}

// Image builds the image. The same program always gives the same digest.
func (p Program) Image() (v1.Image, error) {
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		content, err := p.layer()
		return io.NopCloser(bytes.NewReader(content)), err
	})
	if err != nil {
		return nil, fmt.Errorf("make the layer of %s: %w", p.Name, err)
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return nil, fmt.Errorf("make image %s: %w", p.Name, err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("make image %s: %w", p.Name, err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", p.Arch
	config.Config = v1.Config{Entrypoint: []string{p.Path}, Env: p.Env, User: p.User, WorkingDir: "/"}
	for _, port := range p.Ports {
		if config.Config.ExposedPorts == nil {
			config.Config.ExposedPorts = map[string]struct{}{}
		}
		config.Config.ExposedPorts[port] = struct{}{}
	}
	if img, err = mutate.ConfigFile(img, config); err != nil {
		return nil, fmt.Errorf("make image %s: %w", p.Name, err)
	}
	return img, nil
}

// layer is a tar file with the directories and the program, and no times in it.
func (p Program) layer() ([]byte, error) {
	var b bytes.Buffer
	out := tar.NewWriter(&b)
	clean := strings.TrimPrefix(path.Clean("/"+p.Path), "/")
	for i, c := range clean {
		if c != '/' {
			continue
		}
		if err := out.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: clean[:i+1], Mode: 0o755}); err != nil {
			return nil, err
		}
	}
	if err := out.WriteHeader(&tar.Header{Name: clean, Mode: 0o755, Size: int64(len(p.Content))}); err != nil {
		return nil, err
	}
	if _, err := out.Write(p.Content); err != nil {
		return nil, err
	}
	return b.Bytes(), out.Close()
}

// Archive builds the image as a docker archive, which Import and docker read.
func (p Program) Archive() ([]byte, error) {
	img, err := p.Image()
	if err != nil {
		return nil, err
	}
	tag, err := name.NewTag(p.Name)
	if err != nil {
		return nil, fmt.Errorf("the name of image %q: %w", p.Name, err)
	}
	var b bytes.Buffer
	if err := tarball.Write(tag, img, &b); err != nil {
		return nil, fmt.Errorf("write image %s: %w", p.Name, err)
	}
	return b.Bytes(), nil
}
