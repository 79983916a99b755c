// SPDX-License-Identifier: Apache-2.0

package join

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/wasmplane/wasmplane/core/auth/jointoken"
	"github.com/wasmplane/wasmplane/core/pki"
	"github.com/wasmplane/wasmplane/core/pki/cabundle"
	"github.com/wasmplane/wasmplane/core/run"
)

func TestAddress(t *testing.T) {
	for in, want := range map[string]string{
		"192.0.2.1": "192.0.2.1:6443", "server:7443": "server:7443", "https://server": "server:6443", "https://[fd00::1]:7443/": "[fd00::1]:7443",
		" fd00::1 ": "[fd00::1]:6443", "[fd00::1]": "[fd00::1]:6443",
		"": "", "http://server": "", "https://server/path": "", "server:0": "", "server:http": "", "server:99999": "", "a b": "",
		"user@server": "",
	} {
		got, err := Address(in)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q is %q (%v), want %q", in, got, err, want)
		}
	}
}

// cluster is an authority with a server that shows its certificate and says what time it is.
type cluster struct {
	authority *pki.Authority
	pin       string
	address   string
	asked     chan string // what reached it
}

func newCluster(t *testing.T, now func() time.Time) *cluster {
	t.Helper()
	a, err := pki.Open(pki.Config{Dir: filepath.Join(t.TempDir(), "pki"), Now: now})
	if err != nil {
		t.Fatal(err)
	}
	serving, err := a.APIServer()
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{authority: a, pin: cabundle.Pin(a.ClusterCA()), asked: make(chan string, 100)}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.asked <- r.URL.Path + " " + r.Header.Get("Authorization")
		w.Header().Set("Date", now().UTC().Format(http.TimeFormat))
		w.WriteHeader(http.StatusUnauthorized)
	}))
	s.TLS = pki.WithAuthority(pki.ServerTLS(serving), a.ClusterCA)
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	s.StartTLS()
	t.Cleanup(s.Close)
	c.address = s.Listener.Addr().String()
	return c
}

// What is wrong is said in a sentence, the token reaches nobody but a server that is proven,
// and nothing is left behind.
func TestAFailedJoinLeavesNothing(t *testing.T) {
	today := func() time.Time { return time.Now() }
	right, foreign, late := newCluster(t, today), newCluster(t, today), newCluster(t,
		func() time.Time { return time.Now().Add(25 * time.Hour) })
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := closed.Addr().String()
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	token := jointoken.Token{ID: "abcdef", Secret: "0123456789abcdef", Pin: right.pin}
	for name, tc := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"a token that is unknown": {func(*Config) {}, "mistyped, has expired or was revoked"},
		"another cluster's token": {func(c *Config) { c.Token.Pin = foreign.pin }, "take the token from a server of the same cluster"},
		"another cluster":         {func(c *Config) { c.Server = foreign.address }, "take the token from a server of the same cluster"},
		"nobody at the address":   {func(c *Config) { c.Server = nobody }, "is it running"},
		"no pin":                  {func(c *Config) { c.Token.Pin = "" }, "does not say of which cluster"},
		"a clock a day off":       {func(c *Config) { c.Server, c.Token.Pin = late.address, late.pin }, "set the clock"},
		"a clock that is ahead":   {func(c *Config) { c.Now = func() time.Time { return time.Now().Add(48 * time.Hour) } }, "set the clock"},
		"a name for no node":      {func(c *Config) { c.Node = "Not A Name" }, "--node-name"},
		"a server's name":         {func(c *Config) { c.Node = "kubernetes.default" }, "--node-name"},
		"no address":              {func(c *Config) { c.Server = "ftp://server" }, "HOST:PORT"},
	} {
		t.Run(name, func(t *testing.T) {
			c := Config{
				Dir: filepath.Join(t.TempDir(), "member"), Server: right.address, Token: token, Node: "w", Machine: "m", Version: "v1.37.1",
				Networks: []netip.Prefix{},
			}
			tc.change(&c)
			_, err := Join(t.Context(), c)
			if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), token.Secret) {
				t.Errorf("error %v, want one with %q and without the token", err, tc.want)
			}
			if _, err := os.Stat(c.Dir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s was left behind (%v)", c.Dir, err)
			}

			// What a join that was killed has left is not the next one's to remove.
			if err := os.Mkdir(c.Dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(ClientFile(c.Dir), []byte("a certificate"), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := Join(t.Context(), c); err == nil {
				t.Error("it joined")
			}
			if _, err := os.Stat(ClientFile(c.Dir)); err != nil {
				t.Errorf("the certificate of an earlier join: %v", err)
			}
		})
	}
	for _, c := range []*cluster{foreign, late} {
		close(c.asked)
		for request := range c.asked {
			if strings.Contains(request, token.Secret) {
				t.Errorf("a server that was not proven, or late, was handed the token: %s", request)
			}
		}
	}
}

