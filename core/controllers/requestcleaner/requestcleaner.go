// SPDX-License-Identifier: Apache-2.0

// Package requestcleaner deletes requests for certificates that nobody waits for any
// more: each renewal of a node's certificate leaves one behind.
//
// A CertificateSigningRequest goes an hour after it was answered, a day after it was made
// or approved where no answer came, and when its certificate has ended. A
// PodCertificateRequest goes a quarter of an hour after it was made. These are upstream's
// times; upstream looks every hour, and here each request goes when its time has come.
package requestcleaner

import (
	"context"
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/cert"

	"github.com/wasmplane/wasmplane/core/controllers"
)

const (
	answered   = time.Hour        // since an answer
	unanswered = 24 * time.Hour   // without one
	ofPod      = 15 * time.Minute // since a pod's request was made
)

// Controller deletes requests of one kind.
type Controller struct {
	kind   string
	get    func(controllers.Key) (metav1.Object, error)
	expiry func(metav1.Object) time.Time
	remove func(context.Context, controllers.Key, metav1.DeleteOptions) error
	loop   *controllers.Loop[controllers.Key]
}

// New makes the controller of CertificateSigningRequests.
func New(env controllers.Env, workers int) *Controller {
	requests := env.Informers.Certificates().V1().CertificateSigningRequests()
	return build(env, workers, "certificatesigningrequest-cleaner-controller", requests.Informer(), &Controller{
		kind: "CertificateSigningRequest",
		get:  func(key controllers.Key) (metav1.Object, error) { return requests.Lister().Get(key.Name) },
		expiry: func(o metav1.Object) time.Time {
			return expiry(o.(*certificatesv1.CertificateSigningRequest))
		},
		remove: func(ctx context.Context, key controllers.Key, o metav1.DeleteOptions) error {
			return env.Client.CertificatesV1().CertificateSigningRequests().Delete(ctx, key.Name, o)
		},
	})
}

// NewPods makes the controller of PodCertificateRequests.
func NewPods(env controllers.Env, workers int) *Controller {
	requests := env.Informers.Certificates().V1().PodCertificateRequests()
	return build(env, workers, "podcertificaterequest-cleaner-controller", requests.Informer(), &Controller{
		kind: "PodCertificateRequest",
		get: func(key controllers.Key) (metav1.Object, error) {
			return requests.Lister().PodCertificateRequests(key.Namespace).Get(key.Name)
		},
		expiry: func(o metav1.Object) time.Time { return o.GetCreationTimestamp().Add(ofPod) },
		remove: func(ctx context.Context, key controllers.Key, o metav1.DeleteOptions) error {
			return env.Client.CertificatesV1().PodCertificateRequests(key.Namespace).Delete(ctx, key.Name, o)
		},
	})
}

func build(env controllers.Env, workers int, name string, informer cache.SharedIndexInformer, c *Controller) *Controller {
	c.loop = controllers.NewLoop(env, name, workers, c.reconcile)
	c.loop.Watch(informer, controllers.Changes(func(_, current metav1.Object) {
		if current != nil {
			c.loop.Add(cache.MetaObjectToName(current))
		}
	}))
	return c
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

func (c *Controller) reconcile(ctx context.Context, key controllers.Key) error {
	o, err := c.get(key)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	at := c.expiry(o)
	if at.IsZero() {
		return nil
	}
	if left := time.Until(at); left > 0 {
		c.loop.AddAfter(key, left)
		return nil
	}
	controllers.About(ctx, c.kind, o)
	err = c.remove(ctx, key, controllers.DeleteExactly(o))
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // another request has the name now
	}
	if err != nil {
		return fmt.Errorf("delete a request that nobody waits for: %w", err)
	}
	controllers.Did(ctx, "deleted, because nobody waits for it any more", c.kind, nil)
	return nil
}

// expiry is when a request is to be deleted; zero where its next change decides.
func expiry(r *certificatesv1.CertificateSigningRequest) (at time.Time) {
	if len(r.Status.Conditions) == 0 {
		return r.CreationTimestamp.Add(unanswered)
	}
	earliest := func(t metav1.Time, after time.Duration) {
		if end := t.Add(after); !t.IsZero() && (at.IsZero() || end.Before(at)) {
			at = end
		}
	}
	issued := len(r.Status.Certificate) > 0
	for _, c := range r.Status.Conditions {
		switch {
		case c.Type == certificatesv1.CertificateDenied, c.Type == certificatesv1.CertificateFailed:
			earliest(c.LastUpdateTime, answered)
		case c.Type == certificatesv1.CertificateApproved && issued:
			earliest(c.LastUpdateTime, answered)
			if chain, err := cert.ParseCertsPEM(r.Status.Certificate); err == nil {
				earliest(metav1.NewTime(chain[0].NotAfter), 0)
			}
		case c.Type == certificatesv1.CertificateApproved:
			earliest(c.LastUpdateTime, unanswered)
		}
	}
	return at
}
