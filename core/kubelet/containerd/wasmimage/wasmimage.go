// SPDX-License-Identifier: Apache-2.0

// Package wasmimage lets containerd pull and unpack images of WebAssembly modules, whose
// platform is wasi/wasm and none that a machine has. Who reads the index or the configuration of such an
// image finds this machine's platform there; blobs stay as they were pulled, under their digests. What the
// configuration's platform was is in a label of it, by which the kubelet knows the image.
//
// An artifact that has no file system, only the module, needs none of this: nothing of it is unpacked.
package wasmimage

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/spec"
)

// most bounds the blobs that are looked into, in bytes; what is larger is shown as it is.
const most = 4 << 20

// Store shows the images of modules as this machine's.
type Store struct{ content.Store }

// ReaderAt implements content.Provider.
func (s *Store) ReaderAt(ctx context.Context, desc ocispec.Descriptor) (content.ReaderAt, error) {
	r, err := s.Store.ReaderAt(ctx, desc)
	if err != nil {
		return nil, err
	}
	var shown func([]byte) ([]byte, error)
	switch {
	case images.IsIndexType(desc.MediaType):
		shown = index
	case images.IsConfigType(desc.MediaType):
		shown = config
	}
	if shown == nil || r.Size() > most {
		return r, nil
	}
	text := make([]byte, r.Size())
	if _, err := r.ReadAt(text, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, errors.Join(fmt.Errorf("read %s: %w", desc.Digest, err), r.Close())
	}
	changed, err := shown(text)
	if err != nil || changed == nil {
		return r, nil //nolint:nilerr // who reads it says what is wrong with it
	}
	return &view{bytes.NewReader(changed)}, r.Close()
}

// view is a blob that reads otherwise than it is stored.
type view struct{ *bytes.Reader }

// Close implements io.Closer.
func (*view) Close() error { return nil }

func isWasm(system, architecture string) bool {
	return architecture == "wasm" && (system == "wasi" || system == "wasip1" || system == "wasip2")
}

// index gives the first module's image this machine's platform, where no image has it. nil: as it is.
func index(text []byte) ([]byte, error) {
	var x ocispec.Index
	if err := json.Unmarshal(text, &x); err != nil {
		return nil, err
	}
	module := -1
	for i, m := range x.Manifests {
		switch {
		case m.Platform == nil || platforms.Default().Match(*m.Platform):
			return nil, nil
		case module < 0 && isWasm(m.Platform.OS, m.Platform.Architecture):
			module = i
		}
	}
	if module < 0 {
		return nil, nil
	}
	here := platforms.DefaultSpec()
	x.Manifests[module].Platform = &here
	return json.Marshal(x)
}

// config gives a module's configuration this machine's platform, and a label. nil: as it is.
func config(text []byte) ([]byte, error) {
	var c ocispec.Image
	if err := json.Unmarshal(text, &c); err != nil || !isWasm(c.OS, c.Architecture) {
		return nil, err
	}
	if c.Config.Labels == nil {
		c.Config.Labels = map[string]string{}
	}
	c.Config.Labels[spec.WasmLabel] = c.OS + "/" + c.Architecture
	here := platforms.DefaultSpec()
	c.OS, c.Architecture, c.Variant = here.OS, here.Architecture, here.Variant
	return json.Marshal(c)
}
