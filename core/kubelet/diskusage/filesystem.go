// SPDX-License-Identifier: Apache-2.0

package diskusage

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// FileSystem is how full one is: bytes and inodes. What is kept for root is neither used nor free.
type FileSystem struct {
	Bytes, BytesFree, BytesUsed    uint64
	Inodes, InodesFree, InodesUsed uint64
}

// Usable bytes, in use or not: without those kept for root, which no pod gets, as df has it.
func (f FileSystem) Usable() uint64 { return f.BytesUsed + f.BytesFree }

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

// OfLayer is what the runtime has measured of a container's files.
func OfLayer(l *cri.FilesystemUsage) Usage {
	return Usage{Bytes: int64(l.GetUsedBytes().GetValue()), Inodes: int64(l.GetInodesUsed().GetValue())} //nolint:gosec // of a disk
}

// Pods is what directories of a node's pods took at some time.
type Pods struct {
	At time.Time
	// Logs by the container's ID, Volumes by the pod and their names.
	Logs    map[string]Usage
	Volumes map[types.UID]map[string]Usage
}
