// SPDX-License-Identifier: Apache-2.0

// Package signing signs approved certificate requests of the signers that belong
// to Kubernetes itself: kubernetes.io/kube-apiserver-client,
// kube-apiserver-client-kubelet, kubelet-serving and legacy-unknown.
//
// It signs what was approved and nothing else, with the key usages that were
// asked for and never as an authority; a request that is not one of its signer's
// is marked as failed, in upstream's words.
package signing

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	certificateslisters "k8s.io/client-go/listers/certificates/v1"

	"github.com/wasmplane/wasmplane/core/controllers"
)

// Lives of certificates, as upstream has them.
const (
	life     = 365 * 24 * time.Hour
	shortest = 10 * time.Minute
	backdate = 5 * time.Minute
	// Lives shorter than this are not shortened by the backdating.
	short = 8 * time.Hour
)

// Authority is the certificate and key that sign, and what follows each certificate (PEM; empty
// where the authority is a root). It is a function because the certificate is renewed while the
// controller runs.
type Authority func() (cert *x509.Certificate, chain []byte, key crypto.Signer)

// Controller signs requests.
type Controller struct {
	client    kubernetes.Interface
	requests  certificateslisters.CertificateSigningRequestLister
	authority Authority
	loop      *controllers.Loop[string]
}

// New makes the controller.
func New(env controllers.Env, workers int, authority Authority) (*Controller, error) {
	if authority == nil {
		return nil, errors.New("certificatesigningrequest-signing-controller: no authority was given")
	}
	requests := env.Informers.Certificates().V1().CertificateSigningRequests()
	c := &Controller{client: env.Client, requests: requests.Lister(), authority: authority}
	c.loop = controllers.NewLoop(env, "certificatesigningrequest-signing-controller", workers, c.reconcile)
	c.loop.Watch(requests.Informer(), controllers.Changes(func(_, current metav1.Object) {
		if r, ok := current.(*certificatesv1.CertificateSigningRequest); ok && waits(r) {
			c.loop.Add(r.Name)
		}
	}))
	return c, nil
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

// waits: approved, for one of our signers, and neither signed nor failed.
func waits(r *certificatesv1.CertificateSigningRequest) bool {
	return len(r.Status.Certificate) == 0 && has(r, certificatesv1.CertificateApproved) && !has(r, certificatesv1.CertificateDenied) &&
		!has(r, certificatesv1.CertificateFailed) && checks[r.Spec.SignerName] != nil
}

func has(r *certificatesv1.CertificateSigningRequest, kind certificatesv1.RequestConditionType) bool {
	return slices.ContainsFunc(r.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool {
		return c.Type == kind && c.Status != corev1.ConditionFalse
	})
}

func (c *Controller) reconcile(ctx context.Context, name string) error {
	r, err := c.requests.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil || !waits(r) {
		return err
	}
	controllers.About(ctx, "CertificateSigningRequest", r)
	asked, err := parse(r.Spec.Request)
	if err != nil {
		return fmt.Errorf("unable to parse csr %q: %w", r.Name, err)
	}
	answer := r.DeepCopy()
	did := "signed"
	if wrong := checks[r.Spec.SignerName](asked, r.Spec.Usages); wrong != nil {
		did = "refused: " + wrong.Error()
		answer.Status.Conditions = append(answer.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
			Type: certificatesv1.CertificateFailed, Status: corev1.ConditionTrue, Reason: "SignerValidationFailure",
			Message: wrong.Error(), LastUpdateTime: metav1.Now(),
		})
	} else if answer.Status.Certificate, err = c.sign(asked, r, time.Now()); err != nil {
		return fmt.Errorf("error auto signing csr: %w", err)
	}
	if _, err := c.client.CertificatesV1().CertificateSigningRequests().UpdateStatus(ctx, answer, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("error updating signature for csr: %w", err)
	}
	controllers.Did(ctx, did, "CertificateSigningRequest", nil)
	return nil
}

func parse(text []byte) (*x509.CertificateRequest, error) {
	block, _ := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, errors.New("PEM block type must be CERTIFICATE REQUEST")
	}
	asked, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, err
	}
	return asked, asked.CheckSignature()
}

