// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// debianKeys is where Debian keeps the keys that its archives are signed with.
const debianKeys = "/usr/share/keyrings/debian-archive-keyring.gpg"

// Source fetches a package's source and answers the archive of it as its authors
// published it, without what Debian changes. It asks the archives that this
// machine's apt takes Debian's packages from, and leaves apt's own lists alone.
func (d Debian) Source(ctx context.Context, pkg string) (string, error) {
	if file, ok := d.original(pkg); ok {
		return file, nil
	}
	apt := filepath.Join(d.Dir, "apt")
	if err := errors.Join(os.MkdirAll(filepath.Join(apt, "lists", "partial"), 0o755),
		os.MkdirAll(filepath.Join(apt, "cache", "archives", "partial"), 0o755)); err != nil {
		return "", err
	}
	list, err := sourcesList(ctx)
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(apt, "sources.list"), []byte(list), 0o644); err != nil {
		return "", err
	}
	options := []string{
		"-q", "-o", "Dir::Etc::sourcelist=" + filepath.Join(apt, "sources.list"), "-o", "Dir::Etc::sourceparts=-",
		"-o", "Dir::State::lists=" + filepath.Join(apt, "lists"), "-o", "Dir::Cache=" + filepath.Join(apt, "cache"),
		"-o", "APT::Sandbox::User=", // another user could not write here
	}
	for _, args := range [][]string{{"update"}, {"source", "--download-only", pkg}} {
		cmd := exec.CommandContext(ctx, "apt-get", append(args, options...)...)
		cmd.Dir = d.Dir
		if _, err := output(cmd); err != nil {
			return "", err
		}
	}
	if file, ok := d.original(pkg); ok {
		return file, nil
	}
	return "", fmt.Errorf("apt-get source left no %s_*.orig.tar.* in %s", pkg, d.Dir)
}

func (d Debian) original(pkg string) (string, bool) {
	found, err := filepath.Glob(filepath.Join(d.Dir, pkg+"_*.orig.tar.*"))
	found = slices.DeleteFunc(found, func(f string) bool { return strings.HasSuffix(f, ".asc") })
	if err != nil || len(found) == 0 {
		return "", false
	}
	return found[len(found)-1], true
}

// sourcesList names the source archives beside each archive of Debian's packages
// that this machine's apt knows.
func sourcesList(ctx context.Context) (string, error) {
	format := "deb-src $(REPO_URI) $(RELEASE) $(COMPONENT)"
	if _, err := os.Stat(debianKeys); err == nil {
		format = "deb-src [signed-by=" + debianKeys + "] $(REPO_URI) $(RELEASE) $(COMPONENT)"
	}
	out, err := output(exec.CommandContext(ctx, "apt-get", "indextargets", "--format", format, "Created-By: Packages", "Origin: Debian"))
	if err != nil {
		return "", err
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	slices.Sort(lines)
	lines = slices.Compact(lines)
	if len(lines) == 1 && lines[0] == "" {
		return "", errors.New("this machine's apt knows no archive of Debian's packages; `apt-get update` fetches their lists, if /etc/apt names one")
	}
	return strings.Join(lines, "\n") + "\n", nil
}
