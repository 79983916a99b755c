// SPDX-License-Identifier: Apache-2.0

// Package bounds keeps images from filling a node's disk: a layer, and an image, has so many
// bytes and files at most. It stands in place of two plugins of containerd's, the content
// store and the applier of layers, which it wraps: a blob that is too large is refused before
// it is downloaded, and unpacking a layer ends at the byte or file that is too many, whatever
// its archive claims, and whatever it is compressed with.
//
// Errors name the limit by its place in the configuration, and end in a pod's events.
package bounds

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/opencontainers/go-digest"
)

// Limits of what pods pull and operators import; 0 = none.
type Limits struct {
	// LayerBytes are those of one layer, as it is downloaded and as it is unpacked.
	LayerBytes int64 `toml:"layer_bytes"`
	// LayerFiles are the entries of one layer: files, directories, links.
	LayerFiles int64 `toml:"layer_files"`
	// ImageBytes and ImageFiles are those of all layers of an image.
	ImageBytes int64 `toml:"image_bytes"`
	ImageFiles int64 `toml:"image_files"`
}

// Bounds of what is remembered, of an image's parts for each other. What is forgotten is
// held to the bounds of layers alone.
const (
	mostImages = 256
	mostLayers = 8192
)

// ledger knows which layers belong together, and what each has come to.
type ledger struct {
	limits Limits

	mu     sync.Mutex
	images [][]digest.Digest
	layers map[digest.Digest]*layer
}

func newLedger(l Limits) *ledger {
	return &ledger{limits: l, layers: map[digest.Digest]*layer{}}
}

// layer is what has been unpacked of one.
type layer struct{ bytes, files atomic.Int64 }

// image records that these layers belong together.
func (g *ledger) image(layers []digest.Digest) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.images) == mostImages {
		g.images = slices.Delete(g.images, 0, 1)
	}
	g.images = append(g.images, layers)
}

// begin is called when a layer is about to be unpacked.
func (g *ledger) begin(d digest.Digest) *layer {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.layers) >= mostLayers {
		g.layers = map[digest.Digest]*layer{}
	}
	l := &layer{}
	g.layers[d] = l
	return l
}

// check says whether a layer has come to more than it may.
func (g *ledger) check(d digest.Digest, l *layer) error {
	if most := g.limits.LayerBytes; most > 0 && l.bytes.Load() > most {
		return fmt.Errorf("the layer has more than %d bytes unpacked, which is the node's bound (node.images.layerBytes)", most)
	}
	if most := g.limits.LayerFiles; most > 0 && l.files.Load() > most {
		return fmt.Errorf("the layer has more than %d files, which is the node's bound (node.images.layerFiles)", most)
	}
	bytes, files := g.together(d)
	if most := g.limits.ImageBytes; most > 0 && bytes > most {
		return fmt.Errorf("the image has more than %d bytes unpacked, which is the node's bound (node.images.imageBytes)", most)
	}
	if most := g.limits.ImageFiles; most > 0 && files > most {
		return fmt.Errorf("the image has more than %d files, which is the node's bound (node.images.imageFiles)", most)
	}
	return nil
}

// together is what the image comes to that a layer belongs to. Of several the smallest
// counts: nobody makes others' images fail by an image that names their layers.
func (g *ledger) together(d digest.Digest) (bytes, files int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	first := true
	for _, image := range g.images {
		if !slices.Contains(image, d) {
			continue
		}
		var b, f int64
		for _, part := range image {
			if l := g.layers[part]; l != nil {
				b, f = b+l.bytes.Load(), f+l.files.Load()
			}
		}
		if first || b < bytes {
			bytes = b
		}
		if first || f < files {
			files = f
		}
		first = false
	}
	return bytes, files
}
