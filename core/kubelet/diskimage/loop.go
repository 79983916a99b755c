// SPDX-License-Identifier: Apache-2.0

// Package diskimage has files that are disks: loop devices over them, and file systems (ext4) in them, which are
// as large as their file and no larger.
//
// What is over a file is asked of the kernel each time, by the file's inode: nothing is remembered that a crash
// could lose. A device that was made for a mount goes with it.
//
// The programs of e2fsprogs make, check and enlarge the file systems; ErrNoPrograms says that a host lacks them.
package diskimage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wasmplane/wasmplane/core/run"
)

// Device is a loop device.
type Device struct {
	Path string // /dev/loop3
	// Number is major:minor, as in the table of mounts.
	Number string
	// Leaves: it goes when its last user closes it.
	Leaves bool
}

// Devices are the loop devices over a file, by what the kernel says; none where there is no such file.
func Devices(file string) ([]Device, error) {
	var want syscall.Stat_t
	if err := syscall.Stat(file, &want); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("look at %s: %w", file, err)
	}
	bound, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, fmt.Errorf("list loop devices: %w", err)
	}
	var out []Device
	for _, b := range bound {
		block := filepath.Dir(filepath.Dir(b))
		dev := "/dev/" + filepath.Base(block)
		info, err := statusOf(dev)
		if gone(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if !over(info, &want) {
			continue
		}
		number, err := os.ReadFile(filepath.Join(block, "dev"))
		if err != nil {
			return nil, fmt.Errorf("look at %s: %w", dev, err)
		}
		out = append(out, Device{Path: dev, Number: strings.TrimSpace(string(number)), Leaves: info.Flags&unix.LO_FLAGS_AUTOCLEAR != 0})
	}
	return out, nil
}

// lingers bounds how long Unused waits.
const lingers = 2 * time.Second

// Unused waits until there is no loop device over a file, and tells whether that came about within two seconds. A device stays after
// its last mount for as long as somebody has it open, and others open every one for a moment to see what it is over: udev, and Devices
// in another process.
func Unused(ctx context.Context, file string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, lingers)
	defer cancel()
	again := run.Backoff{First: time.Millisecond, Longest: 100 * time.Millisecond}
	for {
		if over, err := Devices(file); err != nil || len(over) == 0 {
			return err == nil, err
		}
		if !again.Wait(ctx) {
			return false, nil
		}
	}
}

// gone: the device was let go of meanwhile.
func gone(err error) bool { return errors.Is(err, unix.ENXIO) || errors.Is(err, fs.ErrNotExist) }

func over(info *unix.LoopInfo64, file *syscall.Stat_t) bool {
	return info.Device == file.Dev && info.Inode == file.Ino
}

func statusOf(dev string) (*unix.LoopInfo64, error) {
	f, err := os.Open(dev)
	if err != nil {
		return nil, fmt.Errorf("open a loop device: %w", err)
	}
	defer f.Close()
	info, err := unix.IoctlLoopGetStatus64(int(f.Fd()))
	if err != nil {
		return nil, fmt.Errorf("ask %s what it is over: %w", dev, err)
	}
	return info, nil
}

// Attached is the loop device over a file that stays until Detach; "" = there is none. One that goes when its last user
// closes it is as good as gone.
func Attached(file string) (string, error) {
	all, err := Devices(file)
	for _, d := range all {
		if !d.Leaves {
			return d.Path, nil
		}
	}
	return "", err
}

// Attach makes a loop device over a file that stays until Detach, unless there is one.
func Attach(file string) (string, error) {
	if dev, err := Attached(file); err != nil || dev != "" {
		return dev, err
	}
	f, err := attach(file, 0)
	if err != nil {
		return "", err
	}
	dev := f.Name()
	if err := f.Close(); err != nil {
		return "", fmt.Errorf("close a loop device: %w", err)
	}
	return dev, nil
}

// attach makes a loop device over a file, and answers it open.
func attach(file string, flags uint32) (*os.File, error) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("a volume in a file needs a loop device, and this node gives none (modprobe loop): %w", err)
	}
	defer control.Close()
	backing, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("open the file of a volume: %w", err)
	}
	defer backing.Close()
	for range 64 { // another may take the free one first
		number, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("find a free loop device: %w", err)
		}
		f, err := configure(fmt.Sprintf("/dev/loop%d", number), backing, flags)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EBUSY) {
			return nil, err
		}
	}
	return nil, errors.New("others took each loop device that was free")
}

func configure(dev string, backing *os.File, flags uint32) (*os.File, error) {
	f, err := os.OpenFile(dev, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("open a loop device: %w", err)
	}
	cfg := &unix.LoopConfig{Fd: uint32(backing.Fd())} //nolint:gosec // a file descriptor
	cfg.Info.Flags = flags
	copy(cfg.Info.File_name[:], backing.Name())
	if err := unix.IoctlLoopConfigure(int(f.Fd()), cfg); err != nil {
		return nil, errors.Join(fmt.Errorf("make %s a device over %s: %w", dev, backing.Name(), err), f.Close())
	}
	return f, nil
}

// onDevice does something with the loop device of a file, if there is one.
func onDevice(file string, do func(dev string, f *os.File) error) error {
	dev, err := Attached(file)
	if err != nil || dev == "" {
		return err
	}
	f, err := os.OpenFile(dev, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("open a loop device: %w", err)
	}
	defer f.Close()
	return do(dev, f)
}

// Detach takes the loop device away, if there is one; a process that has it open keeps it until it closes it.
func Detach(file string) error {
	return onDevice(file, func(dev string, f *os.File) error {
		if err := unix.IoctlSetInt(int(f.Fd()), unix.LOOP_CLR_FD, 0); err != nil && !errors.Is(err, unix.ENXIO) {
			return fmt.Errorf("take %s off its file: %w", dev, err)
		}
		return nil
	})
}

// Enlarge makes the file, and the device over it, as large as size, and never smaller.
func Enlarge(file string, size int64) error {
	if err := lengthen(file, size); err != nil {
		return err
	}
	return onDevice(file, reread)
}

func lengthen(file string, size int64) error {
	info, err := os.Stat(file)
	if err != nil {
		return fmt.Errorf("look at the file of a volume: %w", err)
	}
	if info.Size() < size {
		if err := os.Truncate(file, size); err != nil {
			return fmt.Errorf("enlarge the file of a volume: %w", err)
		}
	}
	return nil
}

// reread has a device be as large as its file.
func reread(dev string, f *os.File) error {
	if err := unix.IoctlSetInt(int(f.Fd()), unix.LOOP_SET_CAPACITY, 0); err != nil {
		return fmt.Errorf("enlarge %s: %w", dev, err)
	}
	return nil
}
