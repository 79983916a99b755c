// SPDX-License-Identifier: Apache-2.0

package imagepolicy

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/sigstore/sigstore-go/pkg/root"

	"github.com/wasmplane/wasmplane/plugins/sign"
	"github.com/wasmplane/wasmplane/plugins/sign/trust"
)

// Roots is the root of trust where a policy names none, as the operator configured it; nil = there is none.
type Roots func() (root.TrustedMaterial, error)

// signer is an attestor by cosign.
type signer struct {
	name string
	spec *cosign
}

// text is what a field says, or its expression finds.
func (s *session) text(value, expression string) (string, error) {
	if expression == "" {
		return value, nil
	}
	out, err := s.eval.Run(s.ctx, s.v.compiled[expression])
	if err != nil {
		return "", err
	}
	text, ok := out.Value().(string)
	if !ok {
		return "", fmt.Errorf("expected a string, found a %s", out.Type().TypeName())
	}
	return text, nil
}

// own are the parts of the root of trust that the attestor names, on a base.
func (c *cosign) own(base root.TrustedMaterial) (root.TrustedMaterial, error) {
	o := trust.Own{Base: base}
	if c.Keyless != nil {
		o.Authorities = []byte(c.Keyless.Roots)
	}
	if l := c.CTLog; l != nil {
		o.Log, o.CertLog, o.Time = []byte(l.RekorPubKey), []byte(l.CTLogPubKey), []byte(l.TSACertChain)
	}
	return o.Material()
}

// errNoRoot is of attestors that need a root of trust where there is none.
var errNoRoot = errors.New("there is no root of trust: write it into trustedRoot.value, or name its file in the configuration (sigstore.trustedRoot); " +
	"for keys, ctlog.insecureIgnoreTlog: true does without")

// roots are what the attestor trusts.
func (a *signer) roots(s *session) (root.TrustedMaterial, error) {
	c := a.spec
	var base root.TrustedMaterial
	if t := c.TrustedRoot; t != nil {
		text, err := s.text(t.Value, t.Expression)
		if err == nil {
			base, err = trust.ParseRoot([]byte(text))
		}
		if err != nil {
			return nil, fmt.Errorf("trustedRoot: %w", err)
		}
	} else if s.w.Roots != nil {
		var err error
		if base, err = s.w.Roots(); err != nil {
			return nil, err
		}
	}
	m, err := c.own(base)
	if err != nil {
		return nil, err
	}
	if !c.ignoresLog() && len(m.RekorLogs()) == 0 || c.Keyless != nil && len(m.FulcioCertificateAuthorities()) == 0 {
		return nil, errNoRoot
	}
	return m, nil
}

func (c *cosign) ignoresLog() bool { return c.CTLog != nil && c.CTLog.InsecureIgnoreTlog }

// signer is whose signatures count for the attestor.
func (a *signer) signer(s *session) (*trust.Signer, error) {
	c := a.spec
	roots, err := a.roots(s)
	if err != nil {
		return nil, &lookupError{fmt.Errorf("attestor %s: %w", a.name, err)}
	}
	out := &trust.Signer{Roots: roots, NoLog: c.ignoresLog(), NoSCT: c.CTLog != nil && c.CTLog.InsecureIgnoreSCT, Annotations: c.Annotations}
	switch {
	case c.Key != nil:
		text, err := s.text(c.Key.Data, c.Key.Expression)
		if err != nil {
			return nil, &lookupError{fmt.Errorf("attestor %s: its key: %w", a.name, err)}
		}
		keys, err := sign.ParsePublicKeys([]byte(text))
		if err != nil {
			return nil, fmt.Errorf("its key: %w", err)
		}
		out.Key, out.Hash = keys[0], hashes[c.Key.HashAlgorithm]
	case c.Certificate != nil:
		chain := ""
		cert, err := s.text(c.Certificate.Cert.Value, c.Certificate.Cert.Expression)
		if err == nil && c.Certificate.CertChain != nil {
			chain, err = s.text(c.Certificate.CertChain.Value, c.Certificate.CertChain.Expression)
		}
		if err != nil {
			return nil, &lookupError{fmt.Errorf("attestor %s: its certificate: %w", a.name, err)}
		}
		if out.Key, err = trust.Certified([]byte(cert), []byte(chain), time.Now()); err != nil {
			return nil, err
		}
	default:
		for _, id := range c.Keyless.Identities {
			out.Identities = append(out.Identities, trust.Identity{
				Issuer: id.Issuer, IssuerRegExp: id.IssuerRegExp, Subject: id.Subject, SubjectRegExp: id.SubjectRegExp,
			})
		}
	}
	return out, nil
}

// keep keeps what was attested, for expressions that look into it.
func (s *session) keep(key string, statements []trust.Statement) error {
	for _, st := range statements {
		var predicate any
		if err := json.Unmarshal(st.Predicate, &predicate); err != nil {
			return fmt.Errorf("its predicate is no JSON: %w", err)
		}
		s.payloads[key] = append(s.payloads[key], predicate)
	}
	return nil
}
