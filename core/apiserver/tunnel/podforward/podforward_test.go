// SPDX-License-Identifier: Apache-2.0

package podforward_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/portforward"
	streaming "k8s.io/cri-streaming/pkg/streaming/portforward"

	"github.com/wasmplane/wasmplane/core/apiserver/tunnel"
	"github.com/wasmplane/wasmplane/core/apiserver/tunnel/podforward"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"),
		// It waits a second for somebody to take the error of a connection that both sides have closed.
		goleak.IgnoreTopFunction("github.com/moby/spdystream.(*Connection).shutdown"),
		// The runtime's server waits for ever where it gave a stream up, and its client closed, before it had replied that the stream is made.
		goleak.IgnoreAnyFunction("github.com/moby/spdystream.(*Stream).waitWriteReply"))
}

// inPod connects to a listener of the test as a runtime does within a pod.
type inPod struct{}

func (inPod) PortForward(ctx context.Context, name, _ string, port int32, stream io.ReadWriteCloser) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))))
	if err != nil {
		return fmt.Errorf("pod %s: %w", name, err)
	}
	defer conn.Close()
	ended := make(chan struct{}, 2)
	go func() { _, _ = io.Copy(conn, stream); ended <- struct{}{} }()
	go func() { _, _ = io.Copy(stream, conn); ended <- struct{}{} }()
	<-ended
	return nil
}

// kubelet serves port forwarding of the pods of a node, as the kubelet's own server does.
func kubelet(t *testing.T, handler http.HandlerFunc) (*httptest.Server, *tunnel.KubeletClient) {
	t.Helper()
	s := httptest.NewTLSServer(handler)
	t.Cleanup(s.Close)
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	trust := &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	return s, &tunnel.KubeletClient{TLS: func() *tls.Config { return trust }}
}

func forwarding(t *testing.T) http.HandlerFunc {
	t.Helper()
	return func(w http.ResponseWriter, r *http.Request) {
		parts := strings.Split(r.URL.Path, "/")
		if len(parts) != 4 || parts[1] != "portForward" || r.Method != http.MethodPost {
			t.Errorf("the kubelet was asked %s %s", r.Method, r.URL)
		}
		streaming.ServePortForward(w, r, inPod{}, parts[3], "", &streaming.V4Options{}, time.Minute, time.Minute,
			[]string{portforward.PortForwardProtocolV1Name})
	}
}

// cluster is a node at the address of s, and pods on it.
func cluster(t *testing.T, s *httptest.Server) *fake.Clientset {
	t.Helper()
	at := netip.MustParseAddrPort(s.Listener.Addr().String())
	pod := func(name string, change func(*corev1.Pod), ips ...string) runtime.Object {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Spec: corev1.PodSpec{NodeName: "n1"},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ips[0]},
		}
		for _, ip := range ips {
			p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip})
		}
		if change != nil {
			change(p)
		}
		return p
	}
	return fake.NewClientset(
		&corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: corev1.NodeSpec{PodCIDRs: []string{"10.244.1.0/24", "fd00:10:244:1::/64"}},
			Status: corev1.NodeStatus{
				Addresses:       []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: at.Addr().String()}},
				DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: int32(at.Port())}},
			},
		},
		pod("ended", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, "10.244.1.7"),
		pod("web", nil, "10.244.1.7", "fd00:10:244:1::7"),
		pod("host", func(p *corev1.Pod) { p.Spec.HostNetwork = true }, "192.0.2.1"),
	)
}

// networks are those of the pods of cluster.
var networks = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/48")}

func through(t *testing.T, d *podforward.Dialer, at string) (net.Conn, bool, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel() // the connection outlives what bounds its making
	return d.Through(ctx, "tcp", netip.MustParseAddrPort(at))
}

