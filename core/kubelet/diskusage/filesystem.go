// SPDX-License-Identifier: Apache-2.0

package diskusage

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
)

// FileSystem is how full one is: bytes and inodes. What is kept for root is neither used nor free.
type FileSystem struct {
	Bytes, BytesFree, BytesUsed    uint64
	Inodes, InodesFree, InodesUsed uint64
}

// FileSystemOf a directory.
func FileSystemOf(dir string) (FileSystem, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return FileSystem{}, fmt.Errorf("look at the file system of %s: %w", dir, err)
	}
	size := uint64(st.Bsize) //nolint:gosec // never negative
	return FileSystem{
		Bytes: st.Blocks * size, BytesFree: st.Bavail * size, BytesUsed: (st.Blocks - st.Bfree) * size,
		Inodes: st.Files, InodesFree: st.Ffree, InodesUsed: st.Files - st.Ffree,
	}, nil
}

// Pods is what directories of a node's pods took at some time.
type Pods struct {
	At time.Time
	// Logs by the container's ID, Volumes by the pod and their names.
	Logs    map[string]Usage
	Volumes map[types.UID]map[string]Usage
}
