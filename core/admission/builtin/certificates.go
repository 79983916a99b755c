// SPDX-License-Identifier: Apache-2.0

package builtin

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/reading"
	"github.com/wasmplane/wasmplane/core/auth/authz"
)

// mayFor says whether u may do verb for a signer: by its name, or by its domain ("example.com/*").
func mayFor(ctx context.Context, a authz.Authorizer, u user.Info, verb, signer string) bool {
	domain, _, _ := strings.Cut(signer, "/")
	for _, name := range []string{signer, domain + "/*"} {
		d, _, err := a.Authorize(ctx, authorizer.AttributesRecord{
			User: u, Verb: verb, Name: name, APIGroup: "certificates.k8s.io", APIVersion: "*", Resource: "signers", ResourceRequest: true,
		})
		if err == nil && d == authz.Allow {
			return true
		}
	}
	return false
}

// certificateApproval: who approves requests must be allowed to for the signer.
type certificateApproval struct{ authz authz.Authorizer }

func (certificateApproval) Name() string { return "CertificateApproval" }

func (certificateApproval) Handles(r *admission.Request) bool {
	return reading.On("certificates.k8s.io", "certificatesigningrequests", "approval", admission.Update).Handles(r)
}

// Validate looks at the old object, in case the signer is being changed.
func (p certificateApproval) Validate(ctx context.Context, r *admission.Request) error {
	csr, err := reading.Typed[*certificatesv1.CertificateSigningRequest](r.OldObject)
	if err != nil {
		return admission.Forbidden(r, err)
	}
	if !mayFor(ctx, p.authz, r.User, "approve", csr.Spec.SignerName) {
		return admission.Forbidden(r, fmt.Errorf("user not permitted to approve requests with signerName %q", csr.Spec.SignerName))
	}
	return nil
}

// certificateSigning: who issues the certificate must be allowed to for the signer.
type certificateSigning struct{ authz authz.Authorizer }

func (certificateSigning) Name() string { return "CertificateSigning" }

func (certificateSigning) Handles(r *admission.Request) bool {
	return reading.On("certificates.k8s.io", "certificatesigningrequests", "status", admission.Update).Handles(r)
}

func (p certificateSigning) Validate(ctx context.Context, r *admission.Request) error {
	old, csr, err := reading.Both[*certificatesv1.CertificateSigningRequest](r)
	if err != nil {
		return admission.Forbidden(r, err)
	}
	if bytes.Equal(old.Status.Certificate, csr.Status.Certificate) && equality.Semantic.DeepEqual(old.Status.Conditions,
		csr.Status.Conditions) {
		return nil
	}
	if !mayFor(ctx, p.authz, r.User, "sign", old.Spec.SignerName) {
		return admission.Forbidden(r, fmt.Errorf("user not permitted to sign requests with signerName %q", old.Spec.SignerName))
	}
	return nil
}

// certificateSubjectRestriction: nobody gets into the break-glass group by a request.
type certificateSubjectRestriction struct{}

func (certificateSubjectRestriction) Name() string { return "CertificateSubjectRestriction" }

func (certificateSubjectRestriction) Handles(r *admission.Request) bool {
	return reading.On("certificates.k8s.io", "certificatesigningrequests", "", admission.Create).Handles(r)
}

func (certificateSubjectRestriction) Validate(_ context.Context, r *admission.Request) error {
	csr, err := reading.Typed[*certificatesv1.CertificateSigningRequest](r.Object)
	if err != nil {
		return admission.Forbidden(r, err)
	}
	if csr.Spec.SignerName != certificatesv1.KubeAPIServerClientSignerName {
		return nil
	}
	parsed, err := reading.CSR(csr.Spec.Request)
	if err != nil {
		return admission.Forbidden(r, fmt.Errorf("failed to parse CSR: %w", err))
	}
	if slices.Contains(parsed.Subject.Organization, user.SystemPrivilegedGroup) {
		return admission.Forbidden(r, fmt.Errorf("use of %s signer with system:masters group is not allowed",
			certificatesv1.KubeAPIServerClientSignerName))
	}
	return nil
}
