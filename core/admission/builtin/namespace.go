// SPDX-License-Identifier: Apache-2.0

package builtin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/reading"
)

// namespaceLifecycle keeps objects out of namespaces that do not exist or are on
// their way out, and keeps the system's own namespaces from being deleted.
//
// It is asked as a mutator, though it changes nothing, because nothing else is
// worth doing for an object without a namespace to be in.
type namespaceLifecycle struct {
	client kubernetes.Interface
	lister listers.NamespaceLister
	warm   reading.Warm
	// deleted holds names of namespaces that were just deleted: the informer may
	// still show them active, so they are read from the server.
	deleted *cache.LRUExpireCache
}

const (
	deletedFor    = 30 * time.Second
	deletedAtMost = 1000
)

func newNamespaceLifecycle(d Deps) *namespaceLifecycle {
	ns := d.Informers.Core().V1().Namespaces()
	return &namespaceLifecycle{d.Client, ns.Lister(), reading.WarmOf(d.Warm, ns.Informer()), cache.NewLRUExpireCache(deletedAtMost)}
}

func (*namespaceLifecycle) Name() string { return "NamespaceLifecycle" }

func (*namespaceLifecycle) Handles(r *admission.Request) bool {
	return r.Operation == admission.Delete && isNamespace(r) || r.Operation == admission.Create && r.Namespace != "" && !isNamespace(r)
}

func isNamespace(r *admission.Request) bool {
	return r.Kind.Group == "" && r.Kind.Kind == "Namespace"
}

func (p *namespaceLifecycle) Mutate(ctx context.Context, r *admission.Request) error {
	if isNamespace(r) {
		return p.deleteNamespace(r)
	}
	// An access review would tell whether the namespace exists.
	if r.Resource.Group == "authorization.k8s.io" && r.Resource.Resource == "localsubjectaccessreviews" {
		return nil
	}
	if err := p.warm.Wait(ctx, r); err != nil {
		return err
	}
	ns, err := p.get(ctx, r.Namespace)
	switch {
	case apierrors.IsNotFound(err):
		return err
	case err != nil:
		return apierrors.NewInternalError(err)
	case ns.Status.Phase == corev1.NamespaceTerminating:
		return terminating(r)
	}
	return nil
}

func (p *namespaceLifecycle) deleteNamespace(r *admission.Request) error {
	if slices.Contains([]string{metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic}, r.Name) {
		return admission.Forbidden(r, errors.New("this namespace may not be deleted"))
	}
	p.deleted.Add(r.Name, true, deletedFor)
	return nil
}

// get trusts the informer, unless the namespace was made or deleted a moment ago.
func (p *namespaceLifecycle) get(ctx context.Context, name string) (*corev1.Namespace, error) {
	ns, err := p.lister.Get(name)
	_, stale := p.deleted.Get(name)
	if err == nil && !(stale && ns.Status.Phase == corev1.NamespaceActive) {
		return ns, nil
	}
	return p.client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
}

// terminating carries a cause by which controllers know that retrying is in vain.
func terminating(r *admission.Request) error {
	err := admission.Forbidden(r, fmt.Errorf("unable to create new content in namespace %s because it is being terminated", r.Namespace))
	var status *apierrors.StatusError
	if errors.As(err, &status) {
		status.ErrStatus.Details.Causes = append(status.ErrStatus.Details.Causes, metav1.StatusCause{
			Type:    corev1.NamespaceTerminatingCause,
			Message: fmt.Sprintf("namespace %s is being terminated", r.Namespace),
			Field:   "metadata.namespace",
		})
	}
	return err
}
