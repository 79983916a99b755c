// SPDX-License-Identifier: Apache-2.0

// Package legacytokens takes token secrets that were made for service accounts on their own, and that
// nobody has used for a year, out of use, and deletes them after another year. A token in such a Secret has no end.
//
// The authenticator labels a Secret with the day on which its token was last used. A Secret without that label was
// not used since labels are written, which the ConfigMap kube-apiserver-legacy-service-account-token-tracking of
// kube-system says. What is not known to be unused stays: a Secret is left alone unless its account names it in
// `secrets`, which is how those that nobody asked for are known, while a pod of its namespace refers to it, and
// within the first year of labels. First the Secret is labelled with the day since when its token is invalid; whoever needs
// it removes that label within the year.
//
// Labels and times are upstream's (legacy-serviceaccount-token-cleaner-controller).
package legacytokens

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/wasmplane/wasmplane/core/controllers"
)

// Name of the controller, as upstream's --controllers knows it.
const Name = "legacy-serviceaccount-token-cleaner-controller"

const (
	lastUsed     = "kubernetes.io/legacy-token-last-used"
	invalidSince = "kubernetes.io/legacy-token-invalid-since"
	tracking     = "kube-apiserver-legacy-service-account-token-tracking"
	trackedSince = "since" // its key
	day          = "2006-01-02"

	// unused is how long a token is not used until it becomes invalid, and how long after that its Secret is deleted.
	unused = 365 * 24 * time.Hour
	// again is when a Secret is looked at again.
	again = 24 * time.Hour
)

// Controller takes tokens out of use.
type Controller struct {
	client   kubernetes.Interface
	secrets  corelisters.SecretLister
	accounts corelisters.ServiceAccountLister
	pods     corelisters.PodLister
	now      func() time.Time
	loop     *controllers.Loop[controllers.Key]
}

// New makes the controller.
func New(env controllers.Env, workers int) (*Controller, error) {
	informer := coreinformers.NewFilteredSecretInformer(env.Reader, metav1.NamespaceAll, 0,
		cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}, func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("type", string(corev1.SecretTypeServiceAccountToken)).String()
		})
	if err := informer.SetTransform(withoutToken); err != nil {
		return nil, fmt.Errorf("%s: %w", Name, err)
	}
	core := env.Informers.Core().V1()
	c := &Controller{
		client: env.Client, secrets: corelisters.NewSecretLister(informer.GetIndexer()), accounts: core.ServiceAccounts().Lister(),
		pods: core.Pods().Lister(), now: time.Now,
	}
	c.loop = controllers.NewLoop(env, Name, workers, c.reconcile)
	c.loop.Own(informer)
	c.loop.Needs(core.ServiceAccounts().Informer(), core.Pods().Informer())
	c.loop.Watch(informer, controllers.Changes(func(_, current metav1.Object) {
		if current != nil {
			c.loop.Add(cache.MetaObjectToName(current))
		}
	}))
	return c, nil
}

// withoutToken keeps no token in memory: labels are enough to decide.
func withoutToken(o any) (any, error) {
	if s, ok := o.(*corev1.Secret); ok {
		s.Data, s.ManagedFields = nil, nil
	}
	return o, nil
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

func (c *Controller) reconcile(ctx context.Context, key controllers.Key) error {
	secret, err := c.secrets.Secrets(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	controllers.About(ctx, "Secret", secret)
	needed, err := c.needed(secret)
	if err != nil {
		return err
	}
	now, what := c.now().UTC(), keep
	if !needed && idle(now, secret) { // else nobody has to be asked
		since, err := c.tracked(ctx)
		if err != nil {
			return err
		}
		what = decide(now, since, secret)
	}
	switch what {
	case invalidate:
		err = c.invalidate(ctx, secret, now.Format(day))
	case remove:
		err = c.remove(ctx, secret)
	case keep:
	}
	if err == nil {
		c.loop.AddAfter(key, again)
	}
	return err
}

// needed says that a Secret is to stay, whether its token is used or not.
func (c *Controller) needed(secret *corev1.Secret) (bool, error) {
	if secret.Type != corev1.SecretTypeServiceAccountToken || secret.DeletionTimestamp != nil {
		return true, nil
	}
	account, err := c.accounts.ServiceAccounts(secret.Namespace).Get(secret.Annotations[corev1.ServiceAccountNameKey])
	if apierrors.IsNotFound(err) {
		return true, nil // the Secret's own controller deletes it
	}
	if err != nil {
		return true, err
	}
	if !madeFor(account, secret) {
		return true, nil
	}
	pods, err := c.pods.Pods(secret.Namespace).List(labels.Everything())
	return err != nil || slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return refers(p, secret.Name) }), err
}

