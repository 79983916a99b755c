// SPDX-License-Identifier: Apache-2.0

package aggregator

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/wasmplane/wasmplane/core/dial"
)

// stage is another server, and ours in front of it.
type stage struct {
	aggregator *Aggregator
	remote     *Remote
	front      *httptest.Server

	mu   sync.Mutex
	seen []*http.Request
}

type noSlices struct{}

func (noSlices) GetEndpointSlices(string, string) ([]*discoveryv1.EndpointSlice, error) {
	return nil, nil
}

func newStage(t *testing.T, backend http.HandlerFunc) *stage {
	t.Helper()
	s := &stage{}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.seen = append(s.seen, r.Clone(context.WithoutCancel(r.Context())))
		s.mu.Unlock()
		backend(w, r)
	}))
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.StartTLS()
	t.Cleanup(server.Close)
	u, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.ParseInt(u.Port(), 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	port := int32(number)

	services := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	if err := services.Add(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "other"},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeExternalName, ExternalName: "localhost",
			Ports: []corev1.ServicePort{{Port: port}},
		},
	}); err != nil {
		t.Fatal(err)
	}
	certificate := &tls.Certificate{}
	s.aggregator = &Aggregator{
		cfg: Config{
			Certificate: func() *tls.Certificate { return certificate },
			Dial:        (&net.Dialer{}).DialContext, Logger: slog.New(slog.DiscardHandler),
		},
		services: corelisters.NewServiceLister(services), slices: noSlices{},
	}
	s.remote = s.aggregator.newRemote(&apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: "v1.g.example.com"},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: "g.example.com", Version: "v1", InsecureSkipTLSVerify: true, Service: &apiregistrationv1.ServiceReference{Namespace: "ns", Name: "other", Port: &port},
		},
		Status: apiregistrationv1.APIServiceStatus{Conditions: []apiregistrationv1.APIServiceCondition{{
			Type:   apiregistrationv1.Available,
			Status: apiregistrationv1.ConditionTrue,
		}}},
	}, nil)
	t.Cleanup(s.remote.close)
	s.front = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := genericrequest.WithUser(r.Context(), &user.DefaultInfo{
			Name: "jane", UID: "7", Groups: []string{"tasters"},
			Extra: map[string][]string{"scope": {"x"}},
		})
		ctx = genericrequest.WithRequestInfo(ctx, &genericrequest.RequestInfo{Path: r.URL.Path})
		if err := s.remote.Serve(w, r.WithContext(ctx)); err != nil {
			code := http.StatusInternalServerError
			if status, ok := err.(apierrors.APIStatus); ok { // exactly what Serve returned
				code = int(status.Status().Code)
			}
			http.Error(w, err.Error(), code)
		}
	}))
	t.Cleanup(s.front.Close)
	return s
}

func (s *stage) requests() []*http.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen
}

func (s *stage) get(t *testing.T, path string, header http.Header) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.front.URL+path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range header {
		req.Header[k] = v
	}
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(body)
}

func TestTheOtherServerIsToldWhoAsksByUsAlone(t *testing.T) {
	s := newStage(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "fine") })
	_, body := s.get(t, "/apis/g.example.com/v1/things?a=b", http.Header{
		"X-Remote-User": {"admin"}, "X-Remote-Group": {"system:masters"}, "X-Remote-Uid": {"0"}, "X-Remote-Extra-Power": {"all"},
	})
	got := s.requests()[0]
	if body != "fine" || got.URL.Path != "/apis/g.example.com/v1/things" || got.URL.RawQuery != "a=b" {
		t.Errorf("answer %q to %s", body, got.URL)
	}
	for name, want := range map[string]string{
		"X-Remote-User": "jane", "X-Remote-Group": "tasters", "X-Remote-Uid": "7",
		"X-Remote-Extra-Scope": "x", "X-Remote-Extra-Power": "",
	} {
		if has := strings.Join(got.Header.Values(name), ","); has != want {
			t.Errorf("%s: %q, expected %q", name, has, want)
		}
	}
}

