// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
)

// largestFile bounds what the kubelet itself reads of a pod's file.
const largestFile = 1 << 20

// File reads a regular file in a volume of a pod. The pod may change the volume meanwhile: no link in it leads out of it,
// and a pipe or a device keeps nobody waiting.
func (m *Manager) File(uid types.UID, volume, path string) ([]byte, error) {
	vol, ok := m.mounted(uid)[volume]
	if !ok || vol.Block || vol.Image != nil {
		return nil, fmt.Errorf("volume %q has no files that the node could read", volume)
	}
	root, err := os.OpenRoot(vol.Path)
	if err != nil {
		return nil, fmt.Errorf("open volume %q: %w", volume, err)
	}
	defer root.Close()
	f, err := root.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file", path)
	}
	data, err := io.ReadAll(io.LimitReader(f, largestFile+1))
	if err == nil && len(data) > largestFile {
		err = fmt.Errorf("%s is larger than %d bytes", path, largestFile)
	}
	return data, err
}