// A server that shows the right authority, and has no certificate of it, is not believed.
func TestAnAuthorityOnShowProvesNothing(t *testing.T) {
	a, b := newCluster(t, time.Now), newCluster(t, time.Now)
	leaf, err := b.authority.APIServer()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pinned([]*x509.Certificate{leaf.Certificate().Leaf, a.authority.ClusterCA()}, a.pin); err == nil {
		t.Error("it was believed")
	}
	// Nor does a node's own serving certificate make it a server.
	node, err := a.authority.KubeletServing("w", "192.0.2.1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pinned([]*x509.Certificate{node.Certificate().Leaf, a.authority.ClusterCA()}, a.pin); err == nil {
		t.Error("a node passed for a server")
	}
	serving, err := a.authority.APIServer()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := pinned([]*x509.Certificate{serving.Certificate().Leaf, a.authority.ClusterCA()}, a.pin); err != nil ||
		!got.Equal(a.authority.ClusterCA()) {
		t.Errorf("the server's own chain: %v", err)
	}
}

func TestVersions(t *testing.T) {
	for _, tc := range []struct{ ours, theirs, want string }{
		{"v1.37.1", "v1.37.0", ""},
		{"v1.34.9", "v1.37.1", ""},
		{"v1.33.0", "v1.37.1", "at most 3 minor versions"},
		{"v1.38.0", "v1.37.1", "upgrade the servers first"},
		{"v2.0.0", "v1.37.1", "upgrade the servers first"},
		{"v0.0.0-master+$Format:%H$", "v1.37.1", ""},
	} {
		if err := checkVersions(tc.ours, tc.theirs); (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s at %s: %v, want %q", tc.ours, tc.theirs, err, tc.want)
		}
	}
}

func TestNetworksThatOverlapAreRefused(t *testing.T) {
	m := Member{PodCIDR: "10.1.0.0/16", ServiceCIDR: "10.2.0.0/16"}
	for network, want := range map[string]string{
		"192.0.2.0/24": "", "10.1.2.0/24": "network of pods", "10.0.0.0/8": "overlaps",
		"10.2.0.0/16": "network of Services",
	} {
		c := Config{Networks: []netip.Prefix{netip.MustParsePrefix(network)}}
		if err := c.checkNetworks(m); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", network, err, want)
		}
	}
}

// Of two machines with one name the second is told, and the same machine may come again.
func TestANameIsClaimedOnce(t *testing.T) {
	kube := fake.NewClientset()
	if made, err := claim(t.Context(), kube, "w", "one"); !made || err != nil {
		t.Fatalf("made %t, %v", made, err)
	}
	if made, err := claim(t.Context(), kube, "w", "one"); made || err != nil {
		t.Errorf("the same machine again: made %t, %v", made, err)
	}
	if _, err := claim(t.Context(), kube, "w", "two"); err == nil || !strings.Contains(err.Error(), "wasmplane node remove w") {
		t.Errorf("another machine: %v", err)
	}
	// What another machine has is not taken along by who leaves.
	if err := Leave(t.Context(), Member{Node: "w", Machine: "two"}, kube); err != nil {
		t.Error(err)
	}
	if _, err := kube.CoreV1().Nodes().Get(t.Context(), "w", metav1.GetOptions{}); err != nil {
		t.Errorf("the node is gone: %v", err)
	}
	for range 2 { // also when it is gone already
		if err := Leave(t.Context(), Member{Node: "w", Machine: "one"}, kube); err != nil {
			t.Error(err)
		}
	}
	if nodes, err := kube.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); err != nil || len(nodes.Items) != 0 {
		t.Errorf("nodes %v, %v", nodes.Items, err)
	}
}

