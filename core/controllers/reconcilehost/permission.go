// SPDX-License-Identifier: Apache-2.0

package reconcilehost

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"

	"github.com/wasmplane/wasmplane/core/controllers"
	"github.com/wasmplane/wasmplane/core/run"
)

// Permitted returns an error that tells why a service account may not list and watch a resource in
// all namespaces: Forbidden (apierrors.IsForbidden) where that was the answer, any
// other where there is none.
type Permitted func(ctx context.Context, namespace, name string, resource schema.GroupVersionResource) error

// settle is how long a refused reconciler waits after a change of RBAC before it asks again: the
// server's authorizer learns of it at the same time, and changes come in groups.
const settle = 200 * time.Millisecond

// mostQuestions is how many questions wait for the server's answer at once, of all reconcilers: hundreds
// may be woken by one object, and a server that is asked too much at once sends clients away for
// a second.
const mostQuestions = 16

// rbac tells of changes of the rules by which an account may list and watch in all namespaces.
// Only ClusterRoles and their bindings can say so. It says that something changed, not
// what: what follows is for the server's authorizers to answer.
type rbac struct {
	questions chan struct{} // one for each that waits

	mu       sync.Mutex
	revision uint64
	changed  chan struct{} // closed at the next change
	stops    []context.CancelFunc
}

func newRBAC() *rbac {
	return &rbac{questions: make(chan struct{}, mostQuestions), changed: make(chan struct{})}
}

// follow watches RBAC, once, until ctx ends. Without the right to, an answer
// is believed as long as ever, and a refused reconciler asks by the clock only.
func (r *rbac) follow(ctx context.Context, c *caches) error {
	if r.stops != nil {
		return nil
	}
	for resource, kind := range map[string]string{"clusterroles": "ClusterRole", "clusterrolebindings": "ClusterRoleBinding"} {
		w := controllers.Watched{Resource: rbacv1.SchemeGroupVersion.WithResource(resource), Kind: kind}
		s, err := c.start(ctx, w, onlyNamed)
		if err != nil {
			return err
		}
		s.listen(&listener{func(_, _ metav1.Object) { r.advance() }})
		r.stops = append(r.stops, s.stop)
	}
	return nil
}

func (r *rbac) stop() {
	for _, stop := range r.stops {
		stop()
	}
}

func (r *rbac) advance() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.revision++
	close(r.changed)
	r.changed = make(chan struct{})
}

// at is the present revision, and what is closed when there is another.
func (r *rbac) at() (revision uint64, changed <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.revision, r.changed
}

// onlyNamed keeps of an object what tells that it changed.
func onlyNamed(obj any) (any, error) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return obj, nil
	}
	named := &unstructured.Unstructured{}
	named.SetName(u.GetName())
	named.SetUID(u.GetUID())
	named.SetResourceVersion(u.GetResourceVersion())
	return named, nil
}

// believed is an answer that a reconciler may see its objects.
type believed struct {
	revision uint64
	until    time.Time
}

// permitted says whether the reconciler may see its objects now. It is asked before each call; the
// answer is believed for Config.Review, and not beyond a change of RBAC.
func (h *hosted) permitted(ctx context.Context) error {
	revision, _ := h.rbac.at()
	now := time.Now()
	h.mu.Lock()
	fresh := h.believed.revision == revision && now.Before(h.believed.until)
	h.mu.Unlock()
	if fresh {
		return nil
	}
	if err := h.ask(ctx); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.believed = believed{revision: revision, until: now.Add(h.cfg.Review)}
	return nil
}

// ask asks for all kinds at once: a call waits for the answers.
func (h *hosted) ask(ctx context.Context) error {
	watched := h.watched()
	errs := make([]error, len(watched))
	var asking run.Tasks
	for i, w := range watched[1:] {
		asking.Go("reconciler "+h.reconciler.Name()+": permission", func() {
			errs[i+1] = h.askOne(ctx, w.Resource)
		})
	}
	errs[0] = h.askOne(ctx, watched[0].Resource)
	asking.Wait()
	for _, err := range errs { // a refusal says more than a question that failed
		if apierrors.IsForbidden(err) {
			return err
		}
	}
	return errors.Join(errs...)
}

// askOne asks when it is its turn.
func (h *hosted) askOne(ctx context.Context, r schema.GroupVersionResource) error {
	select {
	case h.rbac.questions <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-h.rbac.questions }()
	return h.cfg.Permitted(ctx, h.namespace, h.account, r)
}

// review asks the server by SubjectAccessReview.
func review(kube kubernetes.Interface) Permitted {
	return func(ctx context.Context, namespace, name string, r schema.GroupVersionResource) error {
		for _, verb := range []string{"list", "watch"} {
			sar, err := kube.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
				Spec: authorizationv1.SubjectAccessReviewSpec{
					User:               serviceaccount.MakeUsername(namespace, name),
					Groups:             append(serviceaccount.MakeGroupNames(namespace), user.AllAuthenticated),
					ResourceAttributes: &authorizationv1.ResourceAttributes{Group: r.Group, Version: r.Version, Resource: r.Resource, Verb: verb},
				},
			}, metav1.CreateOptions{})
			switch {
			case apierrors.IsForbidden(err):
				// The question is refused, not the account: no reason to take it for an answer.
				return fmt.Errorf("asking whether service account %s/%s may %s %s: %s", namespace, name, verb, r.GroupResource(), err.Error())
			case err != nil:
				return fmt.Errorf("asking whether service account %s/%s may %s %s: %w", namespace, name, verb, r.GroupResource(), err)
			case !sar.Status.Allowed:
				return apierrors.NewForbidden(r.GroupResource(), "",
					fmt.Errorf("service account %s/%s may not %s %s in all namespaces; grant it by a ClusterRole", namespace, name, verb, r.GroupResource()))
			}
		}
		return nil
	}
}
