// SPDX-License-Identifier: Apache-2.0

// Package reserve says which writes may use what a full store keeps back: those of
// administrators and on the way to a deletion, and what keeps nodes and components
// alive. Nobody else's objects grow by any of them.
package reserve

import (
	"slices"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
)

// small is what a lease takes at most, and by how much the mark of a deletion makes
// an object grow.
const small = 4 << 10

// Write is what is asked for.
type Write struct {
	User        user.Info // nil = nobody is known
	Resource    schema.GroupResource
	Subresource string

	Deleting, WasDeleting bool // the object, after and before it
	Bytes, Before         int  // of the object, after and before it; 0 = there was none
}

// Granted says whether the write may. administrators are groups whose members always may.
func (w Write) Granted(administrators []string) bool {
	if w.User != nil && slices.ContainsFunc(administrators, func(g string) bool { return slices.Contains(w.User.GetGroups(), g) }) {
		return true
	}
	if w.Deleting && (w.Bytes <= w.Before || !w.WasDeleting && w.Bytes <= w.Before+small) {
		return true
	}
	lease := w.Resource.Group == coordinationv1.GroupName && w.Resource.Resource == "leases"
	if lease && w.Before > 0 && w.Bytes <= small {
		return true
	}
	if w.User == nil || !ofTheCluster(w.User) {
		return false
	}
	return lease || w.Subresource == "status" || w.Subresource == "finalize" || w.Resource.Resource == "nodes"
}

// ofTheCluster: components, nodes, and accounts of kube-system.
func ofTheCluster(u user.Info) bool {
	return strings.HasPrefix(u.GetName(), "system:kube-") || strings.HasPrefix(u.GetName(), "system:serviceaccount:kube-system:") ||
		slices.Contains(u.GetGroups(), user.NodesGroup)
}
