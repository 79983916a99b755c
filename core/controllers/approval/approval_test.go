// SPDX-License-Identifier: Apache-2.0

package approval

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/wasmplane/wasmplane/core/controllers/controllertest"
)

func csr(t *testing.T, change func(*x509.CertificateRequest)) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	request := &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:n1", Organization: []string{"system:nodes"}}}
	change(request)
	der, err := x509.CreateCertificateRequest(rand.Reader, request, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

func addresses(ips ...string) (out []corev1.NodeAddress) {
	for _, ip := range ips {
		out = append(out, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip})
	}
	return out
}

func hostNames(names ...string) (out []corev1.NodeAddress) {
	for _, name := range names {
		out = append(out, corev1.NodeAddress{Type: corev1.NodeInternalDNS, Address: name})
	}
	return out
}

// ofCluster are the names of a cluster whose API clients call api.example.com.
func ofCluster() *Names {
	return &Names{
		Server: []string{"api.example.com", "203.0.113.1"}, Domain: "cluster.local",
		Networks: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("10.1.0.0/16")},
	}
}

// A token is for new nodes: with it nobody becomes a node that there is, nor one whose
// serving certificate would be good for an API server.
func TestATokenTakesNoNodeOver(t *testing.T) {
	for name, denied := range map[string]bool{
		"n1": true, "n2": false, "localhost": true, "kubernetes": true, "kubernetes.default": true,
		"api.example.com": true, "hook.default.svc": true, "n3.example.com": false,
	} {
		t.Run(name, func(t *testing.T) {
			request := &certificatesv1.CertificateSigningRequest{
				ObjectMeta: metav1.ObjectMeta{Name: "r"},
				Spec: certificatesv1.CertificateSigningRequestSpec{
					Request:    csr(t, func(r *x509.CertificateRequest) { r.Subject.CommonName = "system:node:" + name }),
					SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
					Usages:     []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
					Username:   "system:bootstrap:abcdef", Groups: []string{"system:bootstrappers"},
				},
			}
			c := controllertest.New(request, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
			c.Client.PrependReactor("create", "subjectaccessreviews", func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, &authorizationv1.SubjectAccessReview{Status: authorizationv1.SubjectAccessReviewStatus{Allowed: true}}, nil
			})
			ctl, err := New(c.Env(t), 1, ofCluster())
			if err != nil {
				t.Fatal(err)
			}
			c.Start(t, ctl)
			controllertest.Eventually(t, func() error {
				r, err := c.Client.CertificatesV1().CertificateSigningRequests().Get(t.Context(), "r", metav1.GetOptions{})
				if err != nil || !decided(r) {
					return fmt.Errorf("not decided (%w)", err)
				}
				if is := r.Status.Conditions[0].Type == certificatesv1.CertificateDenied; is != denied || len(r.Status.Conditions) != 1 {
					t.Errorf("conditions %+v", r.Status.Conditions)
				}
				return nil
			})
		})
	}
}

