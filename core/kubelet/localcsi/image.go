// SPDX-License-Identifier: Apache-2.0

package localcsi

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wasmplane/wasmplane/core/kubelet/diskimage"
	"github.com/wasmplane/wasmplane/core/kubelet/localcsi/treecopy"
)

// thaw lets file systems go on that a process froze which ended before it could.
func (d disk) thaw() error {
	all, err := d.list(volumes)
	if err != nil {
		return err
	}
	var errs []error
	for _, v := range all {
		if !v.image() {
			continue
		}
		there, err := diskimage.Mounted(v.mount())
		if err == nil && there {
			err = diskimage.Thaw(v.mount())
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// stage mounts an image. One whose file has grown alone, because a crash came or the file system was in use, follows first.
func (i *item) stage(ctx context.Context) error {
	if there, err := diskimage.Mounted(i.mount()); err != nil || there {
		return err
	}
	info, err := os.Stat(i.data())
	if err != nil {
		return fmt.Errorf("look at the file of a volume: %w", err)
	}
	if info.Size() > i.Bytes {
		if err := diskimage.Grow(ctx, i.data(), info.Size()); err != nil {
			return err
		}
	}
	return diskimage.Mount(ctx, i.data(), i.mount())
}

// mounted does something with an image that is mounted, for as long as that takes where it is not staged.
func (i *item) mounted(ctx context.Context, do func() error) error {
	return whileMounted(ctx, i.data(), i.mount(), do)
}

func whileMounted(ctx context.Context, data, at string, do func() error) (err error) {
	there, err := diskimage.Mounted(at)
	if err != nil {
		return err
	}
	if !there {
		if err := diskimage.Mount(ctx, data, at); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, diskimage.Unmount(at)) }()
	}
	return do()
}

// fillImage makes a file system, with a copy of a directory in it or nothing.
func fillImage(ctx context.Context, from *item, r *record, data string) error {
	if err := diskimage.Format(ctx, data, r.Bytes); err != nil {
		return err
	}
	at := filepath.Join(filepath.Dir(data), mountName)
	err := whileMounted(ctx, data, at, func() error {
		tree := filepath.Join(at, treeName)
		if from != nil {
			return fillTree(ctx, from, from.data(), tree)
		}
		return openToPods(os.Mkdir(tree, 0o700), tree)
	})
	if err != nil {
		return err
	}
	return syncFile(data)
}

// copyImage copies the file of a file system: of one that is in use, as it is at one moment. Who writes to it waits
// meanwhile, which takes no time where blocks can be shared.
func copyImage(ctx context.Context, from *item, r *record, data string) error {
	if err := copyFrozen(ctx, from, data); err != nil {
		return err
	}
	if r.Bytes > from.Bytes {
		if err := diskimage.Grow(ctx, data, r.Bytes); err != nil {
			return err
		}
	}
	return syncFile(data)
}

func copyFrozen(ctx context.Context, from *item, data string) (err error) {
	staged, err := diskimage.Mounted(from.mount())
	if err != nil {
		return err
	}
	if !staged {
		if unused, err := diskimage.Unused(ctx, from.data()); err != nil || !unused {
			return errors.Join(err, status.Errorf(codes.FailedPrecondition, "volume %s is not staged, and in use: "+
				"its file system cannot be held still", from.id))
		}
	} else {
		if err := diskimage.Freeze(from.mount()); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, diskimage.Thaw(from.mount())) }()
	}
	in, err := os.Open(from.data())
	if err != nil {
		return fmt.Errorf("open the file of a volume: %w", err)
	}
	defer in.Close()
	to, err := os.OpenFile(data, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("make the file of a volume: %w", err)
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	if treecopy.Clone(to, in) == nil {
		return nil
	}
	info, err := in.Stat()
	if err != nil {
		return fmt.Errorf("look at the file of a volume: %w", err)
	}
	return treecopy.Data(ctx, to, in, info.Size())
}

func syncFile(data string) error {
	f, err := os.Open(data)
	if err != nil {
		return fmt.Errorf("open a volume: %w", err)
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		return fmt.Errorf("write a volume to the disk: %w", err)
	}
	return nil
}
