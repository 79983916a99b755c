// SPDX-License-Identifier: Apache-2.0

package carry

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/datadir"
	"github.com/wasmplane/wasmplane/core/airgap"
	"github.com/wasmplane/wasmplane/core/config"
	"github.com/wasmplane/wasmplane/core/run/atomicfile"
	"github.com/wasmplane/wasmplane/plugins/sign"
	"github.com/wasmplane/wasmplane/plugins/source"
)

// Keys reads the public keys of files, one of which has to have signed an archive; no file = none has to.
func Keys(files []string) (out []crypto.PublicKey, err error) {
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("read a key for archives: %w", err)
		}
		keys, err := sign.ParsePublicKeys(text)
		if err != nil {
			return nil, fmt.Errorf("a key for archives: %s: %w", file, err)
		}
		out = append(out, keys...)
	}
	return out, nil
}

// Check decides about archives for this machine.
func Check(keys []crypto.PublicKey) airgap.Check {
	return func(l *airgap.List, text, signature []byte) error {
		if here := "linux/" + runtime.GOARCH; l.Platform != here {
			return fmt.Errorf("it is for %s, and this machine is %s: make one with --arch %s", l.Platform, here, runtime.GOARCH)
		}
		return Signed(text, signature, keys)
	}
}

// Signed says whether one of the keys signed an archive's list; without keys it always is.
func Signed(list, signature []byte, keys []crypto.PublicKey) error {
	switch {
	case len(keys) == 0:
		return nil
	case len(signature) == 0:
		return errors.New("it is not signed, and a key is asked for: make it with --key")
	}
	return sign.VerifyFile("its list", list, signature, keys)
}

// Load takes an archive over into a data directory and puts modules and manifests into their places; "" of
// manifests: nobody applies them here. Images are imported by the node: when it starts, or by ImportImages.
func Load(ctx context.Context, dir datadir.Dir, file, manifests string, keys []crypto.PublicKey,
	progress func(string),
) (*airgap.Archive, error) {
	from, err := airgap.FileSource(file)
	if err != nil {
		return nil, fmt.Errorf("take over an archive: %w", err)
	}
	a, err := airgap.Keep(ctx, dir.Airgap(), from, Check(keys), Percent(progress))
	if err != nil {
		return nil, err
	}
	if err := airgap.Want(dir.Airgap(), filepath.Base(a.File)); err != nil {
		return nil, errors.Join(err, a.Close())
	}
	if err := errors.Join(PlaceModules(dir, a, true), placeManifests(manifests, a)); err != nil {
		return nil, errors.Join(err, a.Close())
	}
	return a, nil
}

// loadOnce is Load, of an archive that may have been taken over before: then nothing is done.
func loadOnce(ctx context.Context, dir datadir.Dir, file, manifests string, keys []crypto.PublicKey, progress func(string)) error {
	from, err := airgap.FileSource(file)
	if errors.Is(err, fs.ErrNotExist) {
		if before, kerr := airgap.Kept(dir.Airgap()); kerr == nil && len(before) > 0 {
			progress("note: " + file + " is not there; archives that were taken over before are used")
			return nil
		}
	}
	if err != nil {
		return err
	}
	has, err := airgap.Has(ctx, dir.Airgap(), from, Check(keys))
	if err != nil || has {
		return err
	}
	if removed, err := wasRemoved(ctx, dir, from); err != nil || removed {
		progress("note: " + file + " was removed by `airgap rm`, and is not used; `airgap load` takes it over again")
		return err
	}
	progress("taking over " + file)
	a, err := Load(ctx, dir, file, manifests, keys, progress)
	if err != nil {
		return err
	}
	return a.Close()
}

// wasRemoved says whether an archive was taken out of this machine.
func wasRemoved(ctx context.Context, dir datadir.Dir, from airgap.Source) (bool, error) {
	name, err := airgap.NameOf(ctx, from)
	if err != nil {
		return false, err
	}
	turn, err := airgap.Turn(dir.Airgap(), name)
	return airgap.IsRemoval(turn), err
}

// PlaceModules puts the modules of an archive where plugins of this machine look for them before they ask anybody. again
// replaces what is there: an archive that is new is right about what a source holds.
func PlaceModules(dir datadir.Dir, a *airgap.Archive, again bool) error {
	for _, f := range a.Files {
		if f.Kind() != airgap.OfModule {
			continue
		}
		content, err := a.Content(f.Path)
		if err != nil {
			return err
		}
		if err := source.Carry(dir.PluginModules(), f.Name(), content, again); err != nil {
			return err
		}
	}
	return nil
}

// PlaceKept puts the modules of all archives that were taken over into their place, where they are missing.
func PlaceKept(dir datadir.Dir) error {
	files, err := airgap.Kept(dir.Airgap())
	if err != nil {
		return err
	}
	for _, file := range files { // the newest comes first, and stays
		a, err := airgap.Open(file)
		if err != nil {
			return err
		}
		if err := errors.Join(PlaceModules(dir, a, false), a.Close()); err != nil {
			return err
		}
	}
	return nil
}

// placeManifests puts manifests into the folder that a server applies.
func placeManifests(dir string, a *airgap.Archive) error {
	for _, f := range a.Files {
		if f.Kind() != airgap.OfManifest || dir == "" {
			continue
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("make the folder of manifests: %w", err)
		}
		content, err := a.Content(f.Path)
		if err != nil {
			return err
		}
		if err := atomicfile.WriteFrom(filepath.Join(dir, f.Name()), 0o600, func(w io.Writer) error {
			_, err := io.Copy(w, content)
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

// keyFiles are those of the configuration.
func keyFiles(c *config.Configuration) (out []string) {
	for _, file := range c.Airgap.Keys {
		out = append(out, c.Path(file))
	}
	return out
}

// Begin is what a process does about archives before it starts anything: it takes over the one of its configuration, where
// it has not yet, and sees to it that modules of all that were taken over are where plugins look for them.
func Begin(ctx context.Context, c *config.Configuration, dir datadir.Dir, progress func(string)) error {
	if c.Airgap.File != "" {
		keys, err := Keys(keyFiles(c))
		if err == nil {
			err = loadOnce(ctx, dir, c.Path(c.Airgap.File), ManifestsOf(c, dir), keys, progress)
		}
		if err != nil {
			return fmt.Errorf("airgap.file: %w", err)
		}
	}
	return PlaceKept(dir)
}