// signer signs what is asked, with certificates that hold from one time to another.
func signer(t *testing.T, a *pki.Authority, from, until time.Duration) *fake.Clientset {
	t.Helper()
	kube := fake.NewClientset()
	kube.PrependReactor("create", "certificatesigningrequests", func(action clienttesting.Action) (bool, runtime.Object, error) {
		r := action.(clienttesting.CreateAction).GetObject().(*certificatesv1.CertificateSigningRequest)
		block, _ := pem.Decode(r.Spec.Request)
		asked, err := x509.ParseCertificateRequest(block.Bytes)
		if err != nil {
			t.Error(err)
			return true, nil, err
		}
		ca, _, key := a.CASigner()
		der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
			SerialNumber: ca.SerialNumber, Subject: asked.Subject, DNSNames: asked.DNSNames, IPAddresses: asked.IPAddresses,
			NotBefore: time.Now().Add(from), NotAfter: time.Now().Add(until),
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		}, ca, asked.PublicKey, key)
		if err != nil {
			t.Error(err)
			return true, nil, err
		}
		if r.Name == "" {
			r.Name = "generated-" + strings.ToLower(rand.Text())
		}
		r.Status.Certificate = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
		r.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{
			Type:   certificatesv1.CertificateApproved,
			Status: corev1.ConditionTrue,
		}}
		return false, nil, nil // stored as it is now
	})
	return kube
}

// A certificate that is near its end is replaced, with a new key, while it is used.
func TestCertificatesAreRenewed(t *testing.T) {
	a, err := pki.Open(pki.Config{Dir: filepath.Join(t.TempDir(), "pki")})
	if err != nil {
		t.Fatal(err)
	}
	const life = 24 * time.Hour
	dir := t.TempDir()
	c := Config{Dir: dir, Node: "w", Now: time.Now}
	if err := c.certificate(t.Context(), signer(t, a, -23*time.Hour, time.Minute), a.ClusterCA()); err != nil {
		t.Fatal(err)
	}
	first, err := (pairFile{ClientFile(dir)}).Current()
	if err != nil {
		t.Fatal(err)
	}
	renewal, err := RenewClient(dir, Member{Node: "w"}, signer(t, a, 0, life), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- renewal.Run(ctx) }()
	look := run.Backoff{First: 10 * time.Millisecond, Longest: time.Second}
	for {
		now, err := (pairFile{ClientFile(dir)}).Current()
		if err != nil {
			t.Fatal(err) // a reader never finds half a pair
		}
		if !now.Leaf.Equal(first.Leaf) {
			if now.Leaf.Subject.CommonName != "system:node:w" || time.Until(now.Leaf.NotAfter) < life/2 ||
				bytes.Equal(now.Leaf.RawSubjectPublicKeyInfo, first.Leaf.RawSubjectPublicKeyInfo) {
				t.Errorf("renewed: %s until %s", now.Leaf.Subject, now.Leaf.NotAfter)
			}
			break
		}
		if !look.Wait(t.Context()) {
			t.Fatal("it was not renewed")
		}
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := Ended(t.Context(), dir, time.Now); err != nil {
		t.Error(err)
	}
}

// A machine that starts with a wrong clock is told so by the server's, and not that it has to join anew.
func TestAWrongClockAtTheStartIsNamed(t *testing.T) {
	c := newCluster(t, time.Now)
	pair, err := c.authority.Client(pki.Node("w"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for file, data := range map[string][]byte{ClientFile(dir): pair.PEM(), caFile(dir): c.authority.CAPEM()} {
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	begins, ends := pair.Certificate().Leaf.NotBefore, pair.Certificate().Leaf.NotAfter
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = gone.Close()
	for name, k := range map[string]struct {
		now    time.Time
		server string
		want   []string
	}{
		"right":                      {time.Now(), c.address, nil},
		"a day behind":               {time.Now().Add(-24 * time.Hour), c.address, []string{"behind the server's", "set the clock"}},
		"years ahead":                {ends.Add(time.Hour), c.address, []string{"ahead of the server's", "set the clock"}},
		"behind, nobody to be asked": {begins.Add(-time.Hour), gone.Addr().String(), []string{"holds from", "set the clock"}},
		"ended, nobody to be asked":  {ends.Add(time.Hour), gone.Addr().String(), []string{"ended on", "node remove w"}},
	} {
		t.Run(name, func(t *testing.T) {
			if err := (Member{Node: "w", Server: k.server, Pin: c.pin}).write(dir); err != nil {
				t.Fatal(err)
			}
			// The clock goes on, as clocks do: nothing of a second's size is compared.
			off := time.Until(k.now)
			err := Ended(t.Context(), dir, func() time.Time { return time.Now().Add(off) })
			if (err == nil) != (k.want == nil) {
				t.Fatalf("got %v, want %q", err, k.want)
			}
			for _, words := range k.want {
				if !strings.Contains(err.Error(), words) {
					t.Errorf("got %v, want %q", err, words)
				}
			}
		})
	}
}