func TestAPodIsReachedThroughItsNode(t *testing.T) {
	s, kubelets := kubelet(t, forwarding(t))
	d := podforward.New(podforward.Config{API: cluster(t, s), Pods: networks, Kubelets: kubelets})
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		_, _ = fmt.Fprintf(w, "%d bytes, %v", len(body), err)
	}))
	t.Cleanup(web.Close)
	port := strconv.Itoa(int(netip.MustParseAddrPort(web.Listener.Addr().String()).Port()))
	for _, at := range []string{"10.244.1.7:" + port, "[fd00:10:244:1::7]:" + port, "[::ffff:10.244.1.7]:" + port} {
		conn, ok, err := through(t, d, at)
		if !ok || err != nil {
			t.Fatalf("%s: %v, %v", at, ok, err)
		}
		if conn.RemoteAddr().String() != netip.MustParseAddrPort(at).String() && !strings.Contains(at, "ffff") {
			t.Errorf("the connection to %s says that it leads to %s", at, conn.RemoteAddr())
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://web/", strings.NewReader(strings.Repeat("x", 3<<20)))
		if err != nil {
			t.Fatal(err)
		}
		wrote := make(chan error, 1)
		go func() { wrote <- req.Write(conn) }()
		answer, err := http.ReadResponse(bufio.NewReader(conn), req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(answer.Body)
		if err != nil || string(body) != "3145728 bytes, <nil>" {
			t.Errorf("%s: answered %q, %v", at, body, err)
		}
		if err := errors.Join(<-wrote, answer.Body.Close(), conn.Close()); err != nil {
			t.Error(err)
		}
	}
}

func TestOtherAddressesAreConnectedToDirectly(t *testing.T) {
	s, kubelets := kubelet(t, func(http.ResponseWriter, *http.Request) { t.Error("the kubelet was asked") })
	d := podforward.New(podforward.Config{API: cluster(t, s), Pods: networks, Kubelets: kubelets})
	for _, at := range []string{"192.0.2.1:443", "10.244.1.8:443", "10.244.9.9:443", "[fd00:10:244:1::8]:443", "198.51.100.1:443"} {
		if conn, ok, err := through(t, d, at); ok || conn != nil || err != nil {
			t.Errorf("%s: %v, %v, %v", at, conn, ok, err)
		}
	}
}

// Every connection to a webhook outside of the cluster would else decode all nodes.
func TestNodesAreLookedThroughForAddressesOfPodsAlone(t *testing.T) {
	s, kubelets := kubelet(t, func(http.ResponseWriter, *http.Request) { t.Error("the kubelet was asked") })
	for at, want := range map[string]bool{"198.51.100.1:443": false, "[2001:db8::1]:443": false, "[fd00:10:244:1::8]:443": true} {
		api := cluster(t, s)
		if _, ok, err := through(t, podforward.New(podforward.Config{API: api, Pods: networks, Kubelets: kubelets}), at); ok || err != nil {
			t.Errorf("%s: %v, %v", at, ok, err)
		}
		listed := slices.ContainsFunc(api.Actions(), func(a kubetesting.Action) bool { return a.Matches("list", "nodes") })
		if listed != want {
			t.Errorf("%s: the nodes were listed: %v", at, listed)
		}
	}
}

func TestWhatGoesWrongIsSaid(t *testing.T) {
	closed := httptest.NewServer(nil)
	port := strconv.Itoa(int(netip.MustParseAddrPort(closed.Listener.Addr().String()).Port()))
	closed.Close()

	t.Run("nobody listens", func(t *testing.T) {
		s, kubelets := kubelet(t, forwarding(t))
		conn, ok, err := through(t, podforward.New(podforward.Config{API: cluster(t, s), Pods: networks, Kubelets: kubelets}), "10.244.1.7:"+port)
		if !ok {
			t.Fatal(ok, err)
		}
		if err == nil { // the kubelet took the stream before it gave it up
			_, err = io.ReadAll(conn)
			if err := conn.Close(); err != nil {
				t.Error(err)
			}
		}
		if err == nil || !strings.Contains(err.Error(), "connection refused") {
			t.Errorf("connecting and reading end with %v", err)
		}
	})
	t.Run("the kubelet refuses", func(t *testing.T) {
		s, kubelets := kubelet(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "not you", http.StatusForbidden) })
		_, ok, err := through(t, podforward.New(podforward.Config{API: cluster(t, s), Pods: networks, Kubelets: kubelets}), "10.244.1.7:443")
		if !ok || err == nil || !strings.Contains(err.Error(), "pod shop/web through node n1") || !strings.Contains(err.Error(), "not you") {
			t.Errorf("%v, %v", ok, err)
		}
	})
	t.Run("the kubelet does not answer", func(t *testing.T) {
		asked, done := make(chan struct{}), make(chan struct{})
		s, kubelets := kubelet(t, func(http.ResponseWriter, *http.Request) { close(asked); <-done })
		t.Cleanup(func() { close(done) }) // before the server waits for its handlers
		ctx, cancel := context.WithCancel(t.Context())
		go func() { <-asked; cancel() }()
		_, ok, err := podforward.New(podforward.Config{API: cluster(t, s), Pods: networks, Kubelets: kubelets}).
			Through(ctx, "tcp", netip.MustParseAddrPort("10.244.1.7:443"))
		if !ok || err == nil {
			t.Errorf("%v, %v", ok, err)
		}
	})
	t.Run("UDP", func(t *testing.T) {
		s, kubelets := kubelet(t, func(http.ResponseWriter, *http.Request) { t.Error("the kubelet was asked") })
		_, ok, err := podforward.New(podforward.Config{API: cluster(t, s), Pods: networks, Kubelets: kubelets}).
			Through(t.Context(), "udp", netip.MustParseAddrPort("10.244.1.7:53"))
		if !ok || err == nil || !strings.Contains(err.Error(), "TCP only") {
			t.Errorf("%v, %v", ok, err)
		}
	})
}

func TestAConnectionHasDeadlines(t *testing.T) {
	s, kubelets := kubelet(t, forwarding(t))
	quiet, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer quiet.Close()
	port := strconv.Itoa(int(netip.MustParseAddrPort(quiet.Addr().String()).Port()))
	conn, ok, err := through(t, podforward.New(podforward.Config{API: cluster(t, s), Pods: networks, Kubelets: kubelets}), "10.244.1.7:"+port)
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
	defer conn.Close()
	if err := conn.SetReadDeadline(time.Now().Add(time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("reading ends with %v", err)
	}
}
