// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/wasmplane/wasmplane/test/conformance/internal/image"
)

// The busybox of the images is its authors' own, with their default
// configuration, as in the images that it stands for. Debian's is another one:
// Debian's changes to its shell drop environment variables whose names no shell
// could use, and pods may have such.

// busyboxSettings are what differs from the default configuration: the images
// have no libraries, and tc does not compile with headers of kernels since 6.8.
var busyboxSettings = map[string]string{"CONFIG_STATIC": "y", "CONFIG_TC": "n"}

// busybox builds it, once.
func (b builder) busybox(ctx context.Context) error {
	if _, err := os.Stat(b.path("busybox")); err == nil {
		return nil
	}
	fmt.Fprintln(b.out, "building busybox")
	archive, err := b.debian().Source(ctx, "busybox")
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(b.cache, "busybox-source-")
	if err != nil {
		return err
	}
	err = b.makeBusybox(ctx, archive, dir)
	if err == nil {
		err = os.Rename(filepath.Join(dir, "busybox"), b.path("busybox"))
	}
	if err != nil {
		err = fmt.Errorf("build busybox of %s: %w", filepath.Base(archive), err)
	}
	return errors.Join(err, os.RemoveAll(dir))
}

func (b builder) debian() image.Debian { return image.Debian{Dir: b.path("debian")} }

// makeBusybox leaves the program in the folder of its source.
func (b builder) makeBusybox(ctx context.Context, archive, dir string) error {
	if _, err := command(ctx, "tar", "-x", "-f", archive, "-C", dir, "--strip-components=1"); err != nil {
		return err
	}
	if err := makeIn(ctx, dir, "defconfig"); err != nil {
		return err
	}
	config := filepath.Join(dir, ".config")
	defaults, err := os.ReadFile(config)
	if err != nil {
		return err
	}
	if err := os.WriteFile(config, []byte(withSettings(string(defaults), busyboxSettings)), 0o644); err != nil {
		return err
	}
	return makeIn(ctx, dir, "-j"+strconv.Itoa(runtime.NumCPU()), "busybox")
}

func makeIn(ctx context.Context, dir string, args ...string) error {
	_, err := command(ctx, "make", append([]string{"-C", dir}, args...)...)
	if errors.Is(err, exec.ErrNotFound) {
		return fmt.Errorf("`make deps-conformance` installs what is missing: %w", err)
	}
	return err
}

// withSettings is a configuration in which settings have taken the place of what
// it says of the same names.
func withSettings(config string, settings map[string]string) string {
	var out strings.Builder
	for line := range strings.Lines(config) {
		name, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "# "), "=")
		name = strings.TrimSuffix(name, " is not set")
		if _, ok := settings[name]; !ok {
			out.WriteString(line)
		}
	}
	for name, value := range settings {
		if value == "n" {
			fmt.Fprintf(&out, "# %s is not set\n", name)
		} else {
			fmt.Fprintf(&out, "%s=%s\n", name, value)
		}
	}
	return out.String()
}
