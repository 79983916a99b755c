// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/sys/reaper"
	"github.com/containerd/log"
	"golang.org/x/sys/unix"
)

// A node's native code of modules, by engine and digest of the module, is made by a process that has
// nothing but the module (plugins/workload, Compile), and is read by containers: none can write it. A container whose module's code
// is not there, for whatever reason, compiles it itself, within its own limits.

const (
	compilePatience = 90 * time.Second // for a compilation, also for others'
	lockEvery       = 20 * time.Millisecond
	mostCode        = 1 << 30 // bytes of all modules together; the longest unused goes first
)

// withModule calls read with the module's file: the artifact's blob, or the program in the container's root file system.
func withModule(ctx context.Context, r *taskapi.CreateTaskRequest, blob string, args []string, read func(*os.File) error) error {
	if blob != "" {
		f, err := os.Open(blob)
		if err != nil {
			return err
		}
		defer f.Close()
		return read(f)
	}
	if len(args) == 0 {
		return errors.New("no command")
	}
	name, _, _ := strings.Cut(args[0], "#")
	var mounts []mount.Mount
	for _, m := range r.Rootfs {
		mounts = append(mounts, mount.Mount{Type: m.Type, Source: m.Source, Target: m.Target, Options: m.Options})
	}
	return mount.WithTempMount(ctx, mounts, func(dir string) error {
		root, err := os.OpenRoot(dir)
		if err != nil {
			return err
		}
		defer root.Close()
		// A pipe in place of a file must not be waited for.
		f, err := root.OpenFile(strings.TrimLeft(name, "/"), os.O_RDONLY|syscall.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
			return errors.Join(fmt.Errorf("%s is not a regular file", name), err)
		}
		return read(f)
	})
}

// compiled is the directory with a module's native code, and empty if there is none.
func compiled(ctx context.Context, engine string, module func(read func(*os.File) error) error) string {
	top := os.Getenv(cacheVariable)
	if top == "" {
		return ""
	}
	var code string
	err := module(func(f *os.File) (err error) {
		code, err = store{filepath.Join(top, filepath.Base(filepath.Dir(engine))), engine}.code(ctx, f)
		return err
	})
	if err != nil {
		log.G(ctx).WithError(err).Warn("a WebAssembly module is compiled in its container")
		return ""
	}
	return code
}

// store is the code that one version of the engine made.
type store struct{ dir, engine string }

func (s store) code(ctx context.Context, module *os.File) (string, error) {
	h := sha256.New()
	if _, err := io.Copy(h, module); err != nil {
		return "", fmt.Errorf("read the module: %w", err)
	}
	dir := filepath.Join(s.dir, hex.EncodeToString(h.Sum(nil)))
	if s.has(dir) {
		return dir, nil
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, compilePatience, errors.New("other modules are compiled"))
	defer cancel()
	unlock, err := lock(ctx, filepath.Join(s.dir, "lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	if s.has(dir) { // another one's shim was faster
		return dir, nil
	}
	if _, err := module.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	if err := s.compile(ctx, module, dir); err != nil {
		return "", err
	}
	s.shrink(dir)
	return dir, nil
}

// has says whether the code is there, and that it is used.
func (s store) has(dir string) bool {
	now := time.Now()
	return os.Chtimes(dir, now, now) == nil
}

// lock lets one module be compiled at a time on this node.
func lock(ctx context.Context, file string) (unlock func(), err error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(lockEvery)
	defer tick.Stop()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errors.Join(err, f.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), f.Close())
		case <-tick.C:
		}
	}
}

// compile makes the code in a process of its own and puts it where it is looked for, whole or not at all.
func (s store) compile(ctx context.Context, module *os.File, dir string) error {
	scratch, err := os.MkdirTemp(s.dir, ".new-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	cell := filepath.Join(scratch, "cell")
	archive, err := os.OpenFile(filepath.Join(scratch, "code.tar"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer archive.Close()
	trouble, err := os.OpenFile(filepath.Join(scratch, "stderr"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer trouble.Close()
	if err := os.Mkdir(cell, 0o711); err != nil {
		return err
	}
	cmd := exec.Command(s.engine, "compile", cell) //nolint:noctx // it is ended below
	cmd.Env = []string{"GOMAXPROCS=2"}
	cmd.Dir = "/"
	cmd.Stdin, cmd.Stdout, cmd.Stderr = module, archive, trouble
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setpgid:    true,
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
	}
	if err := await(ctx, cmd); err != nil {
		text := make([]byte, 1024)
		n, _ := trouble.ReadAt(text, 0)
		return fmt.Errorf("compile the module: %w: %s", err, strings.TrimSpace(string(text[:n])))
	}
	code := filepath.Join(scratch, "code")
	if err := unpack(archive, code); err != nil {
		return fmt.Errorf("take the module's code over: %w", err)
	}
	return os.Rename(code, dir)
}

// await runs a command to its end. The shim reaps all that ends, and so must be asked for the status.
func await(ctx context.Context, cmd *exec.Cmd) error {
	exits, err := reaper.Default.Start(cmd)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	defer stop()
	status, err := reaper.Default.Wait(cmd, exits)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return err
	case status != 0:
		return fmt.Errorf("exit status %d", status)
	}
	return nil
}

// unpack writes the files of the compiler's archive: one folder of the engine's, with a file for each module. What
// a module that took the compiler over may have written besides is refused.
func unpack(archive io.ReadSeeker, dir string) error {
	if _, err := archive.Seek(0, io.SeekStart); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for r := tar.NewReader(archive); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		switch h.Typeflag {
		case tar.TypeDir:
			err = root.MkdirAll(filepath.Clean(h.Name), 0o755)
		case tar.TypeReg:
			err = unpackFile(root, filepath.Clean(h.Name), r)
		default:
			err = fmt.Errorf("%q is neither a file nor a folder", h.Name)
		}
		if err != nil {
			return err
		}
	}
}

func unpackFile(root *os.Root, name string, r io.Reader) error {
	f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Close())
}

// shrink removes the code that nobody has asked for for the longest time, until there is room for what was
// added. Containers that run keep what they have mounted.
func (s store) shrink(added string) {
	type entry struct {
		dir  string
		used time.Time
		size int64
	}
	var all []entry
	var sum int64
	dirs, _ := os.ReadDir(s.dir)
	for _, d := range dirs {
		info, err := d.Info()
		if err != nil || !d.IsDir() || strings.HasPrefix(d.Name(), ".") {
			continue
		}
		e := entry{dir: filepath.Join(s.dir, d.Name()), used: info.ModTime()}
		_ = filepath.WalkDir(e.dir, func(_ string, d os.DirEntry, err error) error {
			if err == nil {
				if info, err := d.Info(); err == nil && info.Mode().IsRegular() {
					e.size += info.Size()
				}
			}
			return nil
		})
		all, sum = append(all, e), sum+e.size
	}
	slices.SortFunc(all, func(a, b entry) int { return cmp.Compare(a.used.UnixNano(), b.used.UnixNano()) })
	for _, e := range all {
		if sum <= mostCode {
			return
		}
		if e.dir != added && os.RemoveAll(e.dir) == nil {
			sum -= e.size
		}
	}
}
