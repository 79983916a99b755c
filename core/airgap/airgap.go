// SPDX-License-Identifier: Apache-2.0

// Package airgap is the one file that brings a cluster to machines without a network: the
// program, images of containers, modules of plugins and manifests, and a list of them all
// with their digests, which can be signed.
//
// An archive is a tar file that has nothing but what its list names, in the list's order and
// with headers that follow from the list. So the same content is the same bytes, its length
// and every place in it are known from the list, and no name, link or size of somebody
// else's choice is ever acted on: an archive that differs in one byte is refused. Its images
// are an OCI image layout, which other tools read.
//
// Nothing of an archive is used before all of it was read and compared. Writing one, and
// taking one over, goes on where it broke off.
package airgap

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// Version is what lists of this form begin with.
const Version = "wasmplane.dev/airgap/v1"

// Names of what every archive has.
const (
	listName      = "airgap.json"
	signatureName = "airgap.json.sig"
	layoutName    = "oci-layout"
	indexName     = "index.json"
	// Program is the name of wasmplane itself.
	Program = "wasmplane"

	blobs   = "blobs/sha256/"
	modules = "modules/"
	// manifests are files of YAML and JSON, without folders.
	manifests = "manifests/"
)

// Bounds of an archive.
const (
	mostList      = 16 << 20
	mostSignature = 16 << 10
	mostFiles     = 100_000
	// mostFile is what a header of a tar file can say.
	mostFile     = 8<<30 - 1
	mostTotal    = 1 << 40
	mostManifest = 1 << 20 // of one manifest: what the folder of manifests reads
	mostModule   = 1 << 30
	mostJSON     = 4 << 20 // an image's index, manifest or configuration, as registries bound them
)

// List says what an archive holds.
type List struct {
	Form string `json:"form"` // Version
	// Platform that images and program are for: linux/amd64.
	Platform string `json:"platform"`
	// MadeBy is the version of wasmplane that made it.
	MadeBy string  `json:"madeBy"`
	Images []Image `json:"images,omitempty"`
	// Modules of plugins.
	Modules []Module `json:"modules,omitempty"`
	// Files are all that the archive holds, in their order.
	Files []File `json:"files"`
}

// Image is one of the archive's images.
type Image struct {
	Name   string `json:"name"`   // docker.io/library/nginx:1.27
	Digest string `json:"digest"` // of its manifest or index: sha256:...
	// Pinned: it is not removed to make room.
	Pinned bool `json:"pinned,omitempty"`
}

// Module is where a plugin's module is from.
type Module struct {
	Source string `json:"source"` // oci://..., https://...
	Digest string `json:"digest"` // of the module
}

// File is one file of an archive.
type File struct {
	Path   string `json:"path"`
	Size   int64  `json:"size"`   // in bytes
	Digest string `json:"digest"` // sha256:...
}

// Kind of a file, by which it is put into its place.
type Kind int

// The kinds of files.
const (
	OfImages Kind = iota // the layout, its index and its blobs
	OfModule
	OfManifest
	OfProgram
)

// Kind of the file.
func (f File) Kind() Kind {
	switch {
	case f.Path == Program:
		return OfProgram
	case strings.HasPrefix(f.Path, modules):
		return OfModule
	case strings.HasPrefix(f.Path, manifests):
		return OfManifest
	}
	return OfImages
}

// Name is the file's within those of its kind: "blobs/sha256-..." of a module, "web.yaml" of a manifest.
func (f File) Name() string {
	switch f.Kind() {
	case OfModule:
		return strings.TrimPrefix(f.Path, modules)
	case OfManifest:
		return strings.TrimPrefix(f.Path, manifests)
	case OfImages, OfProgram:
	}
	return f.Path
}

