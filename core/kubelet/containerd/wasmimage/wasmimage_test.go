// SPDX-License-Identifier: Apache-2.0

package wasmimage

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/spec"
)

func read(t *testing.T, s content.Store, mediaType string, v any) []byte {
	t.Helper()
	text, ok := v.([]byte)
	if !ok {
		var err error
		if text, err = json.Marshal(v); err != nil {
			t.Fatal(err)
		}
	}
	d := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(text), Size: int64(len(text))}
	if err := content.WriteBlob(t.Context(), s, d.Digest.String(), bytes.NewReader(text), d); err != nil {
		t.Fatal(err)
	}
	got, err := content.ReadBlob(t.Context(), s, d)
	if err != nil {
		t.Fatal(err)
	}
	if bare, err := content.ReadBlob(t.Context(), s, ocispec.Descriptor{Digest: d.Digest}); err != nil || !bytes.Equal(bare, text) {
		t.Errorf("the blob itself is %s, %v", bare, err)
	}
	if bytes.Equal(got, text) {
		return nil // as it is
	}
	return got
}

func image(platform, architecture string) ocispec.Descriptor {
	return ocispec.Descriptor{Digest: digest.FromString(platform), Platform: &ocispec.Platform{OS: platform, Architecture: architecture}}
}

// TestModulesAreShownAsThisMachines, and nothing else is.
func TestModulesAreShownAsThisMachines(t *testing.T) {
	inner, err := local.NewStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s := &Store{Store: inner}
	here := platforms.DefaultSpec()

	var c ocispec.Image
	module := ocispec.Image{Platform: ocispec.Platform{OS: "wasi", Architecture: "wasm"}}
	module.Config.Entrypoint = []string{"/main.wasm"}
	if err := json.Unmarshal(read(t, s, ocispec.MediaTypeImageConfig, module), &c); err != nil {
		t.Fatal(err)
	}
	if c.OS != here.OS || c.Architecture != here.Architecture ||
		c.Config.Labels[spec.WasmLabel] != "wasi/wasm" || c.Config.Entrypoint[0] != "/main.wasm" {
		t.Errorf("the configuration reads %+v", c)
	}

	var x ocispec.Index
	two := ocispec.Index{Manifests: []ocispec.Descriptor{image("plan9", "mips"), image("wasip1", "wasm")}}
	if err := json.Unmarshal(read(t, s, ocispec.MediaTypeImageIndex, two), &x); err != nil {
		t.Fatal(err)
	}
	if !platforms.Default().Match(*x.Manifests[1].Platform) || x.Manifests[0].Platform.OS != "plan9" ||
		x.Manifests[1].Digest != digest.FromString("wasip1") {
		t.Errorf("the index reads %+v", x.Manifests)
	}

	for name, as := range map[string]struct {
		mediaType string
		blob      any
	}{
		"an image for linux":                {ocispec.MediaTypeImageConfig, ocispec.Image{Platform: here}},
		"an image for others":               {ocispec.MediaTypeImageConfig, ocispec.Image{Platform: ocispec.Platform{OS: "js", Architecture: "wasm"}}},
		"an index with this machine's, too": {ocispec.MediaTypeImageIndex, ocispec.Index{Manifests: []ocispec.Descriptor{image("wasi", "wasm"), {Platform: &here}}}},
		"an index without a module":         {ocispec.MediaTypeImageIndex, ocispec.Index{Manifests: []ocispec.Descriptor{image("plan9", "mips")}}},
		"an artifact":                       {"application/vnd.wasm.config.v0+json", module},
		"no JSON":                           {ocispec.MediaTypeImageConfig, []byte("{")},
		"an empty blob":                     {ocispec.MediaTypeImageIndex, []byte("{}")},
	} {
		if got := read(t, s, as.mediaType, as.blob); got != nil {
			t.Errorf("%s reads %s", name, got)
		}
	}
}