func (c *Controller) sign(asked *x509.CertificateRequest, r *certificatesv1.CertificateSigningRequest, now time.Time) ([]byte, error) {
	begins := now.Add(-backdate)
	if r.Spec.SignerName == certificatesv1.KubeAPIServerClientKubeletSignerName && r.Spec.Username != asked.Subject.CommonName {
		// A machine that joins: its certificate begins now, so that those from before the
		// removal of an earlier node of this name can be told from it.
		begins = now
	}
	parent, chain, key := c.authority()
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 128))
	if err != nil {
		return nil, fmt.Errorf("unable to generate a serial number for %s: %w", asked.Subject.CommonName, err)
	}
	t := &x509.Certificate{
		SerialNumber: serial, Subject: asked.Subject,
		DNSNames: asked.DNSNames, IPAddresses: asked.IPAddresses, EmailAddresses: asked.EmailAddresses, URIs: asked.URIs,
		BasicConstraintsValid: true, NotBefore: begins, NotAfter: until(r.Spec.ExpirationSeconds, now),
	}
	if t.KeyUsage, t.ExtKeyUsage, err = keyUsages(r.Spec.Usages); err != nil {
		return nil, err
	}
	if !now.Before(parent.NotAfter) {
		return nil, fmt.Errorf("the signer has expired: NotAfter=%v", parent.NotAfter)
	}
	if t.NotAfter.After(parent.NotAfter) {
		t.NotAfter = parent.NotAfter
	}
	der, err := x509.CreateCertificate(rand.Reader, t, parent, asked.PublicKey, key)
	if err != nil {
		return nil, err
	}
	return append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), chain...), nil
}

// until is the end of the life that was asked for, within bounds.
func until(seconds *int32, now time.Time) time.Time {
	wanted := life
	if seconds != nil {
		wanted = min(max(time.Duration(*seconds)*time.Second, shortest), life)
	}
	if wanted < short {
		return now.Add(wanted)
	}
	return now.Add(wanted - backdate)
}

// checks say what each signer takes.
var checks = map[string]func(*x509.CertificateRequest, []certificatesv1.KeyUsage) error{
	certificatesv1.KubeAPIServerClientSignerName:        client,
	certificatesv1.KubeAPIServerClientKubeletSignerName: kubeletClient,
	certificatesv1.KubeletServingSignerName:             kubeletServing,
	certificatesv1beta1.LegacyUnknownSignerName:         func(*x509.CertificateRequest, []certificatesv1.KeyUsage) error { return nil },
}

func client(_ *x509.CertificateRequest, usages []certificatesv1.KeyUsage) error {
	found := false
	for _, u := range usages {
		switch u {
		case certificatesv1.UsageDigitalSignature, certificatesv1.UsageKeyEncipherment:
		case certificatesv1.UsageClientAuth:
			found = true
		default:
			return fmt.Errorf("invalid usage for client certificate: %s", u)
		}
	}
	if !found {
		return fmt.Errorf("missing required usage for client certificate: %s", certificatesv1.UsageClientAuth)
	}
	return nil
}

func kubeletClient(r *x509.CertificateRequest, usages []certificatesv1.KeyUsage) error {
	switch {
	case !slices.Equal(r.Subject.Organization, []string{"system:nodes"}):
		return errors.New("subject organization is not system:nodes")
	case len(r.DNSNames) > 0:
		return errors.New("DNS subjectAltNames are not allowed")
	case len(r.EmailAddresses) > 0:
		return errors.New("Email subjectAltNames are not allowed") //nolint:staticcheck // upstream's words
	case len(r.IPAddresses) > 0:
		return errors.New("IP subjectAltNames are not allowed")
	case len(r.URIs) > 0:
		return errors.New("URI subjectAltNames are not allowed")
	case !strings.HasPrefix(r.Subject.CommonName, "system:node:"):
		return errors.New("subject common name does not begin with system:node:") //nolint:staticcheck,revive // upstream's words
	}
	return exactly(usages, certificatesv1.UsageClientAuth)
}

func kubeletServing(r *x509.CertificateRequest, usages []certificatesv1.KeyUsage) error {
	switch {
	case !slices.Equal(r.Subject.Organization, []string{"system:nodes"}):
		return errors.New("subject organization is not system:nodes")
	case len(r.DNSNames)+len(r.IPAddresses) == 0:
		return errors.New("DNS or IP subjectAltName is required")
	case len(r.EmailAddresses) > 0:
		return errors.New("Email subjectAltNames are not allowed") //nolint:staticcheck // upstream's words
	case len(r.URIs) > 0:
		return errors.New("URI subjectAltNames are not allowed")
	}
	if err := exactly(usages, certificatesv1.UsageServerAuth); err != nil {
		return err
	}
	if !strings.HasPrefix(r.Subject.CommonName, "system:node:") {
		return errors.New("subject common name does not begin with system:node:") //nolint:staticcheck,revive // upstream's words
	}
	return nil
}

