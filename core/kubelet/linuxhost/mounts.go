// SPDX-License-Identifier: Apache-2.0

package linuxhost

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/wasmplane/wasmplane/core/kubelet/mounttable"
)

// MountsBelow lists the mount points at dir and below it, those made last first.
func MountsBelow(dir string) ([]string, error) {
	all, err := mounttable.Read()
	if err != nil {
		return nil, err
	}
	dir = filepath.Clean(dir)
	var mounts []string
	for _, m := range slices.Backward(all) {
		if m.Point == dir || strings.HasPrefix(m.Point, dir+"/") {
			mounts = append(mounts, m.Point)
		}
	}
	return mounts, nil
}

// UnmountBelow unmounts everything at dir and below it.
func UnmountBelow(dir string) error {
	if filepath.Clean(dir) == "/" || !filepath.IsAbs(dir) {
		return fmt.Errorf("refusing to unmount everything below %q", dir)
	}
	mounts, err := MountsBelow(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, m := range mounts {
		// Detached, because a dying process may still hold it for a moment.
		if err := unix.Unmount(m, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) &&
			!errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("unmount %s: %w", m, err))
		}
	}
	return errors.Join(errs...)
}
