// SPDX-License-Identifier: Apache-2.0

package apiserver_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/client-go/util/exec"
	streamforward "k8s.io/cri-streaming/pkg/streaming/portforward"
	streaming "k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/klog/v2"

	"github.com/wasmplane/wasmplane/core/apiserver"
	"github.com/wasmplane/wasmplane/core/apiserver/apiservertest"
	"github.com/wasmplane/wasmplane/core/apiserver/tunnel"
	"github.com/wasmplane/wasmplane/core/auth/authz"
)

// node is a kubelet's server: the streaming library that container runtimes use.
type node struct{}

// ExecInContainer copies what comes in, says what it was called with, and ends
// with status 3 when asked to fail.
func (node) ExecInContainer(_ context.Context, pod, _, container string, cmd []string, in io.Reader, out, errOut io.WriteCloser, tty bool,
	resize <-chan streaming.TerminalSize, _ time.Duration,
) error {
	fmt.Fprintf(out, "%s %s %v\n", pod, container, cmd)
	if tty {
		size := <-resize
		fmt.Fprintf(out, "%dx%d\n", size.Width, size.Height)
	}
	if in != nil {
		if _, err := io.Copy(out, in); err != nil {
			return err
		}
	}
	if errOut != nil {
		fmt.Fprint(errOut, "complaint")
	}
	if len(cmd) > 0 && cmd[0] == "fail" {
		return exec.CodeExitError{Err: errors.New("it failed"), Code: 3}
	}
	return nil
}

// PortForward echoes.
func (node) PortForward(_ context.Context, _, _ string, _ int32, stream io.ReadWriteCloser) error {
	defer stream.Close()
	_, err := io.Copy(stream, stream)
	return err
}

func (n node) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	parts := strings.Split(strings.Trim(req.URL.Path, "/"), "/")
	switch parts[0] {
	case "containerLogs":
		if parts[2] == "silent" {
			http.Error(w, "no such log", http.StatusNotFound)
			return
		}
		fmt.Fprintf(w, "log of %s %s?%s\n", parts[2], parts[3], req.URL.RawQuery)
	case "exec":
		options, err := streaming.NewOptions(req)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if parts[2] == "elsewhere" {
			http.Redirect(w, req, "https://127.0.0.1:1/", http.StatusFound)
			return
		}
		streaming.ServeExec(w, req, n, parts[2], "", parts[3], req.URL.Query()["command"], options, time.Minute, 10*time.Second,
			streaming.SupportedStreamingProtocols)
	case "portForward":
		options, err := streamforward.NewV4Options(req)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		streamforward.ServePortForward(w, req, n, parts[2], "", options, time.Minute, 10*time.Second, streamforward.SupportedProtocols)
	default:
		fmt.Fprintf(w, "kubelet %s", req.URL.Path)
	}
}

func startNode(t *testing.T, c kubernetes.Interface, pods ...string) {
	t.Helper()
	startNodeWith(t, c, node{}, pods...)
}

func startNodeWith(t *testing.T, c kubernetes.Interface, answers http.Handler, pods ...string) {
	t.Helper()
	kubelet := httptest.NewTLSServer(answers)
	t.Cleanup(kubelet.Close)
	at, err := url.Parse(kubelet.URL)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(at.Port())
	if err != nil {
		t.Fatal(err)
	}
	n, err := c.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: at.Hostname()}}
	n.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(port)
	if _, err := c.CoreV1().Nodes().UpdateStatus(t.Context(), n, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, name := range pods {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       corev1.PodSpec{NodeName: "node", Containers: []corev1.Container{{Name: "main", Image: "x"}}},
		}
		if _, err := c.CoreV1().Pods("connect").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

func connectServer(t *testing.T, o apiservertest.Options) (*apiservertest.Server, *rest.Config, kubernetes.Interface) {
	t.Helper()
	o.Server = func(cfg *apiserver.Config) {
		lax := &tls.Config{InsecureSkipVerify: true} //nolint:gosec // the test's own server
		cfg.Kubelet = &tunnel.KubeletClient{TLS: func() *tls.Config { return lax }}
	}
	s := apiservertest.Start(t, o)
	cfg := s.Config("operator")
	c := kubernetes.NewForConfigOrDie(cfg)
	namespace(t, c, "connect")
	return s, cfg, c
}

func execURL(c kubernetes.Interface, pod string, o *corev1.PodExecOptions) *url.URL {
	return c.CoreV1().RESTClient().Post().Resource("pods").Namespace("connect").Name(pod).SubResource("exec").VersionedParams(o,
		scheme.ParameterCodec).URL()
}

// complaints looks, when the test's servers have ended, whether libraries logged ends of connections as errors.
func complaints(t *testing.T) {
	t.Helper()
	var log bytes.Buffer
	klog.SetSlogLogger(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelError})))
	t.Cleanup(func() {
		klog.ClearLogger()
		if strings.Contains(log.String(), "socket receive") {
			t.Errorf("commands that ended are logged as errors:\n%s", log.String())
		}
	})
}

