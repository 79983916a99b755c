// SPDX-License-Identifier: Apache-2.0

// Package trustbundle publishes the authorities of the API servers' certificates as a
// ClusterTrustBundle of the signer kubernetes.io/kube-apiserver-serving, which pods mount by a projected
// volume, for every namespace at once.
//
// There is one bundle, named after its content as upstream names it. When the authorities
// change, the new bundle is there before the old one goes: a pod that selects by signer always finds one. All
// other bundles of the signer are deleted, whoever made them.
package trustbundle

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	informers "k8s.io/client-go/informers/certificates/v1"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/certificates/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/wasmplane/wasmplane/core/controllers"
)

// Signer of the bundle.
const Signer = "kubernetes.io/kube-apiserver-serving"

// Name of the controller, as upstream's --controllers knows it.
const Name = "kube-apiserver-serving-clustertrustbundle-publisher-controller"

// everything is the only key: one bundle is right, the others are not.
const everything = "the bundle of " + Signer

// Controller keeps the bundle.
type Controller struct {
	client  kubernetes.Interface
	rootCA  func() []byte
	bundles listers.ClusterTrustBundleLister
	loop    *controllers.Loop[string]
}

// New makes the controller; rootCA is PEM, and may be another one each time.
func New(env controllers.Env, rootCA func() []byte) (*Controller, error) {
	if rootCA == nil {
		return nil, errors.New(Name + ": no root CA certificate was given")
	}
	// The controller's own account may list bundles; it reads as itself.
	informer := informers.NewFilteredClusterTrustBundleInformer(env.Client, 0, cache.Indexers{}, func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("spec.signerName", Signer).String()
	})
	c := &Controller{client: env.Client, rootCA: rootCA, bundles: listers.NewClusterTrustBundleLister(informer.GetIndexer())}
	c.loop = controllers.NewLoop(env, Name, 1, c.reconcile)
	c.loop.Own(informer)
	c.loop.Watch(informer, controllers.EachObject(func(metav1.Object) { c.loop.Add(everything) }))
	c.loop.Beside(controllers.OnChange(rootCA, func() { c.loop.Add(everything) }))
	return c, nil
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	c.loop.Add(everything)
	return c.loop.Run(ctx)
}

func (c *Controller) reconcile(ctx context.Context, _ string) error {
	there, err := c.bundles.List(labels.Everything())
	if err != nil {
		return err
	}
	p := decide(certificates(c.rootCA()), there)
	api := c.client.CertificatesV1().ClusterTrustBundles()
	if p.create != nil {
		made, err := api.Create(ctx, p.create, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) { // one that exists is seen soon
			return fmt.Errorf("publish the API servers' authorities: %w", err)
		}
		if err == nil {
			controllers.Did(ctx, "created", "ClusterTrustBundle", made)
		}
	}
	if p.update != nil {
		changed, err := api.Update(ctx, p.update, metav1.UpdateOptions{})
		if err != nil {
			return fmt.Errorf("restore cluster trust bundle %s: %w", p.update.Name, err)
		}
		controllers.Did(ctx, "restored", "ClusterTrustBundle", changed)
	}
	var errs []error
	for _, b := range p.remove {
		err := api.Delete(ctx, b.Name, controllers.DeleteExactly(b))
		switch {
		case err == nil:
			controllers.Did(ctx, "deleted", "ClusterTrustBundle", b)
		case !apierrors.IsNotFound(err) && !apierrors.IsConflict(err):
			errs = append(errs, fmt.Errorf("delete cluster trust bundle %s: %w", b.Name, err))
		}
	}
	return errors.Join(errs...)
}

// plan is what should be done about the signer's bundles, in this order.
type plan struct {
	create, update *certificatesv1.ClusterTrustBundle
	remove         []*certificatesv1.ClusterTrustBundle
}

// decide compares the signer's bundles with the one that should be there. It is pure.
func decide(authorities string, there []*certificatesv1.ClusterTrustBundle) plan {
	if authorities == "" {
		return plan{} // nothing is known: what is there stays
	}
	want := &certificatesv1.ClusterTrustBundle{
		ObjectMeta: metav1.ObjectMeta{Name: nameOf(authorities)},
		Spec:       certificatesv1.ClusterTrustBundleSpec{SignerName: Signer, TrustBundle: authorities},
	}
	p := plan{create: want}
	for _, b := range there {
		switch {
		case b.Spec.SignerName != Signer:
		case b.Name != want.Name:
			if b.DeletionTimestamp == nil {
				p.remove = append(p.remove, b)
			}
		default:
			p.create = nil
			if b.Spec.TrustBundle != authorities {
				p.update = b.DeepCopy()
				p.update.Spec.TrustBundle = authorities
			}
		}
	}
	return p
}

// nameOf is upstream's name of a bundle: by it, clusters that come from there keep theirs.
func nameOf(authorities string) string {
	sum := sha256.Sum256([]byte(authorities))
	return fmt.Sprintf("%s:%x", strings.ReplaceAll(Signer, "/", ":"), sum[:12])
}

// certificates are the certificates of a PEM file, each once, without what stands between them: the API takes no other bundle.
func certificates(file []byte) string {
	var out bytes.Buffer
	seen := map[string]bool{}
	for {
		block, rest := pem.Decode(file)
		if block == nil {
			return out.String()
		}
		if file = rest; block.Type == "CERTIFICATE" && !seen[string(block.Bytes)] {
			seen[string(block.Bytes)] = true
			out.Write(pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: block.Bytes}))
		}
	}
}
