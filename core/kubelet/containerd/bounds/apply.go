// SPDX-License-Identifier: Apache-2.0

package bounds

import (
	"archive/tar"
	"context"
	"io"

	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/wasmplane/wasmplane/core/run"
)

// applier unpacks layers within the bounds.
type applier struct {
	diff.Applier
	ledger *ledger
}

// unpacking is the layer that a context is about.
type unpacking struct {
	ledger *ledger
	digest digest.Digest
	layer  *layer
}

type unpackingKey struct{}

// Apply implements diff.Applier.
func (a *applier) Apply(ctx context.Context, desc ocispec.Descriptor, mounts []mount.Mount,
	opts ...diff.ApplyOpt,
) (ocispec.Descriptor, error) {
	u := &unpacking{a.ledger, desc.Digest, a.ledger.begin(desc.Digest)}
	return a.Applier.Apply(context.WithValue(ctx, unpackingKey{}, u), desc, mounts, opts...)
}

// counting is a handler of containerd's streams: behind whatever decompresses a layer it
// counts what comes out. It takes no part in what the applier has not begun.
func counting(ctx context.Context, _ string) (diff.StreamProcessorInit, bool) {
	u, _ := ctx.Value(unpackingKey{}).(*unpacking)
	if u == nil {
		return nil, false
	}
	return func(ctx context.Context, stream diff.StreamProcessor, payloads map[string]typeurl.Any) (diff.StreamProcessor, error) {
		inner, err := diff.GetProcessor(context.WithValue(ctx, unpackingKey{}, (*unpacking)(nil)), stream, payloads)
		if err != nil || inner.MediaType() != ocispec.MediaTypeImageLayer {
			return inner, err
		}
		return count(inner, u), nil
	}, true
}

// counter is an unpacked layer on its way to the disk. A second reader of the same
// archive counts its entries, one read ahead of who writes them.
type counter struct {
	diff.StreamProcessor
	of      *unpacking
	entries *io.PipeWriter
	counted <-chan error
}

func count(s diff.StreamProcessor, u *unpacking) *counter {
	r, w := io.Pipe()
	return &counter{StreamProcessor: s, of: u, entries: w, counted: run.Go("count the entries of a layer", func() error {
		archive := tar.NewReader(r)
		for {
			if _, err := archive.Next(); err != nil {
				break // who unpacks it finds the same
			}
			u.layer.files.Add(1)
		}
		_, err := io.Copy(io.Discard, r)
		return err
	})}
}

// Read implements io.Reader.
func (c *counter) Read(p []byte) (int, error) {
	n, err := c.StreamProcessor.Read(p)
	c.of.layer.bytes.Add(int64(n))
	if n > 0 {
		if _, err := c.entries.Write(p[:n]); err != nil {
			return 0, err
		}
	}
	if over := c.of.ledger.check(c.of.digest, c.of.layer); over != nil {
		return 0, over
	}
	return n, err
}

// Close implements io.Closer.
func (c *counter) Close() error {
	_ = c.entries.Close()
	<-c.counted
	return c.StreamProcessor.Close()
}
