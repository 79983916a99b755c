// SPDX-License-Identifier: Apache-2.0

package localcsi

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wasmplane/wasmplane/core/kubelet/diskimage"
	"github.com/wasmplane/wasmplane/core/kubelet/localcsi/treecopy"
)

// fill makes the data of a volume or a snapshot: a copy of another's, or nothing. A directory may become an image, and
// an image a directory.
func (d *Driver) fill(ctx context.Context, from *item, r *record, data string) error {
	switch {
	case r.Block:
		return fillFile(ctx, from, r.Bytes, data)
	case from != nil && from.image():
		release, err := d.wait(ctx, from.key())
		if err != nil {
			return err
		}
		defer release()
		if r.image() {
			return copyImage(ctx, from, r, data)
		}
		return from.mounted(ctx, func() error { return fillTree(ctx, from, filepath.Join(from.mount(), treeName), data) })
	case r.image():
		return fillImage(ctx, from, r, data)
	case from == nil:
		return openToPods(os.Mkdir(data, 0o700), data)
	}
	return fillTree(ctx, from, from.data(), data)
}

// fillTree makes a directory with a copy of what is in another.
func fillTree(ctx context.Context, from *item, tree, data string) error {
	if err := os.Mkdir(data, 0o700); err != nil {
		return fmt.Errorf("make the directory of a volume: %w", err)
	}
	if err := treecopy.Tree(ctx, tree, data); err != nil {
		return fmt.Errorf("copy %s: %w", from.id, err)
	}
	return syncFS(data)
}

// openToPods lets any user of a pod write.
func openToPods(err error, data string) error {
	if err == nil {
		err = os.Chmod(data, 0o777) //nolint:gosec // nobody else passes the directories above
	}
	if err != nil {
		return fmt.Errorf("make the directory of a volume: %w", err)
	}
	return nil
}

func syncFS(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("open a copy: %w", err)
	}
	defer f.Close()
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return fmt.Errorf("write a copy to the disk: %w", err)
	}
	return nil
}

// fillFile makes the sparse file of a block device.
func fillFile(ctx context.Context, from *item, size int64, data string) (err error) {
	to, err := os.OpenFile(data, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("make the file of a volume: %w", err)
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	if from != nil {
		if err := copyDevice(ctx, to, from); err != nil {
			return err
		}
	}
	if err := to.Truncate(size); err != nil {
		return fmt.Errorf("make the file of a volume: %w", err)
	}
	if err := to.Sync(); err != nil {
		return fmt.Errorf("write a volume to the disk: %w", err)
	}
	return nil
}

// copyDevice copies what is behind a device. Shared blocks are of one moment; a copy is
// not, so that of a device at work none is made.
func copyDevice(ctx context.Context, to *os.File, from *item) error {
	in, err := os.Open(from.data())
	if err != nil {
		return fmt.Errorf("open the file of a volume: %w", err)
	}
	defer in.Close()
	if treecopy.Clone(to, in) == nil {
		return nil
	}
	loop, err := diskimage.Attached(from.data())
	if err != nil {
		return err
	}
	if loop != "" {
		return status.Errorf(codes.FailedPrecondition, "block volume %s is in use, and this node's file system cannot share blocks (XFS and Btrfs can): stop the pods that use it, and it is copied", from.id)
	}
	info, err := in.Stat()
	if err != nil {
		return fmt.Errorf("look at the file of a volume: %w", err)
	}
	return treecopy.Data(ctx, to, in, info.Size())
}
