// SPDX-License-Identifier: Apache-2.0

// Package fsgroup gives volumes to the group by which all containers of a pod may use them (fsGroup).
package fsgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// Own gives a volume to its pod's fsGroup, if it has one.
func Own(dir string, p *corev1.Pod, readOnly bool) error {
	sc := p.Spec.SecurityContext
	if sc == nil || sc.FSGroup == nil {
		return nil
	}
	gid := int(*sc.FSGroup)
	if pol := sc.FSGroupChangePolicy; pol != nil && *pol == corev1.FSGroupChangeOnRootMismatch && owned(dir, gid) {
		return nil
	}
	// Another pod may be at work in a volume that outlives pods: nothing that it puts
	// in the way of the walk may lead out of the volume.
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("open volume: %w", err)
	}
	defer root.Close()
	return give(root, ".", gid, readOnly)
}

// give gives a file, and what is below it, to a group. Names need not be UTF-8, as
// fs.WalkDir would have them.
func give(root *os.Root, path string, gid int, readOnly bool) error {
	info, err := root.Lstat(path)
	if err == nil {
		err = chown(root, path, info, gid, readOnly)
	}
	if errors.Is(err, fs.ErrNotExist) && path != "." {
		return nil // removed meanwhile
	}
	if err != nil || !info.IsDir() {
		return err
	}
	names, err := namesIn(root, path)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := give(root, filepath.Join(path, name), gid, readOnly); err != nil {
			return err
		}
	}
	return nil
}

func namesIn(root *os.Root, path string) ([]string, error) {
	dir, err := root.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) && path != "." {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open a directory of the volume: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("list a directory of the volume: %w", err)
	}
	return names, nil
}

func owned(dir string, gid int) bool {
	var st unix.Stat_t
	return unix.Lstat(dir, &st) == nil && int(st.Gid) == gid && st.Mode&unix.S_ISGID != 0 && st.Mode&0o060 == 0o060
}

func chown(root *os.Root, path string, info fs.FileInfo, gid int, readOnly bool) error {
	if err := root.Lchown(path, -1, gid); err != nil {
		return fmt.Errorf("give volume to group %d: %w", gid, err)
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		return nil
	}
	// The rest of the mode stays, as upstream has it: a volume in memory is sticky.
	mode := info.Mode()&(fs.ModePerm|fs.ModeSticky|fs.ModeSetuid|fs.ModeSetgid) | 0o440
	if !readOnly {
		mode |= 0o660
	}
	if info.IsDir() {
		mode |= 0o110 | fs.ModeSetgid
	}
	if err := root.Chmod(path, mode); err != nil {
		return fmt.Errorf("open volume to group %d: %w", gid, err)
	}
	return nil
}
