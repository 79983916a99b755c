// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"errors"
	"io"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
	"github.com/wasmplane/wasmplane/core/airgap"
	"github.com/wasmplane/wasmplane/core/kubelet/images"
)

// Images is the image store of a node.
type Images = images.Store

// OpenImages reaches the image store of the node of dir. The caller closes it.
func OpenImages(dir datadir.Dir) (*Images, error) { return openImages(dir) }

// ImportArchives imports, into the node of dir that runs, the images of all archives that were taken over and that it
// lacks.
func ImportArchives(ctx context.Context, dir datadir.Dir, progress func(string)) error {
	store, err := openImages(dir)
	if err != nil {
		return err
	}
	return errors.Join(importArchives(ctx, store, dir, progress), store.Close())
}

// importArchives imports what the store lacks. Of two archives with an image of one name the newer one's counts, and what was
// imported by hand since then stays. Images of archives that were removed are unpinned first.
func importArchives(ctx context.Context, store *images.Store, dir datadir.Dir, progress func(string)) error {
	files, err := airgap.Kept(dir.Airgap())
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	errs := []error{unpin(ctx, store, dir)}
	for _, file := range files {
		a, err := airgap.Open(file)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, importArchive(ctx, store, a, seen, progress), a.Close())
	}
	return errors.Join(errs...)
}

// unpin lets images go that were pinned by archives which were removed.
func unpin(ctx context.Context, store *images.Store, dir datadir.Dir) error {
	free, done, err := airgap.Unpinned(dir.Airgap())
	if err != nil {
		return err
	}
	for _, i := range free {
		if err := store.Unpin(ctx, i.Name, i.Digest); err != nil {
			return err
		}
	}
	return done()
}

func importArchive(ctx context.Context, store *images.Store, a *airgap.Archive, seen map[string]bool, progress func(string)) error {
	lacking := map[bool][]string{} // by whether they are pinned
	for _, i := range a.Images {
		if seen[i.Name] {
			continue
		}
		seen[i.Name] = true
		lacks, err := store.Lacks(ctx, images.Wanted{Name: i.Name, Digest: i.Digest, Pinned: i.Pinned, OrNewer: a.Imported()})
		if err != nil {
			return err
		}
		if lacks {
			lacking[i.Pinned] = append(lacking[i.Pinned], i.Name)
		}
	}
	for pin, names := range lacking {
		write := func(w io.Writer) error { return a.WriteImages(w, names) }
		if err := store.ImportLayout(ctx, pin, write, progress); err != nil {
			return err
		}
	}
	return a.SetImported()
}
