// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/core/watchcache"
)

// components are the ComponentStatuses, a resource that is made when asked and
// that upstream has deprecated. The store is the one component that every
// server can speak for; the others say how they are by their leases.
func (r *Reader) components(ctx context.Context, q Query) ([]*watchcache.Item, error) {
	if r.res.Group != "" || r.res.GroupResource.Resource != "componentstatuses" {
		return nil, apierrors.NewMethodNotSupported(r.res.GroupResource, "get")
	}
	healthy := corev1.ComponentCondition{Type: corev1.ComponentHealthy, Status: corev1.ConditionTrue, Message: "ok"}
	if _, err := r.cfg.Store.Revision(ctx); err != nil {
		healthy.Status, healthy.Message, healthy.Error = corev1.ConditionFalse, "", err.Error()
	}
	status := &corev1.ComponentStatus{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ComponentStatus"},
		ObjectMeta: metav1.ObjectMeta{Name: "etcd-0"},
		Conditions: []corev1.ComponentCondition{healthy},
	}
	return []*watchcache.Item{{Object: object.FromVersioned(r.res.Codec(q.Version), status)}}, nil
}

func (r *Reader) component(ctx context.Context, q Query) (*object.Object, error) {
	all, err := r.components(ctx, q)
	if err != nil {
		return nil, err
	}
	for _, item := range all {
		if m, err := item.Object.Meta(); err == nil && m.GetName() == q.Name {
			return item.Object, nil
		}
	}
	return nil, apierrors.NewNotFound(r.res.GroupResource, q.Name)
}
