// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"errors"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/store"
)

// full answers a write that there is no room for. A namespace that has taken its
// share is told as one that has used up a quota; a full store has a code of its own, and no
// Retry-After: clients would wait out ten of them for each object of a file.
func (r *Reader) full(err error, name string) error {
	var limit *store.FullError
	if errors.As(err, &limit) && limit.Limit == store.NamespaceQuota {
		return apierrors.NewForbidden(r.res.GroupResource, name, limit)
	}
	message := "the store is full; delete objects, and it takes writes again within seconds"
	if limit != nil {
		message = limit.Error()
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusInsufficientStorage, Reason: "InsufficientStorage", Message: message,
		Details: &metav1.StatusDetails{Group: r.res.Group, Kind: r.res.GroupResource.Resource, Name: name},
	}}
}
