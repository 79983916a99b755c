// SPDX-License-Identifier: Apache-2.0

package images

import (
	"context"
	"errors"
	"fmt"
	"io"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/wasmplane/wasmplane/core/run"
)

// Wanted is an image as it has to be in the store.
type Wanted struct {
	Name, Digest string
	Pinned       bool // nobody removes it to make room
	// OrNewer: an image of this name with another digest will do.
	OrNewer bool
}

// Lacks says whether the store has not the image of this name with this digest, or whether it is to be pinned and is not.
func (s *Store) Lacks(ctx context.Context, w Wanted) (bool, error) {
	img, err := s.client.GetImage(ctx, w.Name)
	if errdefs.IsNotFound(err) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for image %s: %w", w.Name, err)
	}
	if img.Target().Digest.String() != w.Digest {
		return !w.OrNewer, nil
	}
	return w.Pinned && img.Labels()[pinned] != "pinned", nil
}

// Unpin lets an image be removed to make room, unless it is another one by now.
func (s *Store) Unpin(ctx context.Context, name, digest string) error {
	img, err := s.client.GetImage(ctx, name)
	if errdefs.IsNotFound(err) || err == nil && (img.Target().Digest.String() != digest || img.Labels()[pinned] == "") {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for image %s: %w", name, err)
	}
	is := img.Metadata()
	delete(is.Labels, pinned)
	if _, err := s.client.ImageService().Update(ctx, is, "labels"); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("unpin image %s: %w", name, err)
	}
	return nil
}

// ImportLayout imports the images of an OCI layout that write writes as a tar file. They have full names there.
func (s *Store) ImportLayout(ctx context.Context, pin bool, write func(io.Writer) error, progress func(string)) error {
	r, w := io.Pipe()
	written := run.Go("images: a layout", func() error { return w.CloseWithError(write(w)) }) // ends when the reader is closed
	var with []containerd.ImportOpt
	if pin {
		with = append(with, containerd.WithImageLabels(map[string]string{pinned: "pinned"}))
	}
	_, err := s.load(ctx, r, "", progress, with...)
	return errors.Join(err, r.Close(), <-written)
}

// Described is an image of the store, as its manifest or index is described.
type Described struct {
	Name, MediaType, Digest string
	Size                    int64 // of the manifest or index, in bytes
}

// Describe finds an image by its name, which may be short.
func (s *Store) Describe(ctx context.Context, name string) (Described, error) {
	full := normalized(name)
	img, err := s.client.GetImage(ctx, full)
	if errdefs.IsNotFound(err) {
		return Described{}, fmt.Errorf("the node has no image %s; `wasmplane image ls` lists those that it has", full)
	}
	if err != nil {
		return Described{}, fmt.Errorf("look for image %s: %w", full, err)
	}
	t := img.Target()
	return Described{Name: full, MediaType: t.MediaType, Digest: t.Digest.String(), Size: t.Size}, nil
}

// Content opens what has a digest.
func (s *Store) Content(ctx context.Context, digested string, size int64) (io.ReadCloser, error) {
	d, err := digest.Parse(digested)
	if err != nil {
		return nil, err
	}
	at, err := s.client.ContentStore().ReaderAt(ctx, ocispec.Descriptor{Digest: d, Size: size})
	if err != nil {
		return nil, fmt.Errorf("the node has not all of an image: %s: %w", digested, err)
	}
	return struct {
		io.Reader
		io.Closer
	}{content.NewReader(at), at}, nil
}
