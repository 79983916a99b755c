// SPDX-License-Identifier: Apache-2.0

package realnode

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/wasmplane/wasmplane/core/kubelet/images"
)

// OpenImages opens the image store of a node whose containerd runs, for a process
// that did not start it. The caller closes it.
func OpenImages(cfg Config) (*images.Store, error) {
	c := cfg.containerd()
	// Without a socket a client would go on dialing until its time is up, and say so only then.
	if _, err := os.Stat(c.Socket()); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("no containerd runs at %s", c.Socket())
	}
	return images.Open(c.Socket(), c.Snapshotter)
}
