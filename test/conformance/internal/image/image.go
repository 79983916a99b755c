// SPDX-License-Identifier: Apache-2.0

package image

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// Spec is one image: a base, and what lies on top. What of the base is there
// first, stays: Base, then what packages bring, then Rest.
type Spec struct {
	Names    []string // with registry and tag
	Base     []File
	Packages []string // of Debian
	Without  []string // packages that they depend on, and that nothing here uses
	Rest     []File
	Top      []File
	Config   v1.Config
}

// Builder makes images and keeps layers that several of them share.
type Builder struct {
	Debian Debian
	Dir    string // for layers and archives
	layers map[string]v1.Layer
}

// Build writes one archive with all images under all of their names; layers that
// several share are in it once.
func (b *Builder) Build(ctx context.Context, specs []Spec, archive string) error {
	tags := map[name.Tag]v1.Image{}
	for _, s := range specs {
		img, err := b.image(ctx, s)
		if err != nil {
			return fmt.Errorf("image %s: %w", s.Names[0], err)
		}
		for _, n := range s.Names {
			tag, err := name.NewTag(n)
			if err != nil {
				return err
			}
			if tags[tag], err = named(img, n); err != nil {
				return fmt.Errorf("image %s: %w", n, err)
			}
		}
	}
	return atomically(archive, func(w io.Writer) error { return tarball.MultiWrite(tags, w) })
}

func (b *Builder) image(ctx context.Context, s Spec) (v1.Image, error) {
	var layers []v1.Layer
	if len(s.Packages)+len(s.Base)+len(s.Rest) > 0 {
		l, err := b.base(ctx, s)
		if err != nil {
			return nil, fmt.Errorf("base: %w", err)
		}
		layers = append(layers, l)
	}
	if len(s.Top) > 0 {
		l, err := b.write("top-"+s.Names[0], func(l *layer) error { return addAll(l, s.Top) })
		if err != nil {
			return nil, err
		}
		layers = append(layers, l)
	}
	img, err := mutate.AppendLayers(empty.Image, layers...)
	if err != nil {
		return nil, err
	}
	cfg, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	cfg = cfg.DeepCopy()
	cfg.OS, cfg.Architecture, cfg.Config = "linux", runtime.GOARCH, s.Config
	if len(cfg.Config.Env) == 0 {
		cfg.Config.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	}
	return mutate.ConfigFile(img, cfg)
}

// named is an image that knows one of its names, and so has an ID of its own: a runtime takes images with the same ID for
// one, and says any of its names. Tests that change a container's image wait for the new name.
func named(img v1.Image, name string) (v1.Image, error) {
	cfg, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	cfg = cfg.DeepCopy()
	labels := map[string]string{"org.opencontainers.image.ref.name": name}
	maps.Copy(labels, cfg.Config.Labels)
	cfg.Config.Labels = labels
	return mutate.ConfigFile(img, cfg)
}

func (b *Builder) base(ctx context.Context, s Spec) (v1.Layer, error) {
	return b.write("base-"+strings.Join(s.Packages, "+"), func(l *layer) error {
		if err := addAll(l, s.Base); err != nil {
			return err
		}
		if len(s.Packages) > 0 {
			if err := b.Debian.unpack(ctx, l, s.Packages, s.Without); err != nil {
				return err
			}
		}
		return addAll(l, s.Rest)
	})
}

func addAll(l *layer, files []File) error {
	for _, f := range files {
		if err := l.add(f); err != nil {
			return fmt.Errorf("%s: %w", f.Path, err)
		}
	}
	return nil
}

// write makes a layer once.
func (b *Builder) write(called string, fill func(*layer) error) (v1.Layer, error) {
	if l, ok := b.layers[called]; ok {
		return l, nil
	}
	file := filepath.Join(b.Dir, fileName(called)+".layer")
	err := atomically(file, func(w io.Writer) error {
		l := newLayer(w)
		return errors.Join(fill(l), l.close())
	})
	if err != nil {
		return nil, err
	}
	l, err := tarball.LayerFromFile(file, tarball.WithCompressionLevel(gzip.BestSpeed))
	if err != nil {
		return nil, err
	}
	if b.layers == nil {
		b.layers = map[string]v1.Layer{}
	}
	b.layers[called] = l
	return l, nil
}

// fileName turns an image's name into a file's.
func fileName(s string) string { return strings.NewReplacer("/", "_", ":", "_").Replace(s) }

// atomically leaves a whole file or none.
func atomically(file string, fill func(io.Writer) error) (err error) {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(file), filepath.Base(file)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	if err := errors.Join(fill(f), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), file)
}