func TestApproval(t *testing.T) {
	client := func(*x509.CertificateRequest) {}
	serves := func(ips ...string) func(*x509.CertificateRequest) {
		return func(r *x509.CertificateRequest) {
			for _, ip := range ips {
				r.IPAddresses = append(r.IPAddresses, net.ParseIP(ip))
			}
			r.DNSNames = []string{"n1"}
		}
	}
	named := func(names ...string) func(*x509.CertificateRequest) {
		return func(r *x509.CertificateRequest) { r.DNSNames = names }
	}
	clientUse := []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth}
	serverUse := []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}
	for name, tc := range map[string]struct {
		request  func(*x509.CertificateRequest)
		signer   string
		usages   []certificatesv1.KeyUsage
		user     string
		allowed  bool
		approved bool
	}{
		"a node renews":                             {client, certificatesv1.KubeAPIServerClientKubeletSignerName, clientUse, "system:node:n1", true, true},
		"a node joins":                              {client, certificatesv1.KubeAPIServerClientKubeletSignerName, clientUse, "system:bootstrap:x", true, true},
		"without the right":                         {client, certificatesv1.KubeAPIServerClientKubeletSignerName, clientUse, "mallory", false, false},
		"for another purpose":                       {client, certificatesv1.KubeAPIServerClientKubeletSignerName, serverUse, "system:node:n1", true, false},
		"not a node's name":                         {func(r *x509.CertificateRequest) { r.Subject.CommonName = "admin" }, certificatesv1.KubeAPIServerClientKubeletSignerName, clientUse, "admin", true, false},
		"in a stronger group":                       {func(r *x509.CertificateRequest) { r.Subject.Organization = []string{"system:masters"} }, certificatesv1.KubeAPIServerClientKubeletSignerName, clientUse, "system:node:n1", true, false},
		"another signer":                            {client, certificatesv1.KubeAPIServerClientSignerName, clientUse, "system:node:n1", true, false},
		"serving own address":                       {serves("192.0.2.1"), certificatesv1.KubeletServingSignerName, serverUse, "system:node:n1", false, true},
		"serving somebody's address":                {serves("192.0.2.1", "192.0.2.9"), certificatesv1.KubeletServingSignerName, serverUse, "system:node:n1", true, false},
		"serving another's address":                 {serves("192.0.2.2"), certificatesv1.KubeletServingSignerName, serverUse, "system:node:n1", true, false},
		"serving a server's address":                {serves("192.0.2.3"), certificatesv1.KubeletServingSignerName, serverUse, "system:node:n1", true, false},
		"serving the local host":                    {serves("127.0.0.1"), certificatesv1.KubeletServingSignerName, serverUse, "system:node:n1", true, false},
		"serving a Service's address":               {serves("10.96.0.1"), certificatesv1.KubeletServingSignerName, serverUse, "system:node:n1", true, false},
		"serving a pod's address":                   {serves("10.1.2.3"), certificatesv1.KubeletServingSignerName, serverUse, "system:node:n1", true, false},
		"serving the API's address":                 {serves("203.0.113.1"), certificatesv1.KubeletServingSignerName, serverUse, "system:node:n1", true, false},
		"serving by its name":                       {named("n1", "n1.example.com"), certificatesv1.KubeletServingSignerName, serverUse, "system:node:n1", false, true},
		"serving by a name that it does not report": {named("n2.example.com"), certificatesv1.KubeletServingSignerName, serverUse, "system:node:n1", true, false},
		"serving as an API server":                  {named("n1", "kubernetes"), certificatesv1.KubeletServingSignerName, serverUse, "system:node:n1", true, false},
		"serving as the API is called":              {named("API.example.com"), certificatesv1.KubeletServingSignerName, serverUse, "system:node:n1", true, false},
		"serving as a webhook":                      {named("hook.default.svc"), certificatesv1.KubeletServingSignerName, serverUse, "system:node:n1", true, false},
		"serving as a webhook, in full":             {named("hook.default.svc.cluster.local"), certificatesv1.KubeletServingSignerName, serverUse, "system:node:n1", true, false},
		"serving by many names":                     {named("*.example.com"), certificatesv1.KubeletServingSignerName, serverUse, "system:node:n1", true, false},
		"serving by another's name":                 {named("n9"), certificatesv1.KubeletServingSignerName, serverUse, "system:node:n1", true, false},
		"serving by what another is called":         {named("n9.example.com"), certificatesv1.KubeletServingSignerName, serverUse, "system:node:n1", true, false},
		"serving for another node":                  {serves("192.0.2.1"), certificatesv1.KubeletServingSignerName, serverUse, "system:node:n2", true, false},
	} {
		t.Run(name, func(t *testing.T) {
			request := &certificatesv1.CertificateSigningRequest{
				ObjectMeta: metav1.ObjectMeta{Name: "r"},
				Spec: certificatesv1.CertificateSigningRequestSpec{
					Request: csr(t, tc.request), SignerName: tc.signer, Usages: tc.usages,
					Username: tc.user,
				},
			}
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: corev1.NodeStatus{
				// It claims more than its own.
				Addresses: append(addresses("192.0.2.1", "192.0.2.2", "192.0.2.3", "127.0.0.1", "10.96.0.1", "10.1.2.3", "203.0.113.1"),
					hostNames("n1.example.com", "kubernetes", "API.example.com", "hook.default.svc", "hook.default.svc.cluster.local", "*.example.com",
						"n9",
						"n9.example.com")...),
			}}
			other := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n9"}, Status: corev1.NodeStatus{
				Addresses: append(addresses("192.0.2.2"), hostNames("N9.example.com")...),
			}}
			servers := &discoveryv1.EndpointSlice{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes"},
				Endpoints:  []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.3"}}},
			}
			c := controllertest.New(request, node, other, servers)
			c.Client.PrependReactor("create", "subjectaccessreviews", func(_ clienttesting.Action) (bool, runtime.Object, error) {
				return true, &authorizationv1.SubjectAccessReview{Status: authorizationv1.SubjectAccessReviewStatus{Allowed: tc.allowed}}, nil
			})
			ctl, err := New(c.Env(t), 1, ofCluster())
			if err != nil {
				t.Fatal(err)
			}
			c.Start(t, ctl)
			if !tc.approved {
				// Ask directly: there is no event that tells that nothing happened.
				c.Informers.WaitForCacheSync(t.Context().Done())
				if err := ctl.judge(t.Context(), request); err != nil {
					t.Fatal(err)
				}
			}
			approved := func() error {
				r, err := c.Client.CertificatesV1().CertificateSigningRequests().Get(t.Context(), "r", metav1.GetOptions{})
				if err == nil && !decided(r) {
					return errors.New("not approved")
				}
				return err
			}
			if !tc.approved {
				if err := approved(); err == nil {
					t.Error("approved")
				}
				return
			}
			controllertest.Eventually(t, approved)
		})
	}
}

// TestANodeWithANameOfTheCluster gets no serving certificate, for its address alone either.
func TestANodeWithANameOfTheCluster(t *testing.T) {
	for name, want := range map[string]bool{"n1": true, "kubernetes": false, "api.example.com": false} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{Addresses: addresses("192.0.2.1")}}
		c := controllertest.New(node, &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes"}})
		ctl, err := New(c.Env(t), 1, ofCluster())
		if err != nil {
			t.Fatal(err)
		}
		c.Start(t, ctl)
		request := &x509.CertificateRequest{Subject: pkix.Name{CommonName: nodePrefix + name}, IPAddresses: []net.IP{net.ParseIP("192.0.2.1")}}
		controllertest.Eventually(t, func() error {
			got, err := ctl.ownsNames(request.Subject.CommonName, request)
			if err == nil && got != want {
				t.Errorf("node %s: %t; want %t", name, got, want)
			}
			return err
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("-----BEGIN CERTIFICATE REQUEST-----\nMAA=\n-----END CERTIFICATE REQUEST-----\n"))
	f.Add([]byte(""))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := parse(text)
		if err == nil && r == nil {
			t.Error("neither a request nor an error")
		}
	})
}
