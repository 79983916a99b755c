// SPDX-License-Identifier: Apache-2.0

package diskimage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/wasmplane/wasmplane/core/kubelet/hostcheck"
	"github.com/wasmplane/wasmplane/core/kubelet/mounttable"
)

// Smallest is the least size of a file system, in bytes: below it there is no room for a journal.
const Smallest = 4 << 20

// largeBlocks is the size from which a file system has blocks of 4 KiB. Below it they are of 1 KiB, so that a journal
// leaves room for files.
const largeBlocks = 64 << 20

// ErrNoPrograms says that a host cannot make file systems.
var ErrNoPrograms = errors.New("the programs mkfs.ext4, e2fsck and resize2fs are not on this node: install the package e2fsprogs there " +
	"(apt, dnf, apk and zypper call it so)")

// ErrWhileMounted says that this process may not enlarge a file system that is mounted.
var ErrWhileMounted = errors.New("only a process with CAP_SYS_RESOURCE may enlarge a file system that is in use: this one is enlarged when " +
	"its pods have ended and the next one starts")

// lookPath finds a program of the host; a test has one without.
var lookPath = hostcheck.LookPath

// program finds one of e2fsprogs's.
func program(name string) (string, error) {
	if path := lookPath(name); path != "" {
		return path, nil
	}
	return "", fmt.Errorf("%s: %w", name, ErrNoPrograms)
}

// execute runs a program of e2fsprogs, and answers with which code it ended.
func execute(ctx context.Context, name string, args ...string) (int, error) {
	path, err := program(name)
	if err != nil {
		return 0, err
	}
	out, err := exec.CommandContext(ctx, path, args...).CombinedOutput() //nolint:gosec // a program of the host, and paths of ours
	var exit *exec.ExitError
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	if errors.As(err, &exit) && exit.ExitCode() > 0 {
		return exit.ExitCode(), fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(string(out)))
	}
	if err != nil {
		return 0, fmt.Errorf("run %s: %w", name, err)
	}
	return 0, nil
}

// Format makes an empty file system in a file, which is made, sparse and of size bytes. Nothing of it is kept for root,
// so that every user of it has the same room.
func Format(ctx context.Context, file string, size int64) error {
	if _, err := program("mkfs.ext4"); err != nil {
		return err // before there is a file
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("make the file of a volume: %w", err)
	}
	if err := errors.Join(f.Truncate(size), f.Close()); err != nil {
		return fmt.Errorf("make the file of a volume: %w", err)
	}
	block := 1024
	if size >= largeBlocks {
		block = 4096
	}
	// The tables and the journal are holes: zero already.
	if _, err := execute(ctx, "mkfs.ext4", "-q", "-F", "-m", "0", "-b", strconv.Itoa(block), "-E", "lazy_itable_init=1,lazy_journal_init=1",
		file); err != nil {
		return fmt.Errorf("make a file system: %w", err)
	}
	return nil
}

// Mounted tells whether a file system is mounted at a directory.
func Mounted(at string) (bool, error) {
	m, err := mountAt(at)
	return m != nil, err
}

func mountAt(at string) (*mounttable.Mount, error) {
	dir, err := filepath.EvalSymlinks(at)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look at a mount: %w", err)
	}
	all, err := mounttable.Read()
	if err != nil {
		return nil, err
	}
	for i := len(all) - 1; i >= 0; i-- { // the one above the others
		if all[i].Point == dir {
			return &all[i], nil
		}
	}
	return nil, nil
}

// Mount mounts the file system in a file at a directory, which is made; mounted there already, it stays. It has been
// checked before, unless the file is in use.
func Mount(ctx context.Context, file, at string) error {
	if there, err := Mounted(at); err != nil || there {
		return err
	}
	if err := os.Mkdir(at, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make the place of a file system: %w", err)
	}
	f, err := device(ctx, file)
	if err != nil {
		return err
	}
	defer f.Close()
	// What is deleted in it is given back to the disk that has the file.
	if err := unix.Mount(f.Name(), at, "ext4", 0, "errors=remount-ro,discard"); err != nil {
		return fmt.Errorf("mount the file system of %s: %w", file, err)
	}
	return nil
}

