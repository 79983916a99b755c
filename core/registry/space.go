// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"slices"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/wasmplane/wasmplane/core/store"
	"github.com/wasmplane/wasmplane/core/watchcache"
)

// Space says whether there is room for a write in the store.
type Space interface {
	// Admit answers nil or a *store.FullError.
	Admit(w store.Write) error
}

// room asks for room for the value of a write. old is what the value replaces, nil
// where it makes something new. It must be the snapshot of the write and not the
// cache's present one: the cache may be behind, and an object that is marked as
// deleted already would be granted the growth of its mark once more.
func (w *write) room(internal runtime.Object, value []byte, old *watchcache.Item) error {
	if w.r.cfg.Space == nil {
		return nil
	}
	m, err := meta.Accessor(internal)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	before, deleting := 0, false
	if old != nil {
		before = old.Size()
		if was, err := old.Object.Meta(); err == nil {
			deleting = was.GetDeletionTimestamp() != nil
		}
	}
	return w.r.cfg.Space.Admit(store.Write{
		Namespace: m.GetNamespace(), Bytes: len(value), Before: before,
		Reserved: w.reserved(m, len(value), before, deleting),
	})
}

// small is what a lease takes at most, and by how much the mark of a deletion makes
// an object grow.
const small = 4 << 10

// reserved says whether the write may use what a full store keeps back: by
// administrators and by the server itself, on the way to a deletion, and what
// keeps nodes and components alive. Nobody else's objects grow by any of them.
func (w *write) reserved(m metav1.Object, bytes, before int, deleting bool) bool {
	if w.req == nil { // the server's own change of an object that is there
		return true
	}
	u := w.req.User
	if u != nil && slices.ContainsFunc(w.r.cfg.Administrators, func(g string) bool { return slices.Contains(u.GetGroups(), g) }) {
		return true
	}
	if m.GetDeletionTimestamp() != nil && (bytes <= before || !deleting && bytes <= before+small) {
		return true
	}
	lease := w.r.res.Group == coordinationv1.GroupName && w.r.res.GroupResource.Resource == "leases"
	if lease && before > 0 && bytes <= small {
		return true
	}
	if u == nil || !ofTheCluster(u) {
		return false
	}
	return lease || w.req.Subresource == "status" || w.req.Subresource == "finalize" || w.r.res.GroupResource.Resource == "nodes"
}

// ofTheCluster: components, nodes, and accounts of kube-system.
func ofTheCluster(u user.Info) bool {
	return strings.HasPrefix(u.GetName(), "system:kube-") || strings.HasPrefix(u.GetName(), "system:serviceaccount:kube-system:") ||
		slices.Contains(u.GetGroups(), user.NodesGroup)
}
