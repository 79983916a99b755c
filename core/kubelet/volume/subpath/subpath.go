// SPDX-License-Identifier: Apache-2.0

// Package subpath binds paths inside of volumes (subPath of a container's mount), as pods that change their volumes meanwhile
// cannot lead them out.
package subpath

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/wasmplane/wasmplane/core/kubelet/linuxhost"
)

// Bind binds a path inside a volume to target, so that whatever the pod
// does to the volume later, what was checked is what is mounted. Links may not
// lead out of the volume.
func Bind(root, sub, target string, create bool) error {
	rootFD, err := unix.Open(root, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open volume %s: %w", root, err)
	}
	defer unix.Close(rootFD)
	fd, err := openInside(rootFD, filepath.Clean(sub), create)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("look at subPath %q: %w", sub, err)
	}
	if err := Unmount(target); err != nil { // of a container before this one
		return err
	}
	if err := makeTarget(target, st.Mode&unix.S_IFMT == unix.S_IFDIR); err != nil {
		return err
	}
	if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", fd), target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind subPath %q: %w", sub, err)
	}
	return nil
}

func makeTarget(target string, dir bool) error {
	if err := os.MkdirAll(filepath.Dir(target), 0o750); err != nil {
		return fmt.Errorf("make the place of a subPath: %w", err)
	}
	if dir {
		if err := os.Mkdir(target, 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("make the place of a subPath: %w", err)
		}
		return nil
	}
	f, err := os.OpenFile(target, os.O_CREATE|os.O_RDONLY, 0o640)
	if err != nil {
		return fmt.Errorf("make the place of a subPath: %w", err)
	}
	return f.Close()
}

// openInside opens a path below root without leaving it, making directories that are missing.
func openInside(root int, path string, create bool) (int, error) {
	how := &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS}
	fd, err := unix.Openat2(root, path, how)
	if err == nil {
		return fd, nil
	}
	if !errors.Is(err, unix.ENOENT) || !create {
		return -1, fmt.Errorf("open subPath %q inside its volume: %w", path, err)
	}
	var volume unix.Stat_t // what is made in it gets its mode: all who may use the volume may use that
	if err := unix.Fstat(root, &volume); err != nil {
		return -1, fmt.Errorf("look at the volume: %w", err)
	}
	cur, err := unix.Openat2(root, ".", how)
	if err != nil {
		return -1, fmt.Errorf("open volume: %w", err)
	}
	done := ""
	for part := range strings.SplitSeq(path, "/") {
		done = filepath.Join(done, part)
		// From the root each time: a link on the way may be relative to where it is.
		next, err := unix.Openat2(root, done, how)
		if errors.Is(err, unix.ENOENT) {
			next, err = makeInside(cur, part, volume.Mode&0o7777)
		}
		unix.Close(cur)
		if err != nil {
			return -1, fmt.Errorf("make subPath %q inside its volume: %w", path, err)
		}
		cur = next
	}
	return cur, nil
}

// makeInside makes a directory and opens it. One that somebody else has made meanwhile stays as it is.
func makeInside(parent int, name string, mode uint32) (int, error) {
	made := unix.Mkdirat(parent, name, 0o700)
	if made != nil && !errors.Is(made, unix.EEXIST) {
		return -1, made
	}
	fd, err := unix.Openat2(parent, name, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC | unix.O_DIRECTORY | unix.O_NOFOLLOW, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil || made != nil {
		return fd, err
	}
	if err := unix.Chmod(fmt.Sprintf("/proc/self/fd/%d", fd), mode); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// Unmount unmounts and removes what Bind made below dir.
func Unmount(dir string) error {
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := linuxhost.UnmountBelow(dir); err != nil {
		return fmt.Errorf("unmount subPaths: %w", err)
	}
	left, err := linuxhost.MountsBelow(dir)
	if err != nil {
		return err
	}
	if len(left) > 0 {
		return fmt.Errorf("subPath %s is still mounted", left[0])
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove subPaths: %w", err)
	}
	return nil
}
