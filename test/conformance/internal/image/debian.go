// SPDX-License-Identifier: Apache-2.0

package image

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Debian fetches packages by apt of this machine, with what they depend on, and
// without installing anything.
type Debian struct {
	Dir string // where packages are kept
}

// leftOut: programs that only the installation of packages needs.
var leftOut = []string{
	"adduser", "debconf", "debconf-2.0", "debianutils", "dpkg", "gawk", "install-info", "init-system-helpers", "libpam-modules",
	"libpam-modules-bin",
	"libpam-runtime", "mawk", "original-awk", "passwd", "perl", "perl-base", "readline-common", "tar", "ucf", "sensible-utils", "login",
}

var packageLine = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]*$`)

// closure are packages with everything that they depend on, but for those left out.
func (d Debian) closure(ctx context.Context, packages, without []string) ([]string, error) {
	args := append([]string{
		"depends", "--recurse", "--no-recommends", "--no-suggests", "--no-conflicts", "--no-breaks", "--no-replaces",
		"--no-enhances",
	}, packages...)
	without = append(slices.Clone(leftOut), without...)
	out, err := output(exec.CommandContext(ctx, "apt-cache", args...))
	if err != nil {
		return nil, err
	}
	var all []string
	for _, line := range strings.Split(string(out), "\n") {
		if packageLine.MatchString(line) && !slices.Contains(without, line) && !slices.Contains(all, line) {
			all = append(all, line)
		}
	}
	slices.Sort(all)
	return all, nil
}

// fetch downloads what is not there yet and answers the files.
func (d Debian) fetch(ctx context.Context, packages []string) ([]string, error) {
	if err := os.MkdirAll(d.Dir, 0o755); err != nil {
		return nil, err
	}
	var missing []string
	for _, p := range packages {
		if _, ok := d.file(p); !ok {
			missing = append(missing, p)
		}
	}
	if len(missing) > 0 {
		cmd := exec.CommandContext(ctx, "apt-get", append([]string{"download", "-q"}, missing...)...)
		cmd.Dir = d.Dir
		if _, err := output(cmd); err != nil {
			return nil, err
		}
	}
	var files []string
	for _, p := range packages {
		f, ok := d.file(p)
		if !ok {
			return nil, fmt.Errorf("apt-get download left no file of package %s in %s", p, d.Dir)
		}
		files = append(files, f)
	}
	return files, nil
}

func (d Debian) file(p string) (string, bool) {
	found, err := filepath.Glob(filepath.Join(d.Dir, p+"_*.deb"))
	if err != nil || len(found) == 0 {
		return "", false
	}
	return found[len(found)-1], true
}

// unpack puts packages with their dependencies into a layer.
func (d Debian) unpack(ctx context.Context, l *layer, packages, without []string) error {
	all, err := d.closure(ctx, packages, without)
	if err != nil {
		return err
	}
	files, err := d.fetch(ctx, all)
	if err != nil {
		return err
	}
	for _, f := range files {
		data, err := output(exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", f))
		if err != nil {
			return err
		}
		if err := l.merge(bytes.NewReader(data)); err != nil {
			return fmt.Errorf("%s: %w", filepath.Base(f), err)
		}
	}
	return nil
}

func output(cmd *exec.Cmd) ([]byte, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, stderr.String())
	}
	return stdout.Bytes(), nil
}
