// SPDX-License-Identifier: Apache-2.0

package story

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"slices"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// certauthority NAME rsa|ec [of PARENT] [not-a-ca] [ended] makes a certificate authority as a company's own
// tools would: NAME.crt with the certificates above it, NAME.key, and NAME.root with its root alone.
func (s *stage) certauthority(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: certauthority NAME rsa|ec [of PARENT] [not-a-ca] [ended]")
	}
	key, err := companyKey(args[1])
	ts.Check(err)
	t := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{
			CommonName:   "Example " + args[0],
			Organization: []string{"Example Ltd."},
		},
		NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: time.Now().Add(5 * 365 * 24 * time.Hour),
		IsCA: !slices.Contains(args, "not-a-ca"), BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	if slices.Contains(args, "ended") {
		t.NotAfter = time.Now().Add(-24 * time.Hour)
	}
	parent, signer, above := t, key, []byte(nil)
	if i := slices.Index(args, "of"); i > 0 && i+1 < len(args) {
		t.MaxPathLenZero = true
		parent, signer, above = companyAuthority(ts, args[i+1])
	}
	der, err := x509.CreateCertificate(rand.Reader, t, parent, key.Public(), signer)
	ts.Check(err)
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	ts.Check(err)
	own := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	root := above
	if root == nil {
		root = own
	}
	for name, data := range map[string][]byte{
		args[0] + ".crt": append(slices.Clone(own), above...), args[0] + ".root": root,
		args[0] + ".key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}),
	} {
		ts.Check(os.WriteFile(ts.MkAbs(name), data, 0o600))
	}
}

func companyKey(kind string) (crypto.Signer, error) {
	switch kind {
	case "rsa":
		return rsa.GenerateKey(rand.Reader, 2048)
	case "ec":
		return ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	}
	return nil, fmt.Errorf("expected rsa or ec, found %q", kind)
}

// companyAuthority reads a root that certauthority has made.
func companyAuthority(ts *testscript.TestScript, name string) (cert *x509.Certificate, key crypto.Signer, text []byte) {
	text, err := os.ReadFile(ts.MkAbs(name + ".crt"))
	ts.Check(err)
	block, _ := pem.Decode(text)
	cert, err = x509.ParseCertificate(block.Bytes)
	ts.Check(err)
	secret, err := os.ReadFile(ts.MkAbs(name + ".key"))
	ts.Check(err)
	block, _ = pem.Decode(secret)
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	ts.Check(err)
	return cert, parsed.(crypto.Signer), text
}
