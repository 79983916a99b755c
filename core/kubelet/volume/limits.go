// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"fmt"
	"io/fs"
	"path/filepath"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Exceeded are the pods whose emptyDir volumes on disk hold more than their
// limits, with what to say of it.
func (m *Manager) Exceeded(ctx context.Context) map[types.UID]string {
	m.mu.Lock()
	var pods []*corev1.Pod
	for _, pv := range m.pods {
		if !pv.gone {
			pods = append(pods, pv.pod)
		}
	}
	m.mu.Unlock()
	out := map[types.UID]string{}
	for _, p := range pods {
		for i := range p.Spec.Volumes {
			v := &p.Spec.Volumes[i]
			if v.EmptyDir == nil || v.EmptyDir.SizeLimit == nil || v.EmptyDir.SizeLimit.Sign() <= 0 ||
				v.EmptyDir.Medium != corev1.StorageMediumDefault {
				continue
			}
			limit := v.EmptyDir.SizeLimit
			if diskUsage(ctx, m.request(p, v, &emptyDir{}).Dir, limit.Value()) > limit.Value() {
				out[p.UID] = fmt.Sprintf("Usage of EmptyDir volume %q exceeds the limit %q. ", v.Name, limit.String())
			}
		}
	}
	return out
}

// diskUsage counts the blocks that a directory takes, and stops once they are more than enough.
func diskUsage(ctx context.Context, dir string, enough int64) (total int64) {
	const block = 512
	seen := map[uint64]bool{}
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // files come and go while we count
		}
		if ctx.Err() != nil || total > enough {
			return fs.SkipAll
		}
		info, err := d.Info()
		if err != nil {
			return nil //nolint:nilerr // as above
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			if st.Nlink > 1 && !d.IsDir() {
				if seen[st.Ino] {
					return nil
				}
				seen[st.Ino] = true
			}
			total += st.Blocks * block
		}
		return nil
	})
	return total
}
