// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// platform is the content of the image for one architecture.
type platform struct {
	arch  string
	files []file
}

// user in the image: not root. Control planes and simulated nodes need no more; a real
// node is no container.
const user = "65532:65532"

// image writes an OCI layout with an index of all architectures, as one tar: docker load,
// skopeo, crane and wasmplane image import read it.
func (r *release) image(platforms []platform) error {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, p := range platforms {
		img, err := r.platformImage(p)
		if err != nil {
			return fmt.Errorf("%s: %w", p.arch, err)
		}
		index = mutate.AppendManifests(index,
			mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: p.arch}}})
	}
	dir, err := os.MkdirTemp("", "wasmplane-image-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	l, err := layout.Write(dir, mutate.IndexMediaType(empty.Index, types.OCIImageIndex))
	if err != nil {
		return err
	}
	name := "wasmplane:" + r.version
	if err := l.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"io.containerd.image.name": name, "org.opencontainers.image.ref.name": r.version,
	})); err != nil {
		return err
	}
	return r.pack(dir, "wasmplane-"+r.version+"-image.tar")
}

func (r *release) platformImage(p platform) (v1.Image, error) {
	content, err := r.imageLayer(p.files)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil },
		tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err = mutate.Append(img,
		mutate.Addendum{Layer: layer, MediaType: types.OCILayer, History: v1.History{Created: v1.Time{Time: r.time}, CreatedBy: "make release"}})
	if err != nil {
		return nil, err
	}
	c, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	return mutate.ConfigFile(img, r.config(c.DeepCopy(), p.arch))
}

func (r *release) config(c *v1.ConfigFile, arch string) *v1.ConfigFile {
	c.OS, c.Architecture, c.Created = "linux", arch, v1.Time{Time: r.time}
	c.Config = v1.Config{
		Entrypoint: []string{"/usr/bin/wasmplane"}, Cmd: []string{"--help"}, User: user, WorkingDir: "/var/lib/wasmplane",
		Env: []string{"PATH=/usr/bin", "HOME=/var/lib/wasmplane"}, ExposedPorts: map[string]struct{}{"6443/tcp": {}},
		Volumes: map[string]struct{}{"/var/lib/wasmplane": {}},
		Labels: map[string]string{
			"org.opencontainers.image.title": "wasmplane", "org.opencontainers.image.version": r.version,
			"org.opencontainers.image.revision": r.commit,
			"org.opencontainers.image.source":   "https://github.com/wasmplane/wasmplane", "org.opencontainers.image.licenses": "Apache-2.0",
			"org.opencontainers.image.created": r.time.Format(time.RFC3339),
		},
	}
	return c
}

// imageLayer is the one layer: the binary, its licenses, and a folder for data and one for
// temporary files that the user may write.
func (r *release) imageLayer(files []file) ([]byte, error) {
	var b bytes.Buffer
	t := tar.NewWriter(&b)
	folder := func(name string, mode int64, uid int) error {
		return t.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: mode, Uid: uid, Gid: uid, ModTime: r.time})
	}
	for _, d := range []string{"etc/", "usr/", "usr/bin/", "usr/share/", "usr/share/doc/", "usr/share/doc/wasmplane/", "var/", "var/lib/"} {
		if err := folder(d, 0o755, 0); err != nil {
			return nil, err
		}
	}
	if err := folder("var/lib/wasmplane/", 0o700, 65532); err != nil {
		return nil, err
	}
	if err := folder("tmp/", 0o1777, 0); err != nil {
		return nil, err
	}
	files = append([]file{{"passwd", 0o644, []byte("root:x:0:0:root:/:/\nwasmplane:x:65532:65532:wasmplane:/var/lib/wasmplane:/\n")}},
		files...)
	places := map[string]string{
		"passwd": "etc/passwd", "wasmplane": "usr/bin/wasmplane", "LICENSE": "", "NOTICE": "",
		"THIRD-PARTY-LICENSES": "",
	}
	for _, f := range files {
		at, ok := places[f.name]
		if !ok {
			continue
		}
		if at == "" {
			at = "usr/share/doc/wasmplane/" + f.name
		}
		if err := t.WriteHeader(&tar.Header{
			Typeflag: tar.TypeReg, Name: at, Mode: f.mode, Size: int64(len(f.content)),
			ModTime: r.time,
		}); err != nil {
			return nil, err
		}
		if _, err := t.Write(f.content); err != nil {
			return nil, err
		}
	}
	err := t.Close()
	return b.Bytes(), err
}

// pack writes a folder as a tar, in the order of names.
func (r *release) pack(dir, name string) error {
	out, err := os.Create(filepath.Join(r.out, name))
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }()
	t := tar.NewWriter(out)
	err = filepath.WalkDir(dir, func(at string, d os.DirEntry, err error) error {
		if err != nil || at == dir {
			return err
		}
		rel, err := filepath.Rel(dir, at)
		if err != nil {
			return err
		}
		h := &tar.Header{Typeflag: tar.TypeDir, Name: filepath.ToSlash(rel) + "/", Mode: 0o755, ModTime: r.time}
		if d.IsDir() {
			return t.WriteHeader(h)
		}
		content, err := os.ReadFile(at)
		if err != nil {
			return err
		}
		h.Typeflag, h.Name, h.Mode, h.Size = tar.TypeReg, filepath.ToSlash(rel), 0o644, int64(len(content))
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		_, err = t.Write(content)
		return err
	})
	if err != nil {
		return err
	}
	if err := t.Close(); err != nil {
		return err
	}
	return out.Close()
}
