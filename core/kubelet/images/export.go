// SPDX-License-Identifier: Apache-2.0

package images

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/images/archive"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
)

// Export writes images of this machine's platform as one archive, an OCI layout which Import and docker read too.
// Names may be short: nginx:1.14.2. All of them are looked for before anything is written.
func (s *Store) Export(ctx context.Context, w io.Writer, names []string, progress func(string)) error {
	if len(names) == 0 {
		return errors.New("export images: there are none to export")
	}
	if progress == nil {
		progress = func(string) {}
	}
	options := []archive.ExportOpt{archive.WithPlatform(platforms.DefaultStrict())}
	var missing []string
	for _, name := range names {
		full := normalized(name)
		if full == "" {
			return fmt.Errorf("export images: %q is no name of an image", name)
		}
		img, err := s.client.GetImage(ctx, full)
		switch {
		case errdefs.IsNotFound(err):
			missing = append(missing, full)
			continue
		case err != nil:
			return fmt.Errorf("export image %s: %w", full, err)
		}
		if _, err := img.Size(ctx); err != nil {
			return fmt.Errorf("export image %s: the node has not all of its content: %w", full, err)
		}
		progress("exporting " + full)
		options = append(options, archive.WithImage(s.client.ImageService(), full))
	}
	if len(missing) > 0 {
		slices.Sort(missing)
		return fmt.Errorf("export images: the node has no %s; `wasmplane image ls` lists those that it has", strings.Join(missing, ", "))
	}
	if err := s.client.Export(ctx, w, options...); err != nil {
		return fmt.Errorf("export images: %w", err)
	}
	return nil
}