// Digest of bytes.
func Digest(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

var (
	digestForm   = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	platformForm = regexp.MustCompile(`^linux/[a-z0-9]{1,16}$`)
	// nameForm keeps a name within one folder and visible.
	manifestForm = regexp.MustCompile(`^manifests/[A-Za-z0-9][A-Za-z0-9._-]{0,79}\.(yaml|yml|json)$`)
	moduleForm   = regexp.MustCompile(`^modules/(blobs/sha256-[0-9a-f]{64}|sources/[0-9a-f]{64}\.json)$`)
	blobForm     = regexp.MustCompile(`^blobs/sha256/[0-9a-f]{64}$`)
)

// ManifestName says whether a manifest can be in an archive under a file's name.
func ManifestName(name string) bool { return manifestForm.MatchString(manifests + name) }

// encode is the one form of a list.
func (l *List) encode() ([]byte, error) {
	text, err := json.MarshalIndent(l, "", " ")
	if err != nil {
		return nil, err
	}
	return append(text, '\n'), nil
}

// decode reads a list and checks it. It has to be in the form that encode gives it.
func decode(text []byte) (*List, error) {
	var l List
	if err := json.Unmarshal(text, &l); err != nil {
		return nil, fmt.Errorf("its list cannot be read: %w", err)
	}
	if l.Form != Version {
		return nil, fmt.Errorf("its list is of the form %q, this version reads %s: use the version of wasmplane that made it, or make it again", l.Form, Version)
	}
	again, err := l.encode()
	if err == nil && !bytes.Equal(again, text) {
		err = errors.New("its list is not as wasmplane writes it")
	}
	if err == nil {
		err = l.check()
	}
	return &l, err
}

func (l *List) check() error {
	if !platformForm.MatchString(l.Platform) {
		return fmt.Errorf("its list is for %q: expected a platform such as linux/amd64", l.Platform)
	}
	if len(l.Files) > mostFiles {
		return fmt.Errorf("its list has %d files: at most %d are read", len(l.Files), mostFiles)
	}
	seen, total := map[string]bool{}, int64(0)
	for _, f := range l.Files {
		if err := f.check(); err != nil {
			return fmt.Errorf("its list: the file %q: %w", f.Path, err)
		}
		if seen[f.Path] {
			return fmt.Errorf("its list has the file %q twice", f.Path)
		}
		seen[f.Path] = true
		if total += f.Size; total > mostTotal {
			return fmt.Errorf("its files have more than %d bytes together", int64(mostTotal))
		}
	}
	if seen[indexName] != seen[layoutName] || len(l.Images) > 0 && !seen[indexName] {
		return errors.New("its list has images without an index of them")
	}
	names := map[string]bool{}
	for _, i := range l.Images {
		if i.Name == "" || names[i.Name] || !digestForm.MatchString(i.Digest) || !seen[blobs+strings.TrimPrefix(i.Digest, "sha256:")] {
			return fmt.Errorf("its list: the image %q (%s) is there twice, has no name, or is none of the files", i.Name, i.Digest)
		}
		names[i.Name] = true
	}
	return nil
}

func (f File) check() error {
	most := int64(mostFile)
	switch {
	case f.Path == Program || f.Path == layoutName || f.Path == indexName:
	case blobForm.MatchString(f.Path):
		if f.Digest != "sha256:"+strings.TrimPrefix(f.Path, blobs) {
			return errors.New("its name is not its digest")
		}
	case moduleForm.MatchString(f.Path):
		most = mostModule
		if name, ok := strings.CutPrefix(f.Path, modules+"blobs/sha256-"); ok && f.Digest != "sha256:"+name {
			return errors.New("its name is not its digest")
		}
	case manifestForm.MatchString(f.Path):
		most = mostManifest
	default:
		return errors.New("an archive has no file of such a name")
	}
	if !digestForm.MatchString(f.Digest) {
		return fmt.Errorf("expected a digest sha256:..., found %q", f.Digest)
	}
	if f.Size < 0 || f.Size > most {
		return fmt.Errorf("it has %d bytes: at most %d are possible", f.Size, most)
	}
	return nil
}

// PinnedImages are the names of those that stay.
func (l *List) PinnedImages() (out []string) {
	for _, i := range l.Images {
		if i.Pinned {
			out = append(out, i.Name)
		}
	}
	return out
}
