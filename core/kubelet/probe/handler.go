// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/wasmplane/wasmplane/core/dial"
	"github.com/wasmplane/wasmplane/core/kubelet/pod"
)

// maxOutput bounds what is kept of what a probe answers.
const maxOutput = 10 << 10

// Execer runs a command in a container.
type Execer interface {
	ExecSync(ctx context.Context, id string, cmd []string, timeoutSeconds int64) (stdout, stderr []byte, exitCode int32, err error)
}

// NewHandler runs probes and hooks for real: commands through exec, the others over the network.
func NewHandler(exec Execer) Handler { return &handler{exec: exec} }

type handler struct{ exec Execer }

func (h *handler) Probe(ctx context.Context, c Check) (Result, error) {
	switch p := c.Probe; {
	case p.Exec != nil:
		return h.execProbe(ctx, c)
	case p.HTTPGet != nil:
		return httpProbe(ctx, c)
	case p.TCPSocket != nil:
		return tcpProbe(ctx, c)
	case p.GRPC != nil:
		return grpcProbe(ctx, c)
	}
	return Result{}, fmt.Errorf("missing probe handler for %s:%s", pod.Format(c.Pod), c.Container.Name)
}

func (h *handler) execProbe(ctx context.Context, c Check) (Result, error) {
	limit := int64(max(c.Probe.TimeoutSeconds, 1))
	stdout, stderr, code, err := h.exec.ExecSync(ctx, c.ID, c.Probe.Exec.Command, limit)
	out := clip(string(stdout) + string(stderr))
	switch {
	case ctx.Err() != nil || status.Code(err) == codes.DeadlineExceeded:
		return Result{Output: fmt.Sprintf("command timed out: %q timed out after %ds", strings.Join(c.Probe.Exec.Command, " "), limit)}, nil //nolint:nilerr // time that has run out is a result: the probe failed
	case err != nil:
		return Result{}, err
	}
	return Result{OK: code == 0, Output: out}, nil
}

func clip(s string) string {
	if len(s) > maxOutput {
		return s[:maxOutput]
	}
	return s
}

// portOf resolves a port that is given by the name of one of the container's.
func portOf(p intstr.IntOrString, c *corev1.Container) (int, error) {
	if p.Type == intstr.Int {
		return valid(p.IntValue())
	}
	for _, cp := range c.Ports {
		if cp.Name == p.StrVal {
			return valid(int(cp.ContainerPort))
		}
	}
	n, err := strconv.Atoi(p.StrVal)
	if err != nil {
		return 0, fmt.Errorf("couldn't find port: %q", p.StrVal)
	}
	return valid(n)
}

func valid(n int) (int, error) {
	if n < 1 || n > 65535 {
		return 0, fmt.Errorf("invalid port number: %v", n)
	}
	return n, nil
}

func request(ctx context.Context, a *corev1.HTTPGetAction, c *corev1.Container, podIP, agent string) (*http.Request, error) {
	port, err := portOf(a.Port, c)
	if err != nil {
		return nil, err
	}
	host := a.Host
	if host == "" {
		host = podIP
	}
	u, err := url.Parse(a.Path)
	if err != nil {
		u = &url.URL{Path: a.Path}
	}
	u.Scheme, u.Host = strings.ToLower(string(a.Scheme)), net.JoinHostPort(host, strconv.Itoa(port))
	if u.Scheme == "" {
		u.Scheme = "http"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	req.Header.Set("User-Agent", agent)
	req.Header.Set("Accept", "*/*")
	req.Header.Set("Connection", "close")
	for _, hd := range a.HTTPHeaders {
		name := http.CanonicalHeaderKey(hd.Name)
		switch {
		case name == "Host":
			req.Host = hd.Value
		case (name == "User-Agent" || name == "Accept") && hd.Value == "":
			req.Header.Del(name)
		case name == "User-Agent" || name == "Accept":
			req.Header.Set(name, hd.Value)
		default:
			req.Header.Add(hd.Name, hd.Value)
		}
	}
	return req, nil
}

// do sends a request. Each has its own connection: a kept one would tell of an
// earlier time. Certificates are not checked: the address is the pod's own.
func do(req *http.Request, redirect func(*http.Request, []*http.Request) error) (*http.Response, func(), error) {
	tr := &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // a probe asks whether a container answers, not who it is
		DialContext:     dial.Operator(nil).Context(), DisableKeepAlives: true, DisableCompression: true, Proxy: nil,
	}
	resp, err := (&http.Client{Transport: tr, CheckRedirect: redirect}).Do(req)
	return resp, tr.CloseIdleConnections, err
}