func TestRedirectsAreRefused(t *testing.T) {
	s := newStage(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://169.254.169.254/secret", http.StatusFound)
	})
	for _, header := range []http.Header{nil, {"Connection": {"Upgrade"}, "Upgrade": {"websocket"}}} {
		resp, body := s.get(t, "/apis/g.example.com/v1/things", header)
		if resp.StatusCode < http.StatusInternalServerError || resp.Header.Get("Location") != "" {
			t.Errorf("with %v: status %d, location %q, body %q", header, resp.StatusCode, resp.Header.Get("Location"), body)
		}
	}
}

// A refused upgrade must not leave a connection behind on which the client could
// speak to the other server as us.
func TestARefusedUpgradeEndsTheConnection(t *testing.T) {
	s := newStage(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusForbidden) })
	conn, err := net.DialTimeout("tcp", s.front.Listener.Addr().String(), 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(conn)
	fmt.Fprintf(conn, "GET /apis/g.example.com/v1/things HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n")
	resp, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusForbidden {
		t.Errorf("status %d, expected the other server's", resp.StatusCode)
	}
	fmt.Fprintf(conn, "GET /apis/g.example.com/v1/smuggled HTTP/1.1\r\nHost: x\r\nX-Remote-User: system:admin\r\nX-Remote-Group: system:masters\r\n\r\n")
	if rest, err := io.ReadAll(in); err == nil && strings.Contains(string(rest), "200") {
		t.Errorf("the connection went on: %q", rest)
	}
	for _, r := range s.requests() {
		if strings.Contains(r.URL.Path, "smuggled") {
			t.Errorf("%s reached the other server as %q", r.URL.Path, r.Header.Get("X-Remote-User"))
		}
	}
}

func TestWhatKeepsARequestFromBeingPassedOn(t *testing.T) {
	s := newStage(t, func(http.ResponseWriter, *http.Request) {})
	good := *s.remote
	unavailable, broken, gone, distrusted := good, good, good, good
	unavailable.available = false
	broken.broken = fmt.Errorf("no certificate in it")
	gone.service.Name = "nobody"
	pool := x509.NewCertPool()
	distrusted.transport = dial.NewRenewed(s.aggregator.cfg.Certificate, func(*tls.Certificate) *http.Transport {
		t := good.transport.Transport().Clone()
		t.TLSClientConfig.RootCAs, t.TLSClientConfig.InsecureSkipVerify = pool, false
		return t
	})
	for name, c := range map[string]struct {
		remote Remote
		status int
	}{
		"not available": {unavailable, http.StatusServiceUnavailable},
		"a bad bundle":  {broken, http.StatusInternalServerError},
		"no service":    {gone, http.StatusServiceUnavailable},
		"no trust":      {distrusted, http.StatusServiceUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			s.remote = &c.remote
			if resp, body := s.get(t, "/apis/g.example.com/v1/things", nil); resp.StatusCode != c.status {
				t.Errorf("status %d (%s), expected %d", resp.StatusCode, body, c.status)
			}
		})
	}
	if n := len(s.requests()); n > 0 {
		t.Errorf("%d requests reached the other server", n)
	}
}

func TestABundleWithoutCertificatesIsFound(t *testing.T) {
	s := newStage(t, nil)
	for name, c := range map[string]struct {
		ca  []byte
		bad bool
	}{
		"PEM":     {ca: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.cert(t)})},
		"garbage": {ca: []byte("garbage"), bad: true},
	} {
		if _, err := s.aggregator.newTransport(&Remote{ca: c.ca}); (err != nil) != c.bad {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func (s *stage) cert(t *testing.T) []byte {
	t.Helper()
	ts := httptest.NewTLSServer(http.NotFoundHandler())
	defer ts.Close()
	return ts.Certificate().Raw
}
