// SPDX-License-Identifier: Apache-2.0

package signing

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/controllers/controllertest"
)

func authority(t *testing.T) Authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "kubernetes"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(10 * life), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, ca, ca, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return func() (*x509.Certificate, []byte, crypto.Signer) { return parsed, nil, key }
}

func request(t *testing.T, change func(*x509.CertificateRequest)) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	r := &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:n1", Organization: []string{"system:nodes"}}}
	if change != nil {
		change(r)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, r, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

func TestWhatIsSignedAndWhatFails(t *testing.T) {
	clientUse := []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth}
	serverUse := []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}
	address := func(r *x509.CertificateRequest) { r.IPAddresses = []net.IP{net.ParseIP("192.0.2.1")} }
	hour := int32(3600)
	for name, tc := range map[string]struct {
		signer  string
		change  func(*x509.CertificateRequest)
		usages  []certificatesv1.KeyUsage
		seconds *int32
		pending bool   // not approved
		failed  string // message of the Failed condition
		signed  bool
	}{
		"a client":                       {signer: certificatesv1.KubeAPIServerClientSignerName, usages: clientUse, signed: true},
		"a client for an hour":           {signer: certificatesv1.KubeAPIServerClientSignerName, usages: clientUse, seconds: &hour, signed: true},
		"a client that wants to serve":   {signer: certificatesv1.KubeAPIServerClientSignerName, usages: serverUse, failed: "invalid usage for client certificate: server auth"},
		"a kubelet":                      {signer: certificatesv1.KubeAPIServerClientKubeletSignerName, usages: clientUse, signed: true},
		"a kubelet with an address":      {signer: certificatesv1.KubeAPIServerClientKubeletSignerName, change: address, usages: clientUse, failed: "IP subjectAltNames are not allowed"},
		"a kubelet's server":             {signer: certificatesv1.KubeletServingSignerName, change: address, usages: serverUse, signed: true},
		"a kubelet's server of no name":  {signer: certificatesv1.KubeletServingSignerName, usages: serverUse, failed: "DNS or IP subjectAltName is required"},
		"a server that is also a client": {signer: certificatesv1.KubeletServingSignerName, change: address, usages: append(clientUse, certificatesv1.UsageServerAuth), failed: "usages did not match [digital signature key encipherment server auth]"},
		"legacy":                         {signer: "kubernetes.io/legacy-unknown", usages: serverUse, signed: true},
		"not approved":                   {signer: certificatesv1.KubeAPIServerClientSignerName, usages: clientUse, pending: true},
		"somebody else's signer":         {signer: "example.com/other", usages: clientUse},
	} {
		t.Run(name, func(t *testing.T) {
			r := &certificatesv1.CertificateSigningRequest{
				ObjectMeta: metav1.ObjectMeta{Name: "r"},
				Spec: certificatesv1.CertificateSigningRequestSpec{
					Request: request(t, tc.change), SignerName: tc.signer, Usages: tc.usages,
					ExpirationSeconds: tc.seconds,
				},
			}
			if !tc.pending {
				r.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{
					Type:   certificatesv1.CertificateApproved,
					Status: corev1.ConditionTrue,
				}}
			}
			w := controllertest.New(r)
			ca := authority(t)
			c, err := New(w.Env(t), 1, ca)
			if err != nil {
				t.Fatal(err)
			}
			w.Start(t)
			w.Informers.WaitForCacheSync(t.Context().Done())
			if err := c.reconcile(t.Context(), "r"); err != nil {
				t.Fatal(err)
			}
			now, err := w.Client.CertificatesV1().CertificateSigningRequests().Get(t.Context(), "r", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			failed := ""
			for _, cond := range now.Status.Conditions {
				if cond.Type == certificatesv1.CertificateFailed {
					failed = cond.Message
				}
			}
			if failed != tc.failed || (len(now.Status.Certificate) > 0) != tc.signed {
				t.Fatalf("failed %q, signed %t", failed, len(now.Status.Certificate) > 0)
			}
			if tc.signed {
				verify(t, ca, now.Status.Certificate, tc.seconds)
			}
		})
	}
}

// The first certificate of a node begins when it is signed: one that began before the
// removal of an earlier node of its name is refused. Others cover clocks that run behind.
func TestWhenACertificateBegins(t *testing.T) {
	const kubelets, clients = certificatesv1.KubeAPIServerClientKubeletSignerName, certificatesv1.KubeAPIServerClientSignerName
	for _, tc := range []struct {
		signer, user string
		before       time.Duration
	}{
		{kubelets, "system:bootstrap:abcdef", 0},
		{kubelets, "system:node:n1", backdate},
		{clients, "jane", backdate},
	} {
		block, _ := pem.Decode(request(t, nil))
		asked, err := x509.ParseCertificateRequest(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		now := time.Now().Truncate(time.Second)
		c := &Controller{authority: authority(t)}
		text, err := c.sign(asked, &certificatesv1.CertificateSigningRequest{Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: tc.signer, Username: tc.user, Usages: []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth},
		}}, now)
		if err != nil {
			t.Fatal(err)
		}
		block, _ = pem.Decode(text)
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		if want := now.Add(-tc.before); !cert.NotBefore.Equal(want) {
			t.Errorf("%s by %s begins %s, want %s", tc.signer, tc.user, cert.NotBefore, want)
		}
	}
}

func verify(t *testing.T, ca Authority, text []byte, seconds *int32) {
	t.Helper()
	block, _ := pem.Decode(text)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	parent, _, _ := ca()
	pool := x509.NewCertPool()
	pool.AddCert(parent)
	if _, err := cert.Verify(x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
		t.Error(err)
	}
	if cert.IsCA {
		t.Error("the certificate is an authority")
	}
	longest := life
	if seconds != nil {
		longest = time.Duration(*seconds) * time.Second
	}
	if time.Until(cert.NotAfter) > longest {
		t.Errorf("lives until %s", cert.NotAfter)
	}
}
