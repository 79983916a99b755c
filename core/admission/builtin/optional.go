// SPDX-License-Identifier: Apache-2.0

package builtin

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/addresses"
	"github.com/wasmplane/wasmplane/core/admission/eventrate"
	"github.com/wasmplane/wasmplane/core/admission/imagereview"
	"github.com/wasmplane/wasmplane/core/admission/reading"
)

// Plugins that are off by default, as upstream.
const (
	autoProvisionName        = "NamespaceAutoProvision"
	namespaceExistsName      = "NamespaceExists"
	antiAffinityName         = "LimitPodHardAntiAffinityTopology"
	alwaysPullImagesName     = "AlwaysPullImages"
	podNodeSelectorName      = "PodNodeSelector"
	podTolerationsName       = "PodTolerationRestriction"
	extendedTolerationName   = "ExtendedResourceToleration"
	denyServiceExternalsName = "DenyServiceExternalIPs"
)

// offByDefault are the plugins that only On brings.
func offByDefault() []string {
	return []string{
		autoProvisionName, namespaceExistsName, antiAffinityName, alwaysPullImagesName, imagereview.Name, podNodeSelectorName,
		podTolerationsName, eventrate.Name, extendedTolerationName, denyServiceExternalsName, ownerReferencesName, addresses.Name,
	}
}

// needed are the plugins that Off does not take away, and what would break.
func needed() map[string]string {
	return map[string]string{
		"NamespaceLifecycle":            "objects could be made in namespaces that end, and those would never end",
		"NodeRestriction":               "a kubelet could write other nodes and their pods",
		"CertificateApproval":           "who may update a request could approve it",
		"CertificateSigning":            "who may update a request could put a certificate into it",
		"CertificateSubjectRestriction": "a certificate of system:masters could be asked for",
		"ClusterTrustBundleAttest":      "anybody could vouch for a signer's authorities",
	}
}

// namespaces reads a request's namespace.
type namespaces struct {
	client kubernetes.Interface
	lister listers.NamespaceLister
	warm   reading.Warm
}

func newNamespaces(d Deps) namespaces {
	ns := d.Informers.Core().V1().Namespaces()
	return namespaces{d.Client, ns.Lister(), reading.WarmOf(d.Warm, ns.Informer())}
}

// of waits for the informer, and asks the server for a namespace that was just made.
func (n namespaces) of(ctx context.Context, r *admission.Request) (*corev1.Namespace, error) {
	if err := n.warm.Wait(ctx, r); err != nil {
		return nil, err
	}
	ns, err := reading.Cached(
		func() (*corev1.Namespace, error) { return n.lister.Get(r.Namespace) },
		func() (*corev1.Namespace, error) {
			return n.client.CoreV1().Namespaces().Get(ctx, r.Namespace, metav1.GetOptions{})
		},
	)
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, apierrors.NewInternalError(err)
	}
	return ns, err
}

// inNamespace says whether the request is about an object in a namespace.
func inNamespace(r *admission.Request) bool { return r.Namespace != "" && !isNamespace(r) }

// autoProvision makes a namespace when something is created in it.
type autoProvision struct{ namespaces }

func (autoProvision) Name() string { return autoProvisionName }

func (autoProvision) Handles(r *admission.Request) bool {
	return r.Operation == admission.Create && inNamespace(r) && !r.DryRun
}

func (p autoProvision) Mutate(ctx context.Context, r *admission.Request) error {
	if err := p.warm.Wait(ctx, r); err != nil {
		return err
	}
	_, err := p.lister.Get(r.Namespace)
	if err == nil {
		return nil
	}
	if !apierrors.IsNotFound(err) {
		return admission.Forbidden(r, err)
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: r.Namespace}}
	if _, err := p.client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return admission.Forbidden(r, err)
	}
	return nil
}

// namespaceExists refuses every write in a namespace that does not exist, updates
// and deletes too.
type namespaceExists struct{ namespaces }

func (namespaceExists) Name() string { return namespaceExistsName }

func (namespaceExists) Handles(r *admission.Request) bool {
	return r.Operation != admission.Connect && inNamespace(r)
}

func (p namespaceExists) Validate(ctx context.Context, r *admission.Request) error {
	_, err := p.of(ctx, r)
	return err
}

// antiAffinity lets pods keep away from each other by node only: a wider topology
// would let one pod claim a whole zone.
type antiAffinity struct{}

func (antiAffinity) Name() string { return antiAffinityName }

func (antiAffinity) Handles(r *admission.Request) bool {
	return reading.On("", "pods", "", admission.Create, admission.Update).Handles(r)
}

func (antiAffinity) Validate(_ context.Context, r *admission.Request) error {
	pod, err := reading.Typed[*corev1.Pod](r.Object)
	if err != nil {
		return err
	}
	if pod.Spec.Affinity == nil || pod.Spec.Affinity.PodAntiAffinity == nil {
		return nil
	}
	for _, t := range pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
		if t.TopologyKey != corev1.LabelHostname {
			return admission.Forbidden(r, fmt.Errorf("affinity.PodAntiAffinity.RequiredDuringScheduling has TopologyKey %v but only key %v is allowed", t.TopologyKey, corev1.LabelHostname))
		}
	}
	return nil
}

// denyServiceExternals refuses new external IPs: whoever may write a Service
// could draw anybody's traffic to it (CVE-2020-8554).
type denyServiceExternals struct{}

func (denyServiceExternals) Name() string { return denyServiceExternalsName }

func (denyServiceExternals) Handles(r *admission.Request) bool {
	return reading.On("", "services", "", admission.Create, admission.Update).Handles(r)
}

func (denyServiceExternals) Validate(_ context.Context, r *admission.Request) error {
	svc, err := reading.Typed[*corev1.Service](r.Object)
	if err != nil {
		return err
	}
	var had []string
	if r.OldObject != nil {
		old, err := reading.Typed[*corev1.Service](r.OldObject)
		if err != nil {
			return err
		}
		had = old.Spec.ExternalIPs
	}
	for _, ip := range svc.Spec.ExternalIPs {
		if !slices.Contains(had, ip) {
			return admission.Forbidden(r, errors.New("Use of external IPs is denied by admission control")) //nolint:staticcheck // upstream's words
		}
	}
	return nil
}
