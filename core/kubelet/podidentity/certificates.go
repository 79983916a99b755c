// SPDX-License-Identifier: Apache-2.0

package podidentity

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/wasmplane/wasmplane/core/run"
)

const (
	// issueWithin is how long a mount waits for a signer, before it is tried again.
	issueWithin = 20 * time.Second
	// askAgain is when a refreshed certificate that is not there yet is asked for.
	askAgain = 10 * time.Second
)

// Certificates has keys made and certificates issued for pods: by a
// PodCertificateRequest that a signer of the cluster answers. Keys never leave
// the node, and live in memory and in the pods' volumes only.
type Certificates struct {
	client kubernetes.Interface

	mu   sync.Mutex
	held map[Source]*issued
}

// Source names a source of a projected volume of a pod.
type Source struct {
	Pod    types.UID
	Volume string
	Index  int // in the volume's sources
}

// issued is one source's state. Its fields belong to whoever mounts the
// pod's volumes, which is one at a time.
type issued struct {
	key, chain []byte // nil = nothing was issued yet
	refresh    time.Time
	expires    time.Time

	pending    string // name of the request that waits for an answer
	pendingKey []byte
	refused    error // the signer said no, for good
}

// NewCertificates makes Certificates that asks by client.
func NewCertificates(client kubernetes.Interface) *Certificates {
	return &Certificates{client: client, held: map[Source]*issued{}}
}

func (c *Certificates) entry(of Source) *issued {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.held[of]
	if p == nil {
		p = &issued{}
		c.held[of] = p
	}
	return p
}

// Get answers the key and the certificates of a source. The first time it waits
// for the signer; when it is time to refresh, what there is is good until the new one is.
func (c *Certificates) Get(ctx context.Context, pod *corev1.Pod, of Source,
	src *corev1.PodCertificateProjection,
) (key, chain []byte, err error) {
	p := c.entry(of)
	now := time.Now()
	if p.refused != nil {
		return nil, nil, p.refused
	}
	if p.chain != nil && now.Before(p.refresh) {
		return p.key, p.chain, nil
	}
	if p.pending == "" {
		if err = c.request(ctx, pod, src, p); err != nil {
			err = fmt.Errorf("while creating PodCertificateRequest: %w", err)
		}
	}
	if err == nil {
		err = c.await(ctx, pod.Namespace, p)
	}
	if err != nil && (p.chain == nil || !now.Before(p.expires) || p.refused != nil) {
		return nil, nil, err
	}
	return p.key, p.chain, nil
}

// request makes a key and asks for its certificate.
func (c *Certificates) request(ctx context.Context, pod *corev1.Pod, src *corev1.PodCertificateProjection, p *issued) error {
	account, err := c.client.CoreV1().ServiceAccounts(pod.Namespace).Get(ctx, pod.Spec.ServiceAccountName, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("while fetching service account: %w", err)
	}
	node, err := c.client.CoreV1().Nodes().Get(ctx, pod.Spec.NodeName, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("while fetching node: %w", err)
	}
	key, proof, err := newKey(src.KeyType)
	if err != nil {
		return err
	}
	made, err := c.client.CertificatesV1().PodCertificateRequests(pod.Namespace).Create(ctx, &certificatesv1.PodCertificateRequest{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName:    "req-",
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}},
		},
		Spec: certificatesv1.PodCertificateRequestSpec{
			SignerName: src.SignerName, PodName: pod.Name, PodUID: pod.UID,
			ServiceAccountName: pod.Spec.ServiceAccountName, ServiceAccountUID: account.UID,
			NodeName: types.NodeName(pod.Spec.NodeName), NodeUID: node.UID,
			MaxExpirationSeconds: src.MaxExpirationSeconds, StubPKCS10Request: proof, UnverifiedUserAnnotations: src.UserAnnotations,
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	p.pending, p.pendingKey = made.Name, key
	return nil
}