// madeFor says that a Secret was made for the account without being asked for.
func madeFor(account *corev1.ServiceAccount, secret *corev1.Secret) bool {
	if uid := secret.Annotations[corev1.ServiceAccountUIDKey]; uid != "" && types.UID(uid) != account.UID {
		return false
	}
	return slices.ContainsFunc(account.Secrets, func(r corev1.ObjectReference) bool { return r.Name == secret.Name })
}

// tracked is the first whole day of which it is known which tokens were used.
func (c *Controller) tracked(ctx context.Context) (time.Time, error) {
	m, err := c.client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, tracking, metav1.GetOptions{})
	if err != nil {
		return time.Time{}, fmt.Errorf("since when the use of tokens is known: %w", err)
	}
	since, err := time.Parse(day, m.Data[trackedSince])
	if err != nil {
		return time.Time{}, fmt.Errorf("config map %s/%s: data.%s: expected a day like 2026-01-31, found %q",
			m.Namespace, tracking, trackedSince, m.Data[trackedSince])
	}
	return since.AddDate(0, 0, 1), nil
}

// verdict is what becomes of a Secret.
type verdict int

const (
	keep verdict = iota
	invalidate
	remove
)

// idle says that a token is old, and not known to have been used lately.
func idle(now time.Time, secret *corev1.Secret) bool {
	if !secret.CreationTimestamp.Time.Before(now.Add(-unused)) {
		return false
	}
	used, labelled := secret.Labels[lastUsed]
	if !labelled {
		return true
	}
	on, err := time.Parse(day, used)
	return err == nil && before(on, now) // what cannot be read may be any day
}

// before says that a day is longer ago than a token may be unused.
func before(on, now time.Time) bool { return on.Format(day) < now.Add(-unused).Format(day) }

// decide is pure: what becomes of a Secret that nobody needs, with uses known since a day.
func decide(now, since time.Time, secret *corev1.Secret) verdict {
	if now.Before(since.Add(unused)) || !idle(now, secret) {
		return keep
	}
	invalid, err := time.Parse(day, secret.Labels[invalidSince])
	switch {
	case err != nil:
		return invalidate
	case before(invalid, now):
		return remove
	default:
		return keep
	}
}

// invalidate refuses the token from now on, unless the Secret has changed, as by a use of the token.
func (c *Controller) invalidate(ctx context.Context, secret *corev1.Secret, today string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": secret.UID, "resourceVersion": secret.ResourceVersion, "labels": map[string]string{invalidSince: today},
	}})
	if err != nil {
		return err
	}
	changed, err := c.client.CoreV1().Secrets(secret.Namespace).Patch(ctx, secret.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // its next event is on the way
	}
	if err != nil {
		return fmt.Errorf("mark the token as invalid: %w", err)
	}
	controllers.Did(ctx, "marked as invalid, because its token was not used for a year", "Secret", changed)
	return nil
}

func (c *Controller) remove(ctx context.Context, secret *corev1.Secret) error {
	o := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &secret.UID, ResourceVersion: &secret.ResourceVersion}}
	err := c.client.CoreV1().Secrets(secret.Namespace).Delete(ctx, secret.Name, o)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("delete an unused token: %w", err)
	}
	controllers.Did(ctx, "deleted, because its token was invalid for a year", "Secret", nil)
	return nil
}
