// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// linkKubelet makes the link by which CSI drivers find the kubelet's directory, unless it
// is there, or the directory itself is, by a bind mount. What is there and leads elsewhere
// is somebody else's.
func linkKubelet(link, root string) error {
	if link == "" {
		return nil
	}
	if !filepath.IsAbs(link) {
		return fmt.Errorf("node.kubeletLink: %q is no absolute path", link)
	}
	if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
		return fmt.Errorf("node.kubeletLink: %w", err)
	}
	err := os.Symlink(root, link)
	if !errors.Is(err, fs.ErrExist) {
		if err != nil {
			return fmt.Errorf("node.kubeletLink: %w", err)
		}
		return nil
	}
	if to, err := os.Readlink(link); (err != nil || to != root) && !same(link, root) {
		return fmt.Errorf("node.kubeletLink: %s is there, and no link to %s: another kubelet's or another cluster's; remove it if nobody uses it, or choose another path", link, root)
	}
	return nil
}

// same says whether two paths are one directory, mounted twice.
func same(path, root string) bool {
	a, err := os.Lstat(path)
	if err != nil {
		return false
	}
	b, err := os.Lstat(root)
	return err == nil && os.SameFile(a, b)
}

// unlinkKubelet removes the link, if it is ours.
func unlinkKubelet(link, root string) error {
	if to, err := os.Readlink(link); link == "" || err != nil || to != root {
		return nil //nolint:nilerr // what is no link is not ours
	}
	if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("node.kubeletLink: %w", err)
	}
	return nil
}