// await waits a while for the signer's answer.
func (c *Certificates) await(ctx context.Context, namespace string, p *issued) error {
	ctx, cancel := context.WithTimeout(ctx, issueWithin)
	defer cancel()
	look := run.Backoff{First: 100 * time.Millisecond, Longest: 2 * time.Second}
	for {
		r, err := c.client.CertificatesV1().PodCertificateRequests(namespace).Get(ctx, p.pending, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			name := p.pending
			p.pending, p.pendingKey = "", nil // somebody deleted it; the next try asks anew
			return fmt.Errorf("PodCertificateRequest %s/%s appears to have been deleted", namespace, name)
		}
		if err == nil && p.answered(r) {
			return p.refused
		}
		if !look.Wait(ctx) {
			return fmt.Errorf("PodCertificateRequest %s/%s is not issued yet", namespace, p.pending)
		}
	}
}

// answered takes the signer's answer, if there is one.
func (p *issued) answered(r *certificatesv1.PodCertificateRequest) bool {
	for _, cond := range r.Status.Conditions {
		switch cond.Type {
		case certificatesv1.PodCertificateRequestConditionTypeDenied:
			p.refused = fmt.Errorf("PodCertificateRequest was permanently denied: reason=%q message=%q", cond.Reason, cond.Message)
			return true
		case certificatesv1.PodCertificateRequestConditionTypeFailed:
			p.refused = fmt.Errorf("PodCertificateRequest was permanently failed: reason=%q message=%q", cond.Reason, cond.Message)
			return true
		case certificatesv1.PodCertificateRequestConditionTypeIssued:
			p.key, p.chain = p.pendingKey, certificatesOnly([]byte(r.Status.CertificateChain))
			if r.Status.BeginRefreshAt != nil {
				p.refresh = r.Status.BeginRefreshAt.Time
			}
			if r.Status.NotAfter != nil {
				p.expires = r.Status.NotAfter.Time
			}
			p.pending, p.pendingKey = "", nil
			return true
		}
	}
	return false
}

// certificatesOnly drops what a signer put around the certificates.
func certificatesOnly(in []byte) []byte {
	out := []byte{}
	for {
		var b *pem.Block
		if b, in = pem.Decode(in); b == nil {
			return out
		}
		if b.Type == "CERTIFICATE" {
			out = append(out, pem.EncodeToMemory(&pem.Block{Type: b.Type, Bytes: b.Bytes})...)
		}
	}
}

// RefreshAt is when a source's certificate should be replaced.
func (c *Certificates) RefreshAt(of Source) time.Time {
	p := c.entry(of)
	if p.chain == nil || p.refused != nil {
		return time.Time{}
	}
	if again := time.Now().Add(askAgain); p.refresh.Before(again) {
		return again // what was asked for is not issued yet
	}
	return p.refresh
}

// Forget drops the keys and certificates of a pod.
func (c *Certificates) Forget(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k := range c.held {
		if k.Pod == uid {
			delete(c.held, k)
		}
	}
}

// newKey makes a private key, as PEM, and the request by which its owner proves
// to have it.
func newKey(keyType string) (keyPEM, proof []byte, err error) {
	var key crypto.Signer
	switch keyType {
	case "RSA3072":
		key, err = rsa.GenerateKey(rand.Reader, 3072)
	case "RSA4096":
		key, err = rsa.GenerateKey(rand.Reader, 4096)
	case "ECDSAP256":
		key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case "ECDSAP384":
		key, err = ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	case "ECDSAP521":
		key, err = ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	case "ED25519":
		_, key, err = ed25519.GenerateKey(rand.Reader)
	default:
		return nil, nil, fmt.Errorf("unknown key type %q", keyType)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("generate a key of type %s: %w", keyType, err)
	}
	if proof, err = x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key); err != nil {
		return nil, nil, fmt.Errorf("prove the possession of a key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("encode a key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), proof, nil
}