// exactly: the purpose with digital signature and, which RSA keys need, key encipherment.
func exactly(usages []certificatesv1.KeyUsage, purpose certificatesv1.KeyUsage) error {
	want := []string{string(certificatesv1.UsageDigitalSignature), string(certificatesv1.UsageKeyEncipherment), string(purpose)}
	slices.Sort(want)
	var have []string
	for _, u := range usages {
		if u != certificatesv1.UsageKeyEncipherment {
			have = append(have, string(u))
		}
	}
	slices.Sort(have)
	without := slices.DeleteFunc(slices.Clone(want), func(u string) bool { return u == string(certificatesv1.UsageKeyEncipherment) })
	if !slices.Equal(slices.Compact(have), without) {
		return fmt.Errorf("usages did not match %v", want)
	}
	return nil
}

func keyUsages(usages []certificatesv1.KeyUsage) (x509.KeyUsage, []x509.ExtKeyUsage, error) {
	var key x509.KeyUsage
	var extended []x509.ExtKeyUsage
	for _, u := range usages {
		k, isKey := plainUsages[u]
		e, isExtended := extendedUsages[u]
		switch {
		case isKey:
			key |= k
		case isExtended:
			if !slices.Contains(extended, e) {
				extended = append(extended, e)
			}
		default:
			return 0, nil, fmt.Errorf("unrecognized usage %q", u)
		}
	}
	slices.Sort(extended)
	return key, extended, nil
}

var plainUsages = map[certificatesv1.KeyUsage]x509.KeyUsage{
	certificatesv1.UsageSigning:           x509.KeyUsageDigitalSignature,
	certificatesv1.UsageDigitalSignature:  x509.KeyUsageDigitalSignature,
	certificatesv1.UsageContentCommitment: x509.KeyUsageContentCommitment,
	certificatesv1.UsageKeyEncipherment:   x509.KeyUsageKeyEncipherment,
	certificatesv1.UsageKeyAgreement:      x509.KeyUsageKeyAgreement,
	certificatesv1.UsageDataEncipherment:  x509.KeyUsageDataEncipherment,
	certificatesv1.UsageCertSign:          x509.KeyUsageCertSign,
	certificatesv1.UsageCRLSign:           x509.KeyUsageCRLSign,
	certificatesv1.UsageEncipherOnly:      x509.KeyUsageEncipherOnly,
	certificatesv1.UsageDecipherOnly:      x509.KeyUsageDecipherOnly,
}

var extendedUsages = map[certificatesv1.KeyUsage]x509.ExtKeyUsage{
	certificatesv1.UsageAny:             x509.ExtKeyUsageAny,
	certificatesv1.UsageServerAuth:      x509.ExtKeyUsageServerAuth,
	certificatesv1.UsageClientAuth:      x509.ExtKeyUsageClientAuth,
	certificatesv1.UsageCodeSigning:     x509.ExtKeyUsageCodeSigning,
	certificatesv1.UsageEmailProtection: x509.ExtKeyUsageEmailProtection,
	certificatesv1.UsageSMIME:           x509.ExtKeyUsageEmailProtection,
	certificatesv1.UsageIPsecEndSystem:  x509.ExtKeyUsageIPSECEndSystem,
	certificatesv1.UsageIPsecTunnel:     x509.ExtKeyUsageIPSECTunnel,
	certificatesv1.UsageIPsecUser:       x509.ExtKeyUsageIPSECUser,
	certificatesv1.UsageTimestamping:    x509.ExtKeyUsageTimeStamping,
	certificatesv1.UsageOCSPSigning:     x509.ExtKeyUsageOCSPSigning,
	certificatesv1.UsageMicrosoftSGC:    x509.ExtKeyUsageMicrosoftServerGatedCrypto,
	certificatesv1.UsageNetscapeSGC:     x509.ExtKeyUsageNetscapeServerGatedCrypto,
}