// Commands run in containers over both protocols that clients speak, and their ends are no errors of the server's.
func TestExec(t *testing.T) {
	complaints(t)
	_, cfg, c := connectServer(t, apiservertest.Options{})
	startNode(t, c, "pod", "elsewhere")
	protocols := map[string]func(u *url.URL) (remotecommand.Executor, error){
		"SPDY": func(u *url.URL) (remotecommand.Executor, error) { return remotecommand.NewSPDYExecutor(cfg, "POST", u) },
		"WebSocket": func(u *url.URL) (remotecommand.Executor, error) {
			return remotecommand.NewWebSocketExecutor(cfg, "GET", u.String())
		},
	}
	for protocol, connect := range protocols {
		run := func(t *testing.T, pod string, o *corev1.PodExecOptions, s remotecommand.StreamOptions) error {
			t.Helper()
			e, err := connect(execURL(c, pod, o))
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			return e.StreamWithContext(ctx, s)
		}
		t.Run(protocol+"/streams", func(t *testing.T) {
			var out, errOut bytes.Buffer
			err := run(t, "pod", &corev1.PodExecOptions{Stdin: true, Stdout: true, Stderr: true, Command: []string{"cat", "-"}},
				remotecommand.StreamOptions{Stdin: strings.NewReader("hello"), Stdout: &out, Stderr: &errOut})
			if err != nil || out.String() != "pod main [cat -]\nhello" || errOut.String() != "complaint" {
				t.Errorf("got %v, %q, %q", err, out.String(), errOut.String())
			}
		})
		t.Run(protocol+"/exit code", func(t *testing.T) {
			var out bytes.Buffer
			err := run(t, "pod", &corev1.PodExecOptions{Stdout: true, Command: []string{"fail"}}, remotecommand.StreamOptions{Stdout: &out})
			var exit exec.CodeExitError
			if !errors.As(err, &exit) || exit.Code != 3 {
				t.Errorf("expected exit code 3, got %v", err)
			}
		})
		t.Run(protocol+"/terminal", func(t *testing.T) {
			var out bytes.Buffer
			err := run(t, "pod", &corev1.PodExecOptions{Stdout: true, TTY: true, Command: []string{"top"}},
				remotecommand.StreamOptions{Stdout: &out, Tty: true, TerminalSizeQueue: &sizes{remotecommand.TerminalSize{Width: 132, Height: 50}}})
			if err != nil || !strings.Contains(out.String(), "132x50") {
				t.Errorf("got %v, %q", err, out.String())
			}
		})
		t.Run(protocol+"/much", func(t *testing.T) {
			const size = 20 << 20
			var count counter
			err := run(t, "pod", &corev1.PodExecOptions{Stdin: true, Stdout: true, Command: []string{"cat"}},
				remotecommand.StreamOptions{Stdin: io.LimitReader(zeros{}, size), Stdout: &count})
			if err != nil || count.n < size {
				t.Errorf("got %v, %d bytes", err, count.n)
			}
		})
		t.Run(protocol+"/redirect", func(t *testing.T) {
			err := run(t, "elsewhere", &corev1.PodExecOptions{Stdout: true, Command: []string{"x"}}, remotecommand.StreamOptions{Stdout: io.Discard})
			if err == nil {
				t.Error("a redirect was followed")
			}
		})
		t.Run(protocol+"/wrong container", func(t *testing.T) {
			err := run(t, "pod", &corev1.PodExecOptions{Stdout: true, Container: "nope", Command: []string{"x"}},
				remotecommand.StreamOptions{Stdout: io.Discard})
			if err == nil || !strings.Contains(err.Error(), "container nope is not valid for pod pod") && !strings.Contains(err.Error(), "400") {
				t.Errorf("got %v", err)
			}
		})
	}
}

