// SPDX-License-Identifier: Apache-2.0

package bounds

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// archive is a layer of files of some size, compressed.
func archive(t *testing.T, files int, size int64) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for i := range files {
		// A long name has a header of its own, which is no file.
		if err := w.WriteHeader(&tar.Header{
			Name: fmt.Sprintf("%s%d", strings.Repeat("long/", 30), i), Size: size, Mode: 0o644,
			Format: tar.FormatPAX,
		}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.CopyN(w, zeros{}, size); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// reading unpacks as containerd's applier does, to nowhere, and records how far it came.
type reading struct {
	layers map[digest.Digest][]byte
	read   int64
}

func (a *reading) Apply(ctx context.Context, desc ocispec.Descriptor, _ []mount.Mount, _ ...diff.ApplyOpt) (ocispec.Descriptor, error) {
	s := diff.NewProcessorChain(desc.MediaType, bytes.NewReader(a.layers[desc.Digest]))
	for {
		var err error
		if s, err = diff.GetProcessor(ctx, s, nil); err != nil {
			return desc, err
		}
		if s.MediaType() == ocispec.MediaTypeImageLayer {
			break
		}
	}
	var err error
	a.read, err = io.Copy(io.Discard, s)
	if closed := s.Close(); err == nil {
		err = closed
	}
	return desc, err
}

// TestLayersAreUnpackedWithinBounds: the byte or file that is too many is not handed on.
func TestLayersAreUnpackedWithinBounds(t *testing.T) {
	small, many, large := archive(t, 10, 100), archive(t, 300, 0), archive(t, 3, 1<<20)
	layers := map[digest.Digest][]byte{}
	for _, l := range [][]byte{small, many, large} {
		layers[digest.FromBytes(l)] = l
	}
	for _, c := range []struct {
		name    string
		limits  Limits
		layers  [][]byte // of one image
		problem string
		most    int64 // bytes that may have been handed on of the last one
	}{
		{"no bounds", Limits{}, [][]byte{small, many, large}, "", 0},
		{"within", Limits{LayerBytes: 4 << 20, LayerFiles: 300, ImageBytes: 5 << 20, ImageFiles: 313}, [][]byte{small, many, large}, "", 0},
		{"bytes of a layer", Limits{LayerBytes: 1 << 20}, [][]byte{small, large}, "more than 1048576 bytes unpacked, which is the node's bound (node.images.layerBytes)", 1 << 20},
		{"files of a layer", Limits{LayerFiles: 100}, [][]byte{small, many}, "more than 100 files, which is the node's bound (node.images.layerFiles)", 400 << 10},
		{"bytes of an image", Limits{LayerBytes: 1 << 30, ImageBytes: 2 << 20}, [][]byte{small, many, large}, "node.images.imageBytes", 2 << 20},
		{"files of an image", Limits{ImageFiles: 305}, [][]byte{small, many}, "more than 305 files, which is the node's bound (node.images.imageFiles)", 600 << 10},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &reading{layers: layers}
			a := &applier{r, newLedger(c.limits)}
			var image []digest.Digest
			for _, l := range c.layers {
				image = append(image, digest.FromBytes(l))
			}
			a.ledger.image(image)
			for i, d := range image {
				_, err := a.Apply(t.Context(), ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayerGzip, Digest: d}, nil)
				last := i == len(image)-1
				switch {
				case last && c.problem != "":
					if err == nil || !strings.Contains(err.Error(), c.problem) || r.read > c.most {
						t.Errorf("%v after %d bytes, want %q", err, r.read, c.problem)
					}
				case err != nil:
					t.Errorf("layer %d: %v", i, err)
				}
			}
		})
	}
}

// TestAnImageThatNamesOthersLayersHarmsNoneOfThem: they come to what their own image has.
func TestAnImageThatNamesOthersLayersHarmsNoneOfThem(t *testing.T) {
	small, large := archive(t, 10, 100), archive(t, 3, 1<<20)
	shared, bomb := digest.FromBytes(small), digest.FromBytes(large)
	r := &reading{layers: map[digest.Digest][]byte{shared: small, bomb: large}}
	a := &applier{r, newLedger(Limits{ImageBytes: 1 << 20})}
	unpack := func(d digest.Digest) error {
		_, err := a.Apply(t.Context(), ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayerGzip, Digest: d}, nil)
		return err
	}
	a.ledger.image([]digest.Digest{bomb, shared})
	if err := unpack(bomb); err == nil {
		t.Fatal("the large one was unpacked")
	}
	a.ledger.image([]digest.Digest{shared})
	if err := unpack(shared); err != nil {
		t.Error(err)
	}
}

// TestBlobsAreWrittenWithinBounds: what a manifest says is refused before anything is
// downloaded, and what a blob says of itself is not believed.
func TestBlobsAreWrittenWithinBounds(t *testing.T) {
	inner, err := local.NewStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s := &store{Store: inner, ledger: newLedger(Limits{LayerBytes: 1000, ImageBytes: 1500})}
	write := func(mediaType string, says int64, blob []byte) error {
		t.Helper()
		d := ocispec.Descriptor{MediaType: mediaType, Size: says}
		ref := digest.FromBytes(blob).String()
		w, err := s.Writer(t.Context(), content.WithRef(ref), content.WithDescriptor(d))
		if err != nil {
			return err
		}
		defer w.Close()
		if _, err := w.Write(blob); err != nil {
			return err
		}
		return w.Commit(t.Context(), int64(len(blob)), digest.FromBytes(blob))
	}
	manifest := func(sizes ...int64) []byte {
		var m ocispec.Manifest
		for i, size := range sizes {
			m.Layers = append(m.Layers, ocispec.Descriptor{Digest: digest.FromString(fmt.Sprint(i)), Size: size})
		}
		b, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for _, c := range []struct {
		name, mediaType string
		says            int64
		blob            []byte
		problem         string
	}{
		{"a layer", ocispec.MediaTypeImageLayerGzip, 900, make([]byte, 900), ""},
		{"a large one", ocispec.MediaTypeImageLayerGzip, 1001, make([]byte, 1001), "a blob of 1001 bytes: the node's bound is 1000 (node.images.layerBytes)"},
		{"a large one that says that it is small", ocispec.MediaTypeImageLayerGzip, 10, make([]byte, 1002), "a blob of 1002 bytes: the node's bound is 1000 (node.images.layerBytes)"},
		{"a manifest", ocispec.MediaTypeImageManifest, 0, manifest(900, 600), ""},
		{"a manifest of a large layer", ocispec.MediaTypeImageManifest, 0, manifest(1001), "has 1001 bytes to download: the node's bound is 1000 (node.images.layerBytes)"},
		{"a manifest of many", ocispec.MediaTypeImageManifest, 0, manifest(900, 601), "more than 1500 bytes to download, which is the node's bound (node.images.imageBytes)"},
		{"a manifest with a size that is none", ocispec.MediaTypeImageManifest, 0, manifest(900, -900, 900), "more than 1500 bytes"},
		{"a manifest without an end", ocispec.MediaTypeImageManifest, 0, make([]byte, mostManifest+1), "the size of a manifest"},
	} {
		err := write(c.mediaType, c.says, c.blob)
		if (err == nil) != (c.problem == "") || err != nil && !strings.Contains(err.Error(), c.problem) {
			t.Errorf("%s: %v, want %q", c.name, err, c.problem)
		}
	}
	if len(s.ledger.images) != 1 {
		t.Errorf("%d images are known, want the one that was taken", len(s.ledger.images))
	}
}
