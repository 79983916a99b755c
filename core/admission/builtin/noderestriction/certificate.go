// SPDX-License-Identifier: Apache-2.0

package noderestriction

import (
	"context"
	"fmt"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/reading"
)

// podCertificate: a node asks for certificates of pods that run on it, as the
// service accounts that they have, of signers that their volumes name.
func (p *Plugin) podCertificate(ctx context.Context, node string, r *admission.Request) error {
	if r.Operation != admission.Create {
		return fmt.Errorf("unexpected operation %v", r.Operation)
	}
	if r.Subresource != "" {
		return fmt.Errorf("unexpected subresource %v", r.Subresource)
	}
	request, err := reading.Typed[*certificatesv1.PodCertificateRequest](r.Object)
	if err != nil {
		return err
	}
	spec := &request.Spec
	if string(spec.NodeName) != node {
		return fmt.Errorf("PodCertificateRequest.Spec.NodeName=%q, which is not the requesting node %q", spec.NodeName, node)
	}
	about := r.Namespace + "/" + spec.PodName
	has, err := p.nodes.Get(node)
	if err != nil {
		return fmt.Errorf("while retrieving node %q named in the PodCertificateRequest: %w", spec.NodeName, err)
	}
	if has.UID != spec.NodeUID {
		return fmt.Errorf("PodCertificateRequest for pod %q names node UID %q, inconsistent with the running node (%q)", about, spec.NodeUID, has.UID)
	}
	pod, err := p.getPod(ctx, r.Namespace, spec.PodName)
	if err == nil && pod.UID != spec.PodUID {
		// The informer may still show a pod of the same name that is gone.
		pod, err = p.client.CoreV1().Pods(r.Namespace).Get(ctx, spec.PodName, metav1.GetOptions{})
	}
	if err != nil {
		return fmt.Errorf("while retrieving pod %q named in the PodCertificateRequest: %w", about, err)
	}
	_, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]
	switch {
	case pod.UID != spec.PodUID:
		return fmt.Errorf("PodCertificateRequest for pod %q contains pod UID (%q) which differs from running pod %q", about, spec.PodUID, pod.UID)
	case pod.Spec.NodeName != node:
		return fmt.Errorf("pod %q is not running on node %q named in the PodCertificateRequest", about, spec.NodeName)
	case mirror:
		return fmt.Errorf("pod %q is a mirror pod", about)
	case spec.ServiceAccountName != pod.Spec.ServiceAccountName:
		return fmt.Errorf("PodCertificateRequest for pod %q contains serviceAccountName (%q) that differs from running pod (%q)", about, spec.ServiceAccountName, pod.Spec.ServiceAccountName)
	}
	account, err := p.client.CoreV1().ServiceAccounts(r.Namespace).Get(ctx, spec.ServiceAccountName, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("while retrieving service account %q named in the PodCertificateRequest: %w", r.Namespace+"/"+spec.ServiceAccountName,
			err)
	}
	if account.UID != spec.ServiceAccountUID {
		return fmt.Errorf("PodCertificateRequest for pod %q names service account UID %q, which differs from the running service account (%q)", about, spec.ServiceAccountUID, account.UID)
	}
	return p.signer(ctx, r, request, pod)
}

// signer: the pod has a volume for it, or somebody allowed the node to ask.
func (p *Plugin) signer(ctx context.Context, r *admission.Request, request *certificatesv1.PodCertificateRequest, pod *corev1.Pod) error {
	for _, v := range pod.Spec.Volumes {
		if v.Projected == nil {
			continue
		}
		for _, src := range v.Projected.Sources {
			if src.PodCertificate != nil && src.PodCertificate.SignerName == request.Spec.SignerName {
				return nil
			}
		}
	}
	decision, _, err := p.authz.Authorize(ctx, authorizer.AttributesRecord{
		User: r.User, Verb: "request-serviceaccounts-podcertificate-signer", Namespace: r.Namespace,
		// RBAC cannot say names with slashes.
		APIGroup: "certificates.k8s.io", APIVersion: "v1", Resource: strings.ReplaceAll(request.Spec.SignerName, "/", ":"),
		Name: request.Spec.ServiceAccountName, ResourceRequest: true,
	})
	if decision == authorizer.DecisionAllow {
		return nil
	}
	if err != nil {
		return fmt.Errorf("error authorizing %s to request podcertificaterequests for signer %q: %w", r.User.GetName(), request.Spec.SignerName,
			err)
	}
	return fmt.Errorf("pod %q does not mount a podCertificate projected volume for signer %q", r.Namespace+"/"+request.Spec.PodName,
		request.Spec.SignerName)
}
