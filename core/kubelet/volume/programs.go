// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"cmp"
	"errors"
	"fmt"
	"os/exec"
)

// packages of Debian have the programs by which file systems are found, made, mounted and grown. Nodes without
// devices need none of them.
var packages = map[string]string{
	"blkid": "util-linux", "mount": "mount", "mount.nfs": "nfs-common (Debian) or nfs-utils",
	"mkfs.ext2": "e2fsprogs", "mkfs.ext3": "e2fsprogs", "mkfs.ext4": "e2fsprogs", "resize2fs": "e2fsprogs",
	"mkfs.xfs": "xfsprogs", "xfs_growfs": "xfsprogs", "mkfs.btrfs": "btrfs-progs", "btrfs": "btrfs-progs",
}

// growing names the program that makes a file system larger.
var growing = map[string]string{"ext3": "resize2fs", "ext4": "resize2fs", "xfs": "xfs_growfs", "btrfs": "btrfs"}

// programs says what to install where this node lacks one of the programs.
func programs(names ...string) error {
	var missing []error
	for _, name := range names {
		if _, err := exec.LookPath(name); err != nil {
			missing = append(missing, fmt.Errorf("this node has no %s: install the package %s", name, cmp.Or(packages[name], "that has it")))
		}
	}
	return errors.Join(missing...)
}
