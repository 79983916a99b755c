// SPDX-License-Identifier: Apache-2.0

package linuxhost

import (
	"fmt"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/pod"
	"github.com/wasmplane/wasmplane/core/kubelet/userns"
)

// podUsers are the machine's user IDs that pods have; err says why none can have any.
type podUsers struct {
	ranges *userns.Ranges
	err    error
}

func (u podUsers) free(uid types.UID) {
	if u.ranges != nil {
		u.ranges.Free(uid)
	}
}

// usersFile has the range of the pod in whose directory it is.
func (h *Host) usersFile(uid types.UID) string { return filepath.Join(h.PodDir(uid), "userns") }

// loadUsers takes in which pods have which user IDs. A range that cannot be read is its
// pod's trouble, and told when that pod is claimed.
func (h *Host) loadUsers() error {
	span, err := userns.ConfiguredHere()
	if err != nil {
		h.users.err = err
		h.cfg.Logger.Warn("no pod with hostUsers: false can run on this node", "error", err)
		return nil
	}
	h.users.ranges = userns.New(span, h.cfg.RootDir)
	entries, err := os.ReadDir(h.podsDir())
	if err != nil {
		return fmt.Errorf("list the directories of pods: %w", err)
	}
	for _, e := range entries {
		uid := types.UID(e.Name())
		if err := h.users.ranges.Load(uid, h.usersFile(uid)); err != nil {
			h.cfg.Logger.Warn("a pod has user IDs that are not known", "error", err)
		}
	}
	return nil
}

// usersOf a pod are nil where it has the machine's.
func (h *Host) usersOf(p *corev1.Pod) (*cri.UserNamespace, error) {
	if !pod.OwnUsers(p) {
		return nil, nil
	}
	if h.users.err != nil {
		return nil, fmt.Errorf("the pod asks for user IDs of its own (hostUsers: false): %w", h.users.err)
	}
	if closed := closedAbove(h.cfg.StateDir); closed != "" {
		return nil, fmt.Errorf("the pod asks for user IDs of its own (hostUsers: false), which could not pass %s to its files: "+
			"this node's runtime began before runc could give it any; it can from the machine's next boot on", closed)
	}
	first, err := h.users.ranges.Take(p.UID, h.usersFile(p.UID))
	if err != nil {
		return nil, err
	}
	ids := []*cri.IDMapping{{HostId: first, Length: userns.Size}}
	return &cri.UserNamespace{Mode: cri.NamespaceMode_POD, Uids: ids, Gids: ids}, nil
}

// closedAbove is the outermost directory on the way to dir that others may not pass; empty if there is none.
func closedAbove(dir string) (closed string) {
	const pass = 0o001
	for at := dir; filepath.IsAbs(at); at = filepath.Dir(at) {
		if info, err := os.Stat(at); err == nil && info.Mode()&pass == 0 {
			closed = at
		}
		if at == "/" {
			break
		}
	}
	return closed
}