// device is a loop device over a file, open. A second one over the same file would have a second kernel's mind of what
// is in it: one that is there is used, whatever keeps it.
func device(ctx context.Context, file string) (*os.File, error) {
	for range 64 {
		all, err := Devices(file)
		if err != nil {
			return nil, err
		}
		if len(all) == 0 {
			if err := check(ctx, file, "-p"); err != nil {
				return nil, err
			}
			return attach(file, unix.LO_FLAGS_AUTOCLEAR)
		}
		f, err := held(all[0].Path, file)
		if !gone(err) {
			return f, err
		}
	}
	return nil, fmt.Errorf("the loop device over %s comes and goes", file)
}

// held opens a device; it is an error of kind gone where it is not over the file any more.
func held(dev, file string) (*os.File, error) {
	var want syscall.Stat_t
	if err := syscall.Stat(file, &want); err != nil {
		return nil, fmt.Errorf("look at %s: %w", file, err)
	}
	f, err := os.OpenFile(dev, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("open a loop device: %w", err)
	}
	info, err := unix.IoctlLoopGetStatus64(int(f.Fd()))
	if err == nil && !over(info, &want) {
		err = unix.ENXIO
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("ask %s what it is over: %w", dev, err), f.Close())
	}
	return f, nil
}

// uncorrected is the code, and every one above it, by which e2fsck says that errors are left.
const uncorrected = 4

// check mends what a crash left, as far as that can be done without asking.
func check(ctx context.Context, file, how string) error {
	code, err := execute(ctx, "e2fsck", "-p", how, file)
	if code > 0 && code < uncorrected {
		return nil // it mended something
	}
	if err != nil {
		return fmt.Errorf("the file system of a volume has errors that are not mended unasked (e2fsck %s): %w", file, err)
	}
	return nil
}

// Unmount unmounts a file system, if one is mounted there; its device goes then, unless something else uses it.
func Unmount(at string) error {
	for {
		there, err := Mounted(at)
		if err != nil || !there {
			return err
		}
		if err := unix.Unmount(at, unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("unmount %s: %w", at, err)
		}
	}
}

// Grow makes the file, its device and its file system, mounted or not, as large as size. It never makes them smaller,
// and has no effect where they are as large. Where it fails with ErrWhileMounted, the file has grown: with the
// size of the file, it goes on when nothing is mounted.
func Grow(ctx context.Context, file string, size int64) error {
	if err := lengthen(file, size); err != nil {
		return err
	}
	all, err := Devices(file)
	if err != nil {
		return err
	}
	if len(all) == 0 {
		if err := check(ctx, file, "-f"); err != nil { // it is what resize2fs wants
			return err
		}
		return enlarged(execute(ctx, "resize2fs", file))
	}
	f, err := held(all[0].Path, file)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := reread(f.Name(), f); err != nil {
		return err
	}
	code, err := execute(ctx, "resize2fs", f.Name())
	if code > 0 && !hostcheck.HasCapability(unix.CAP_SYS_RESOURCE) {
		return fmt.Errorf("%w: %w", ErrWhileMounted, err)
	}
	return enlarged(code, err)
}

func enlarged(_ int, err error) error {
	if err != nil {
		return fmt.Errorf("enlarge a file system: %w", err)
	}
	return nil
}

// The kernel's requests, of include/uapi/linux/fs.h.
const (
	freeze = 0xc0045877
	thaw   = 0xc0045878
)

// Freeze writes a mounted file system to its file whole, and holds up whoever writes to it until Thaw: also when this
// process has ended.
func Freeze(at string) error { return onRoot(at, freeze, "freeze") }

// Thaw lets a file system that is frozen go on; another stays as it is.
func Thaw(at string) error {
	err := onRoot(at, thaw, "thaw")
	if errors.Is(err, unix.EINVAL) {
		return nil // it is not frozen
	}
	return err
}

func onRoot(at string, request uint, what string) error {
	f, err := os.Open(at)
	if err != nil {
		return fmt.Errorf("open a file system: %w", err)
	}
	defer f.Close()
	if err := unix.IoctlSetInt(int(f.Fd()), request, 0); err != nil {
		return fmt.Errorf("%s the file system at %s: %w", what, at, err)
	}
	return nil
}