type sizes struct{ next remotecommand.TerminalSize }

func (s *sizes) Next() *remotecommand.TerminalSize {
	if s.next.Width == 0 {
		return nil
	}
	size := s.next
	s.next.Width = 0
	return &size
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

type counter struct{ n int }

func (c *counter) Write(p []byte) (int, error) { c.n += len(p); return len(p), nil }

// Whoever may only read pods must not run commands in them by a WebSocket's GET.
func TestExecByGetNeedsCreate(t *testing.T) {
	_, cfg, c := connectServer(t, apiservertest.Options{Authorizer: readers{}})
	startNode(t, c, "pod")
	reader := rest.CopyConfig(cfg)
	reader.BearerToken = "reader"
	u := execURL(c, "pod", &corev1.PodExecOptions{Stdout: true, Command: []string{"x"}})
	e, err := remotecommand.NewWebSocketExecutor(reader, "GET", u.String())
	if err != nil {
		t.Fatal(err)
	}
	if err := e.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: io.Discard}); err == nil {
		t.Error("a reader ran a command")
	}
}

// readers may read and nothing else, if that is what they are called.
type readers struct{}

func (readers) Name() string { return "readers" }

func (readers) Authorize(_ context.Context, a authz.Attributes) (authz.Decision, string, error) {
	if a.GetUser().GetName() == "reader" && !a.IsReadOnly() {
		return authorizer.DecisionNoOpinion, "", nil
	}
	return authorizer.DecisionAllow, "", nil
}

func TestLogs(t *testing.T) {
	_, cfg, c := connectServer(t, apiservertest.Options{})
	startNode(t, c, "pod", "silent")
	lines := int64(5)
	data, err := c.CoreV1().Pods("connect").GetLogs("pod", &corev1.PodLogOptions{TailLines: &lines, Timestamps: true}).DoRaw(t.Context())
	if err != nil || string(data) != "log of pod main?stream=All&tailLines=5&timestamps=true\n" {
		t.Errorf("got %v, %q", err, data)
	}
	if _, err := c.CoreV1().Pods("connect").GetLogs("silent", &corev1.PodLogOptions{}).DoRaw(t.Context()); !apierrors.IsNotFound(err) {
		t.Errorf("a log that is not there: got %v", err)
	}
	bad := int64(0)
	if _, err := c.CoreV1().Pods("connect").GetLogs("pod", &corev1.PodLogOptions{LimitBytes: &bad}).DoRaw(t.Context()); !apierrors.IsInvalid(
		err) {
		t.Errorf("no bytes at all: got %v", err)
	}
	if got := logOverWebSocket(t, cfg, "/api/v1/namespaces/connect/pods/pod/log"); got != "log of pod main?stream=All\n" {
		t.Errorf("over a WebSocket: %q", got)
	}
}

