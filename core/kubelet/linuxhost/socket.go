// SPDX-License-Identifier: Apache-2.0

package linuxhost

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ShortSocket is a name for a socket that is short enough for the kernel, which takes 107
// bytes: a long one is named by a descriptor of its folder, until done is called.
func ShortSocket(path string) (at string, done func(), err error) {
	const most = 107
	if len(path) <= most {
		return path, func() {}, nil
	}
	folder, err := os.OpenFile(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return "", nil, fmt.Errorf("the folder of %s: %w", path, err)
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", folder.Fd(), filepath.Base(path)), func() { _ = folder.Close() }, nil
}