func httpProbe(ctx context.Context, c Check) (Result, error) {
	req, err := request(ctx, c.Probe.HTTPGet, c.Container, c.PodIP, "kube-probe/1.37")
	if err != nil {
		return Result{}, err
	}
	resp, done, err := do(req, sameHost)
	if err != nil {
		return Result{Output: err.Error()}, nil // an answer, though not a good one
	}
	defer done()
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxOutput))
	if err != nil {
		return Result{Output: err.Error()}, nil
	}
	if resp.StatusCode >= http.StatusOK && resp.StatusCode < http.StatusBadRequest {
		if resp.StatusCode >= http.StatusMultipleChoices {
			return Result{OK: true, Warning: true, Output: fmt.Sprintf("Probe terminated redirects, Response body: %v", string(body))}, nil
		}
		return Result{OK: true, Output: string(body)}, nil
	}
	return Result{Output: fmt.Sprintf("HTTP probe failed with statuscode: %d", resp.StatusCode)}, nil
}

// sameHost follows redirects within the host that was asked: a container must
// not send its node's requests elsewhere.
func sameHost(req *http.Request, via []*http.Request) error {
	const most = 10
	if req.URL.Hostname() != via[0].URL.Hostname() {
		return http.ErrUseLastResponse
	}
	if len(via) >= most {
		return errors.New("stopped after 10 redirects")
	}
	return nil
}

func tcpProbe(ctx context.Context, c Check) (Result, error) {
	port, err := portOf(c.Probe.TCPSocket.Port, c.Container)
	if err != nil {
		return Result{}, err
	}
	host := c.Probe.TCPSocket.Host
	if host == "" {
		host = c.PodIP
	}
	conn, err := dial.Operator(nil).Context()(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return Result{Output: err.Error()}, nil //nolint:nilerr // an answer, though not a good one
	}
	_ = conn.Close()
	return Result{OK: true}, nil
}

func grpcProbe(ctx context.Context, c Check) (Result, error) {
	addr := net.JoinHostPort(c.PodIP, strconv.Itoa(int(c.Probe.GRPC.Port)))
	limit := time.Duration(max(c.Probe.TimeoutSeconds, 1)) * time.Second
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithUserAgent("kube-probe/1.37"))
	if err != nil {
		return Result{}, fmt.Errorf("prepare gRPC connection: %w", err)
	}
	defer conn.Close()
	service := ""
	if c.Probe.GRPC.Service != nil {
		service = *c.Probe.GRPC.Service
	}
	resp, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{Service: service}, grpc.WaitForReady(true))
	switch {
	case status.Code(err) == codes.Unimplemented:
		return Result{Output: "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): " + status.Convert(err).Message()}, nil
	case status.Code(err) == codes.DeadlineExceeded:
		return Result{Output: fmt.Sprintf("timeout: failed to connect service %q within %v: %v", addr, limit, ctx.Err())}, nil
	case err != nil:
		return Result{Output: fmt.Sprintf("error: health rpc probe failed: %v", err)}, nil
	case resp.GetStatus() != healthpb.HealthCheckResponse_SERVING:
		return Result{Output: fmt.Sprintf("service unhealthy (responded with %q)", resp.GetStatus().String())}, nil
	}
	return Result{OK: true, Output: "service healthy"}, nil
}

func (h *handler) Hook(ctx context.Context, k Hook) error {
	switch a := k.Handler; {
	case a.Exec != nil:
		stdout, stderr, code, err := h.exec.ExecSync(ctx, k.ID, a.Exec.Command, 0)
		if err != nil {
			return fmt.Errorf("exec %q: %w", strings.Join(a.Exec.Command, " "), err)
		}
		if code != 0 {
			return fmt.Errorf("command '%s' exited with %d: %s", strings.Join(a.Exec.Command, " "), code, clip(string(stdout)+string(stderr)))
		}
		return nil
	case a.HTTPGet != nil:
		return httpHook(ctx, k)
	case a.Sleep != nil:
		t := time.NewTimer(time.Duration(a.Sleep.Seconds) * time.Second)
		defer t.Stop()
		select {
		case <-ctx.Done():
			return fmt.Errorf("sleep of %d s was cut short: %w", a.Sleep.Seconds, ctx.Err())
		case <-t.C:
			return nil
		}
	}
	return fmt.Errorf("invalid handler: %v", k.Handler)
}

func httpHook(ctx context.Context, k Hook) error {
	req, err := request(ctx, k.Handler.HTTPGet, k.Container, k.PodIP, "kube-lifecycle/1.37")
	if err != nil {
		return err
	}
	resp, done, err := do(req, nil)
	if err != nil {
		return fmt.Errorf("get %s: %w", req.URL, err)
	}
	defer done()
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxOutput))
	if err != nil {
		return fmt.Errorf("read the answer of %s: %w", req.URL, err)
	}
	if resp.StatusCode < http.StatusOK || resp.StatusCode >= http.StatusBadRequest {
		return fmt.Errorf("HTTP hook %s answered %s: %s", req.URL, resp.Status, body)
	}
	return nil
}
