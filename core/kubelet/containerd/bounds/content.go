// SPDX-License-Identifier: Apache-2.0

package bounds

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// mostManifest bounds a manifest, in bytes.
const mostManifest = 4 << 20

// store refuses blobs beyond the bounds before they are downloaded, and reads manifests as
// they come in.
type store struct {
	content.Store
	ledger *ledger
}

// Writer implements content.Ingester.
func (s *store) Writer(ctx context.Context, opts ...content.WriterOpt) (content.Writer, error) {
	var o content.WriterOpts
	for _, opt := range opts {
		if err := opt(&o); err != nil {
			return nil, err
		}
	}
	manifest := images.IsManifestType(o.Desc.MediaType)
	w := &writer{ledger: s.ledger, manifest: manifest, most: s.ledger.limits.LayerBytes, field: "node.images.layerBytes"}
	if manifest {
		w.most, w.field = mostManifest, "the size of a manifest"
	}
	if err := w.bound(o.Desc.Size); err != nil {
		return nil, err
	}
	inner, err := s.Store.Writer(ctx, opts...)
	if err != nil {
		return nil, err
	}
	w.Writer = inner
	if err := w.resume(); err != nil {
		return nil, errors.Join(err, inner.Close())
	}
	return w, nil
}

// resume counts what an earlier download has left. A manifest is read from its beginning.
func (w *writer) resume() error {
	at, err := w.Status()
	if err != nil {
		return err
	}
	if w.written = at.Offset; w.written > 0 && w.manifest {
		return w.Truncate(0)
	}
	return nil
}

// writer writes one blob.
type writer struct {
	content.Writer
	ledger   *ledger
	manifest bool
	text     []byte // of a manifest
	most     int64  // 0 = no bound
	field    string
	written  int64
}

func (w *writer) bound(size int64) error {
	if w.most > 0 && size > w.most {
		return fmt.Errorf("a blob of %d bytes: the node's bound is %d (%s)", size, w.most, w.field)
	}
	return nil
}

// Write implements content.Writer. What a blob claims to be is not believed.
func (w *writer) Write(p []byte) (int, error) {
	w.written += int64(len(p))
	if err := w.bound(w.written); err != nil {
		return 0, err
	}
	if w.manifest {
		w.text = append(w.text, p...)
	}
	return w.Writer.Write(p)
}

// Truncate implements content.Writer: the blob is written again.
func (w *writer) Truncate(size int64) error {
	w.written = size
	w.text = w.text[:min(int(size), len(w.text))]
	return w.Writer.Truncate(size)
}

// Sync implements content.Syncer, where the store does.
func (w *writer) Sync() error {
	if s, ok := w.Writer.(content.Syncer); ok {
		return s.Sync()
	}
	return nil
}

// Commit implements content.Writer: a manifest whose layers come to too much is not
// taken, and none of them is downloaded.
func (w *writer) Commit(ctx context.Context, size int64, expected digest.Digest, opts ...content.Opt) error {
	if w.manifest {
		layers, err := w.ledger.manifest(w.text)
		if err != nil {
			return err
		}
		if err := w.Writer.Commit(ctx, size, expected, opts...); err != nil {
			return err
		}
		w.ledger.image(layers)
		return nil
	}
	return w.Writer.Commit(ctx, size, expected, opts...)
}

// manifest holds what a manifest says against the bounds. What is none is containerd's to refuse.
func (g *ledger) manifest(text []byte) ([]digest.Digest, error) {
	var m ocispec.Manifest
	if json.Unmarshal(text, &m) != nil {
		return nil, nil //nolint:nilerr // who reads it next says what is wrong with it
	}
	var layers []digest.Digest
	var sum int64
	for _, l := range m.Layers {
		layers = append(layers, l.Digest)
		if most := g.limits.LayerBytes; most > 0 && l.Size > most {
			return nil, fmt.Errorf("layer %s has %d bytes to download: the node's bound is %d (node.images.layerBytes)", l.Digest, l.Size, most)
		}
		sum += max(l.Size, 0)
		if most := g.limits.ImageBytes; most > 0 && sum > most {
			return nil, fmt.Errorf("the image has more than %d bytes to download, which is the node's bound (node.images.imageBytes)", most)
		}
	}
	return layers, nil
}
