// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// CheckOwned fails where somebody else than root and this user could put another file in the place of one that a
// service uses: such a user would be root at the next start. What is not there yet is judged by its folder.
func CheckOwned(path string) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	resolved, err := filepath.EvalSymlinks(path)
	if errors.Is(err, fs.ErrNotExist) && path != "/" {
		return CheckOwned(filepath.Dir(path))
	}
	if err != nil {
		return err
	}
	// Links are as safe as the folders that they are in.
	for _, begin := range []string{path, resolved} {
		for at := begin; ; at = filepath.Dir(at) {
			if err := owned(at); err != nil {
				return err
			}
			if at == "/" {
				break
			}
		}
	}
	return nil
}

func owned(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("%s: the system does not say whose it is", path)
	}
	mode, change := info.Mode(), "chown root:root "+path+"; chmod go-w "+path
	switch {
	case int(st.Uid) != 0 && int(st.Uid) != os.Geteuid():
		return fmt.Errorf("%s is of the user %d, who could change what the service runs: move it (/usr/local/bin, /etc/wasmplane, /var/lib/wasmplane), or %s", path, st.Uid, change)
	case mode&fs.ModeSymlink != 0, mode.IsDir() && mode&fs.ModeSticky != 0:
		return nil // of what is in a sticky folder, each is its owner's
	case mode&0o002 != 0 || mode&0o020 != 0 && st.Gid != 0:
		return fmt.Errorf("%s can be written by others than its owner, who could change what the service runs: move it (/usr/local/bin, /etc/wasmplane, /var/lib/wasmplane), or %s", path, change)
	}
	return nil
}