// logOverWebSocket reads a log as a browser does.
func logOverWebSocket(t *testing.T, cfg *rest.Config, path string) string {
	t.Helper()
	trust, err := rest.TLSConfigFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	dialer := websocket.Dialer{TLSClientConfig: trust, Subprotocols: []string{"binary.k8s.io"}}
	conn, answer, err := dialer.DialContext(t.Context(), strings.Replace(cfg.Host, "https:", "wss:", 1)+path,
		http.Header{"Authorization": {"Bearer " + cfg.BearerToken}})
	if err != nil {
		t.Fatalf("%v, answer %+v", err, answer)
	}
	defer func() { _ = conn.Close() }()
	_ = answer.Body.Close()
	var all strings.Builder
	for {
		_, message, err := conn.ReadMessage()
		if err != nil {
			return all.String() // the end of the log ends the connection
		}
		all.Write(message)
	}
}

func TestPortForward(t *testing.T) {
	_, cfg, c := connectServer(t, apiservertest.Options{})
	startNode(t, c, "pod")
	u := c.CoreV1().RESTClient().Post().Resource("pods").Namespace("connect").Name("pod").SubResource("portforward").URL()
	transport, upgrader, err := spdy.RoundTripperFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	tunnel, err := portforward.NewSPDYOverWebsocketDialer(u, cfg)
	if err != nil {
		t.Fatal(err)
	}
	for protocol, dialer := range map[string]interface {
		forwarder(t *testing.T, stop, ready chan struct{}) *portforward.PortForwarder
	}{
		"SPDY": forwarderFunc(func(t *testing.T, stop, ready chan struct{}) *portforward.PortForwarder {
			t.Helper()
			f, err := portforward.New(spdy.NewDialer(upgrader, &http.Client{Transport: transport}, "POST", u), []string{"0:80"}, stop, ready,
				io.Discard, io.Discard)
			if err != nil {
				t.Fatal(err)
			}
			return f
		}),
		"WebSocket": forwarderFunc(func(t *testing.T, stop, ready chan struct{}) *portforward.PortForwarder {
			t.Helper()
			f, err := portforward.New(tunnel, []string{"0:80"}, stop, ready, io.Discard, io.Discard)
			if err != nil {
				t.Fatal(err)
			}
			return f
		}),
	} {
		t.Run(protocol, func(t *testing.T) {
			stop, ready, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
			f := dialer.forwarder(t, stop, ready)
			go func() { done <- f.ForwardPorts() }()
			select {
			case <-ready:
			case err := <-done:
				t.Fatal(err)
			}
			ports, err := f.GetPorts()
			if err != nil {
				t.Fatal(err)
			}
			conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", ports[0].Local))
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprint(conn, "echo")
			echo := make([]byte, 4)
			if _, err := io.ReadFull(conn, echo); err != nil || string(echo) != "echo" {
				t.Errorf("got %v, %q", err, echo)
			}
			_ = conn.Close()
			close(stop)
			<-done
		})
	}
}

type forwarderFunc func(t *testing.T, stop, ready chan struct{}) *portforward.PortForwarder

func (f forwarderFunc) forwarder(t *testing.T, stop, ready chan struct{}) *portforward.PortForwarder {
	t.Helper()
	return f(t, stop, ready)
}

func TestProxy(t *testing.T) {
	_, _, c := connectServer(t, apiservertest.Options{})
	startNode(t, c, "pod")
	data, err := c.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes/node/proxy/stats/summary").DoRaw(t.Context())
	if err != nil || string(data) != "kubelet /stats/summary" {
		t.Errorf("got %v, %q", err, data)
	}
	// Not by way of a node's other ports onto the server's own machine.
	_, err = c.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes/node:22/proxy/").DoRaw(t.Context())
	if !apierrors.IsBadRequest(err) {
		t.Errorf("another port on loopback: got %v", err)
	}
	pod, err := c.CoreV1().Pods("connect").Get(t.Context(), "pod", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod.Status.PodIP, pod.Status.PodIPs = "127.0.0.1", []corev1.PodIP{{IP: "127.0.0.1"}}
	if _, err := c.CoreV1().Pods("connect").UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err = c.CoreV1().RESTClient().Get().AbsPath("/api/v1/namespaces/connect/pods/pod:8080/proxy/").DoRaw(t.Context())
	if !apierrors.IsBadRequest(err) {
		t.Errorf("a pod that says it is on loopback: got %v", err)
	}
}
