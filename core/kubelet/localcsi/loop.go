// SPDX-License-Identifier: Apache-2.0

package localcsi

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

func splitZero(b []byte) []string {
	return strings.FieldsFunc(string(b), func(r rune) bool { return r == 0 })
}

// attached is the loop device over a file, by what the kernel says; "" = there is none.
func attached(file string) (string, error) {
	var want syscall.Stat_t
	if err := syscall.Stat(file, &want); errors.Is(err, fs.ErrNotExist) {
		return "", nil
	} else if err != nil {
		return "", fmt.Errorf("look at %s: %w", file, err)
	}
	bound, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return "", fmt.Errorf("list loop devices: %w", err)
	}
	for _, b := range bound {
		dev := "/dev/" + filepath.Base(filepath.Dir(filepath.Dir(b)))
		info, err := statusOf(dev)
		if errors.Is(err, unix.ENXIO) || errors.Is(err, fs.ErrNotExist) {
			continue // let go of meanwhile
		}
		if err != nil {
			return "", err
		}
		// One that goes when its last user closes it is as good as gone.
		if info.Device == want.Dev && info.Inode == want.Ino && info.Flags&unix.LO_FLAGS_AUTOCLEAR == 0 {
			return dev, nil
		}
	}
	return "", nil
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

// attach makes a loop device over a file, unless there is one.
func attach(file string) (string, error) {
	if dev, err := attached(file); err != nil || dev != "" {
		return dev, err
	}
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return "", fmt.Errorf("block volumes are loop devices, and this node gives none (modprobe loop): %w", err)
	}
	defer control.Close()
	backing, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return "", fmt.Errorf("open the file of a block volume: %w", err)
	}
	defer backing.Close()
	for range 64 { // another may take the free one first
		number, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return "", fmt.Errorf("find a free loop device: %w", err)
		}
		dev := fmt.Sprintf("/dev/loop%d", number)
		err = configure(dev, backing)
		if err == nil {
			return dev, nil
		}
		if !errors.Is(err, unix.EBUSY) {
			return "", err
		}
	}
	return "", errors.New("others took each loop device that was free")
}

func configure(dev string, backing *os.File) error {
	f, err := os.OpenFile(dev, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("open a loop device: %w", err)
	}
	defer f.Close()
	cfg := &unix.LoopConfig{Fd: uint32(backing.Fd())} //nolint:gosec // a file descriptor
	copy(cfg.Info.File_name[:], backing.Name())
	if err := unix.IoctlLoopConfigure(int(f.Fd()), cfg); err != nil {
		return fmt.Errorf("make %s a device over %s: %w", dev, backing.Name(), err)
	}
	return nil
}

// onDevice does something with the loop device of a file, if there is one.
func onDevice(file string, do func(dev string, f *os.File) error) error {
	dev, err := attached(file)
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

// detach takes the loop device away, if there is one; who has it open keeps it until then.
func detach(file string) error {
	return onDevice(file, func(dev string, f *os.File) error {
		if err := unix.IoctlSetInt(int(f.Fd()), unix.LOOP_CLR_FD, 0); err != nil && !errors.Is(err, unix.ENXIO) {
			return fmt.Errorf("take %s off its file: %w", dev, err)
		}
		return nil
	})
}

// enlarge makes the file, and the device over it, as large as size, and never smaller.
func enlarge(file string, size int64) error {
	info, err := os.Stat(file)
	if err != nil {
		return fmt.Errorf("look at the file of a block volume: %w", err)
	}
	if info.Size() < size {
		if err := os.Truncate(file, size); err != nil {
			return fmt.Errorf("enlarge the file of a block volume: %w", err)
		}
	}
	return onDevice(file, func(dev string, f *os.File) error {
		if err := unix.IoctlSetInt(int(f.Fd()), unix.LOOP_SET_CAPACITY, 0); err != nil {
			return fmt.Errorf("enlarge %s: %w", dev, err)
		}
		return nil
	})
}
