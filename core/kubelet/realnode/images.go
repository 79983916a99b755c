package realnode

import "github.com/wasmplane/wasmplane/core/kubelet/images"

// OpenImages opens the image store of a node whose containerd runs, for a process
// that did not start it. The caller closes it.
func OpenImages(cfg Config) (*images.Store, error) {
	c := cfg.containerd()
	return images.Open(c.Socket(), c.Snapshotter)
}
