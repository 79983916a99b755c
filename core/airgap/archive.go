// SPDX-License-Identifier: Apache-2.0

package airgap

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Names under which an index says what an image is called: containerd's and that of the specification.
const (
	imageNameNote = "io.containerd.image.name"
	refNameNote   = "org.opencontainers.image.ref.name"
)

// Archive is one that Keep has compared. It is read at any place, by many at once.
type Archive struct {
	*List
	// File it is in.
	File string

	file   *os.File
	plan   *plan
	byPath map[string]int // numbers of Files
}

// Open opens an archive that Keep has put there.
func Open(path string) (*Archive, error) {
	a, err := openFile(path)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return a, nil
}

func openFile(path string) (*Archive, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	p, err := readHead(f)
	if err == nil {
		var info os.FileInfo
		if info, err = f.Stat(); err == nil && info.Size() != p.total {
			err = fmt.Errorf("it has %d bytes, and its list is of %d", info.Size(), p.total)
		}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	a := &Archive{List: p.list, File: path, file: f, plan: p, byPath: map[string]int{}}
	for i := range p.list.Files {
		a.byPath[p.list.Files[i].Path] = i
	}
	return a, nil
}

// Close closes the file.
func (a *Archive) Close() error { return a.file.Close() }

// Content of a file by its path.
func (a *Archive) Content(path string) (*io.SectionReader, error) {
	i, ok := a.byPath[path]
	if !ok {
		return nil, fmt.Errorf("%s is not in the archive", path)
	}
	return io.NewSectionReader(a.file, a.plan.content(i), a.Files[i].Size), nil
}

func (a *Archive) json(path string, into any) error {
	r, err := a.Content(path)
	if err != nil {
		return err
	}
	if r.Size() > mostJSON {
		return fmt.Errorf("%s has %d bytes: at most %d are read", path, r.Size(), mostJSON)
	}
	if err := json.NewDecoder(r).Decode(into); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}

// checkImages holds the index against the list, and looks whether all that the images consist of is there.
func (a *Archive) checkImages() error {
	if len(a.Images) == 0 {
		return nil
	}
	var index v1.IndexManifest
	if err := a.json(indexName, &index); err != nil {
		return err
	}
	if len(index.Manifests) != len(a.Images) {
		return fmt.Errorf("its index has %d images, and its list %d", len(index.Manifests), len(a.Images))
	}
	for i, d := range index.Manifests {
		image := a.Images[i]
		if d.Digest.String() != image.Digest || d.Annotations[imageNameNote] != image.Name {
			return fmt.Errorf("its index has the image %q (%s) where its list has %q (%s)",
				d.Annotations[imageNameNote], d.Digest, image.Name, image.Digest)
		}
		if _, err := a.reachable(d); err != nil {
			return fmt.Errorf("the image %s: %w", image.Name, err)
		}
	}
	return nil
}

// blobPath of a digest.
func blobPath(h v1.Hash) string { return blobs + h.Hex }

// manyFiles bounds what one image consists of.
const manyFiles = 1000

// reachable are the paths of all that an image consists of.
func (a *Archive) reachable(root v1.Descriptor) ([]string, error) {
	paths := []string{blobPath(root.Digest)}
	manifest := root
	if root.MediaType.IsIndex() {
		var index v1.IndexManifest
		if err := a.json(paths[0], &index); err != nil {
			return nil, err
		}
		child, err := a.ours(index)
		if err != nil {
			return nil, err
		}
		manifest, paths = child, append(paths, blobPath(child.Digest))
	}
	if !manifest.MediaType.IsImage() {
		return nil, fmt.Errorf("%s is of type %s: expected an image", manifest.Digest, manifest.MediaType)
	}
	var m v1.Manifest
	if err := a.json(blobPath(manifest.Digest), &m); err != nil {
		return nil, err
	}
	if len(m.Layers) > manyFiles {
		return nil, fmt.Errorf("it has %d layers: at most %d are read", len(m.Layers), manyFiles)
	}
	for _, d := range append([]v1.Descriptor{m.Config}, m.Layers...) {
		i, ok := a.byPath[blobPath(d.Digest)]
		if !ok || a.Files[i].Size != d.Size {
			return nil, fmt.Errorf("%s (%d bytes) is missing: make the archive again", d.Digest, d.Size)
		}
		paths = append(paths, a.Files[i].Path)
	}
	return paths, nil
}

// ours is the manifest of an index that is for the archive's platform.
func (a *Archive) ours(index v1.IndexManifest) (v1.Descriptor, error) {
	arch := strings.TrimPrefix(a.Platform, "linux/")
	for _, d := range index.Manifests {
		if d.Platform == nil || d.Platform.OS != "linux" || d.Platform.Architecture != arch {
			continue
		}
		if _, ok := a.byPath[blobPath(d.Digest)]; ok {
			return d, nil
		}
	}
	return v1.Descriptor{}, fmt.Errorf("it has no manifest for %s", a.Platform)
}

// WriteImages writes some of the images as an OCI layout, in the form of a tar file.
func (a *Archive) WriteImages(w io.Writer, names []string) error {
	var all, some v1.IndexManifest
	if err := a.json(indexName, &all); err != nil {
		return err
	}
	wanted := map[string]bool{}
	for _, n := range names {
		wanted[n] = true
	}
	some = v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex}
	written := map[string]bool{}
	out := &layoutWriter{w: w}
	out.bytes(layoutName, []byte(layoutText))
	for _, d := range all.Manifests {
		if !wanted[d.Annotations[imageNameNote]] {
			continue
		}
		some.Manifests = append(some.Manifests, d)
		paths, err := a.reachable(d)
		if err != nil {
			return err
		}
		for _, path := range paths {
			if written[path] {
				continue
			}
			written[path] = true
			content, err := a.Content(path)
			if err != nil {
				return err
			}
			out.file(path, content, content.Size())
		}
	}
	text, err := json.Marshal(some)
	if err != nil {
		return err
	}
	out.bytes(indexName, text)
	return out.end()
}
