// SPDX-License-Identifier: Apache-2.0

package linuxhost

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// MountsBelow lists the mount points at dir and below it, those made last first.
func MountsBelow(dir string) ([]string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	defer f.Close()
	dir = filepath.Clean(dir)
	var mounts []string
	s := bufio.NewScanner(f)
	s.Buffer(nil, 1<<20) // an overlay's options name every layer
	for s.Scan() {
		fields := strings.Fields(s.Text())
		if len(fields) < 5 {
			continue
		}
		point := unescapeMount(fields[4])
		if point == dir || strings.HasPrefix(point, dir+"/") {
			mounts = append(mounts, point)
		}
	}
	if err := s.Err(); err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	slices.Reverse(mounts)
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
