// SPDX-License-Identifier: Apache-2.0

package hostfn

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"time"

	"github.com/wasmplane/wasmplane/plugins/host"
)

// CertificateRequest asks whether a certificate can be trusted.
type CertificateRequest struct {
	// Certificate as PEM, or DER in base64 in CertificateDER.
	Certificate    string `json:"certificate,omitempty"`
	CertificateDER []byte `json:"certificateDER,omitempty"`
	// Chain, as PEM: the authorities, the last of which is trusted. Empty: the
	// roots of this machine are.
	Chain string `json:"chain,omitempty"`
	// At is the time to judge by, in RFC 3339; empty: now.
	At string `json:"at,omitempty"`
}

// CertificateReply is the judgement.
type CertificateReply struct {
	Trusted bool   `json:"trusted"`
	Reason  string `json:"reason,omitempty"` // why not
}

// costOfSignature is what checking one signature costs in fuel.
const costOfSignature = 500_000

// mostCertificates bounds a chain.
const mostCertificates = 10

// CertificateTrusted checks a certificate.
func (c *Caller) CertificateTrusted(ctx context.Context, q CertificateRequest) (CertificateReply, error) {
	if !c.e.Grants.Certificates {
		return CertificateReply{}, c.refused("have certificates checked", Grant(Certificate))
	}
	leaf, err := leafOf(q)
	if err != nil {
		return CertificateReply{}, err
	}
	chain, err := certificates([]byte(q.Chain))
	if err != nil {
		return CertificateReply{}, fmt.Errorf("chain: %w", err)
	}
	at := time.Now()
	if q.At != "" {
		if at, err = time.Parse(time.RFC3339, q.At); err != nil {
			return CertificateReply{}, fmt.Errorf("at: %w", err)
		}
	}
	if err := host.Charge(ctx, costOfSignature*int64(1+len(chain))); err != nil {
		return CertificateReply{}, err
	}
	return Trusted(leaf, chain, at), nil
}

// Trusted judges a certificate by a chain whose last certificate is trusted, or by
// the roots of this machine where the chain is empty.
func Trusted(leaf *x509.Certificate, chain []*x509.Certificate, at time.Time) CertificateReply {
	o := x509.VerifyOptions{Intermediates: x509.NewCertPool(), CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}
	if len(chain) > 0 {
		o.Roots = x509.NewCertPool()
		o.Roots.AddCert(chain[len(chain)-1])
		for _, cert := range chain[:len(chain)-1] {
			o.Intermediates.AddCert(cert)
		}
	}
	if _, err := leaf.Verify(o); err != nil {
		return CertificateReply{Reason: err.Error()}
	}
	return CertificateReply{Trusted: true}
}

func leafOf(q CertificateRequest) (*x509.Certificate, error) {
	if len(q.CertificateDER) > 0 {
		leaf, err := x509.ParseCertificate(q.CertificateDER)
		if err != nil {
			return nil, fmt.Errorf("certificateDER: %w", err)
		}
		return leaf, nil
	}
	list, err := certificates([]byte(q.Certificate))
	if err != nil {
		return nil, fmt.Errorf("certificate: %w", err)
	}
	if len(list) != 1 {
		return nil, fmt.Errorf("certificate: expected one certificate in PEM, found %d", len(list))
	}
	return list[0], nil
}

func certificates(text []byte) ([]*x509.Certificate, error) {
	var out []*x509.Certificate
	for len(text) > 0 {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("expected certificates, found a %s", clip(block.Type, 40))
		}
		if len(out) == mostCertificates {
			return nil, fmt.Errorf("more than %d certificates", mostCertificates)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, errors.New("one of them cannot be read: " + err.Error())
		}
		out = append(out, cert)
	}
	return out, nil
}
