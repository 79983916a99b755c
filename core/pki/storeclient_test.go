// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"crypto/x509"
	"slices"
	"strings"
	"testing"
	"time"
)

// A light server's key is made where it is used; its certificate is good for a client of the stores alone, and is signed again by
// who has their authority's key.
func TestALightServersCertificate(t *testing.T) {
	dir, light := t.TempDir(), t.TempDir()
	now := time.Now()
	a := open(t, dir, now)
	asked, err := NewStoreClientRequest("d")
	if err != nil {
		t.Fatal(err)
	}
	cert, err := a.SignStoreClient("d", asked.CSR)
	if err != nil {
		t.Fatal(err)
	}
	if err := asked.Keep(light, cert); err == nil {
		t.Error("a certificate is kept whose authority is not known")
	}
	write(t, light, "etcd-ca.crt", string(mustRead(t, a.EtcdCAFile())))
	if err := asked.Keep(light, cert); err != nil {
		t.Fatal(err)
	}
	found, err := List(light)
	if err != nil || !slices.ContainsFunc(found, func(c Certificate) bool {
		return strings.HasPrefix(c.For, "this light server") && c.SignedBy == "etcd-ca"
	}) {
		t.Errorf("listed: %+v, %v", found, err)
	}
	pair, err := parsePair(mustRead(t, StoreClientFile(light)))
	if err != nil {
		t.Fatal(err)
	}
	leaf := pair.tls.Leaf
	if !slices.Equal(leaf.ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}) || leaf.Subject.CommonName != "d" ||
		leaf.NotBefore.Before(now.Truncate(time.Second)) || len(leaf.DNSNames)+len(leaf.IPAddresses) > 0 {
		t.Errorf("it is for %v of %s, from %s on", leaf.ExtKeyUsage, leaf.Subject, leaf.NotBefore)
	}
	for at, want := range map[time.Duration]bool{0: false, 300 * 24 * time.Hour: true} {
		if due, err := StoreClientDue(light, now.Add(at)); err != nil || due != want {
			t.Errorf("due after %s: %v, %v", at, due, err)
		}
	}
	// By hand it is renewed by another server, and does not keep others from being renewed.
	if renewed, err := RenewNow(light, nil, now); err != nil || len(renewed) > 0 {
		t.Errorf("renewed %q, %v", renewed, err)
	}

	for what, sign := range map[string]func() error{
		"for another name": func() error { _, err := a.SignStoreClient("e", asked.CSR); return err },
		"bytes":            func() error { _, err := a.SignStoreClient("d", []byte("?")); return err },
		"a bent request": func() error {
			bent := slices.Clone(asked.CSR)
			bent[len(bent)-1] ^= 1
			_, err := a.SignStoreClient("d", bent)
			return err
		},
		"another key": func() error {
			return must[*StoreClientRequest](t)(NewStoreClientRequest("d")).Keep(light, cert)
		},
	} {
		if sign() == nil {
			t.Errorf("%s was accepted", what)
		}
	}
}
