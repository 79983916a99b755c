// SPDX-License-Identifier: Apache-2.0

package probe_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/wasmplane/wasmplane/core/kubelet/pod"
	"github.com/wasmplane/wasmplane/core/kubelet/probe"
)

// answers is a Handler that answers as told, and notes when it was asked.
type answers struct {
	mu    sync.Mutex
	begun time.Time
	asked map[pod.Probe][]time.Duration
	ok    func(kind pod.Probe, n int) bool
	takes time.Duration
}

func (a *answers) Probe(ctx context.Context, c probe.Check) (probe.Result, error) {
	a.mu.Lock()
	a.asked[c.Kind] = append(a.asked[c.Kind], time.Since(a.begun))
	n := len(a.asked[c.Kind])
	a.mu.Unlock()
	if a.takes > 0 {
		select {
		case <-ctx.Done():
			return probe.Result{}, ctx.Err()
		case <-time.After(a.takes):
		}
	}
	return probe.Result{OK: a.ok(c.Kind, n), Output: "said so"}, nil
}

func (a *answers) Hook(context.Context, probe.Hook) error { return nil }

// story runs probes of one container for a while in a bubble, and answers the
// verdicts, each with when it fell.
func story(t *testing.T, a *answers, c corev1.Container, d time.Duration, startup bool) (verdicts, told []string) {
	t.Helper()
	a.asked = map[pod.Probe][]time.Duration{}
	var mu sync.Mutex
	synctest.Test(t, func(t *testing.T) {
		a.begun = time.Now()
		p := &corev1.Pod{}
		p.UID = "uid"
		target := pod.Target{Spec: &c, ID: "c1", Started: time.Now(), StartupDone: !startup}
		var m *probe.Manager
		m = probe.NewManager(a, func(_ types.UID, v pod.Probed) {
			mu.Lock()
			verdicts = append(verdicts, fmt.Sprintf("%v %v at %v", v.Probe, v.Success, time.Since(a.begun)))
			mu.Unlock()
			if v.Probe == pod.Startup && v.Success {
				target.StartupDone = true
				m.Set(p, "1.2.3.4", []pod.Target{target})
			}
		}, func(_ *corev1.Pod, _ *corev1.Container, _, reason, msg string) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, reason+": "+msg)
		}, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = m.Run(ctx) }()
		m.Set(p, "1.2.3.4", []pod.Target{target})
		time.Sleep(d)
		synctest.Wait()
		m.Set(p, "", nil)
		cancel()
		<-done
	})
	return verdicts, told
}

func spec(delay, period, success, failure int32) *corev1.Probe {
	return &corev1.Probe{
		InitialDelaySeconds: delay, PeriodSeconds: period, SuccessThreshold: success, FailureThreshold: failure,
		TimeoutSeconds: 1,
	}
}

func TestThresholdsAndPeriods(t *testing.T) {
	a := &answers{ok: func(_ pod.Probe, n int) bool { return n <= 2 || n >= 6 }}
	verdicts, told := story(t, a, corev1.Container{Name: "c", ReadinessProbe: spec(5, 10, 2, 3)}, 100*time.Second, false)
	want := []string{"Readiness true at 15s", "Readiness false at 45s", "Readiness true at 1m5s"}
	if strings.Join(verdicts, ", ") != strings.Join(want, ", ") {
		t.Errorf("verdicts %q, want %q", verdicts, want)
	}
	if len(told) != 3 || told[0] != "Unhealthy: Readiness probe failed: said so" {
		t.Errorf("told %q", told)
	}
}

func TestLivenessIsSaidOnce(t *testing.T) {
	a := &answers{ok: func(pod.Probe, int) bool { return false }}
	verdicts, _ := story(t, a, corev1.Container{Name: "c", LivenessProbe: spec(0, 1, 1, 3)}, time.Minute, false)
	if len(verdicts) != 1 || verdicts[0] != "Liveness false at 2s" || len(a.asked[pod.Liveness]) != 3 {
		t.Errorf("verdicts %q, asked %v", verdicts, a.asked)
	}
}

func TestStartupHoldsTheOthersBack(t *testing.T) {
	a := &answers{ok: func(k pod.Probe, n int) bool { return k != pod.Startup || n >= 4 }}
	c := corev1.Container{Name: "c", StartupProbe: spec(0, 5, 1, 30), LivenessProbe: spec(0, 5, 1, 3), ReadinessProbe: spec(0, 5, 1, 3)}
	verdicts, _ := story(t, a, c, 30*time.Second, true)
	if len(verdicts) < 2 || verdicts[0] != "Startup true at 15s" {
		t.Errorf("verdicts %q", verdicts)
	}
	if first := a.asked[pod.Liveness][0]; first < 15*time.Second {
		t.Errorf("the liveness probe ran at %v", first)
	}
	if n := len(a.asked[pod.Startup]); n != 4 {
		t.Errorf("the startup probe ran %d times", n)
	}
}

func TestSlowProbesTimeOutAndDoNotPileUp(t *testing.T) {
	a := &answers{ok: func(pod.Probe, int) bool { return true }, takes: 10 * time.Second}
	verdicts, told := story(t, a, corev1.Container{Name: "c", LivenessProbe: spec(0, 1, 1, 2)}, 20*time.Second, false)
	if len(verdicts) != 1 || !strings.HasPrefix(verdicts[0], "Liveness false") {
		t.Errorf("verdicts %q", verdicts)
	}
	if len(told) == 0 || !strings.HasPrefix(told[0], "Unhealthy: Liveness probe errored and resulted in failure state: context deadline exceeded") {
		t.Errorf("told %q", told)
	}
}

type execer struct {
	code int32
	err  error
}

func (e execer) ExecSync(context.Context, string, []string, int64) (stdout, stderr []byte, exit int32, err error) {
	return []byte("out"), []byte("err"), e.code, e.err
}

func check(t *testing.T, h corev1.ProbeHandler, ex execer, c *corev1.Container) (probe.Result, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if c == nil {
		c = &corev1.Container{Name: "c"}
	}
	return probe.NewHandler(ex).Probe(ctx,
		probe.Check{Pod: &corev1.Pod{}, Container: c, PodIP: "127.0.0.1", Probe: &corev1.Probe{TimeoutSeconds: 2, ProbeHandler: h}})
}

func TestExecProbe(t *testing.T) {
	h := corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"x"}}}
	if r, err := check(t, h, execer{}, nil); err != nil || !r.OK {
		t.Errorf("%+v %v", r, err)
	}
	if r, err := check(t, h, execer{code: 1}, nil); err != nil || r.OK || r.Output != "outerr" {
		t.Errorf("%+v %v", r, err)
	}
	if _, err := check(t, h, execer{err: errors.New("no container")}, nil); err == nil {
		t.Error("no error")
	}
}

func TestHTTPProbe(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the probe went elsewhere") }))
	defer elsewhere.Close()
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/ok":
			if r.Host != "named" || r.Header.Get("X") != "y" || !strings.HasPrefix(r.UserAgent(), "kube-probe/") || r.URL.RawQuery != "a=b" {
				t.Errorf("request %v %v", r.Host, r.Header)
			}
		case "/here":
			http.Redirect(w, r, "/ok?a=b", http.StatusFound)
		case "/away":
			http.Redirect(w, r, strings.Replace(elsewhere.URL, "127.0.0.1", "localhost", 1), http.StatusFound)
		default:
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer srv.Close()
	_, port, _ := net.SplitHostPort(srv.Listener.Addr().String())
	n, _ := strconv.Atoi(port)
	c := &corev1.Container{Name: "c", Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: int32(n)}}}
	get := func(path string, p intstr.IntOrString) (probe.Result, error) {
		return check(t, corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
			Path: path, Port: p, Scheme: corev1.URISchemeHTTPS,
			HTTPHeaders: []corev1.HTTPHeader{{Name: "Host", Value: "named"}, {Name: "X", Value: "y"}},
		}}, execer{}, c)
	}
	for _, tc := range []struct {
		path   string
		port   intstr.IntOrString
		ok     bool
		output string
	}{
		{"/ok?a=b", intstr.FromString("web"), true, ""},
		{"/away", intstr.FromInt(n), true, "Probe terminated redirects"},
		{"/bad", intstr.FromInt(n), false, "HTTP probe failed with statuscode: 503"},
		{"/ok", intstr.FromInt(1), false, "connection refused"},
	} {
		if r, err := get(tc.path, tc.port); err != nil || r.OK != tc.ok || !strings.Contains(r.Output, tc.output) {
			t.Errorf("%s: %+v %v", tc.path, r, err)
		}
	}
	if _, err := get("/ok", intstr.FromString("none")); err == nil || !strings.Contains(err.Error(), "none") {
		t.Errorf("a port that has no such name: %v", err)
	}
}

func TestTCPAndGRPCProbes(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	srv, hs := grpc.NewServer(), health.NewServer()
	healthpb.RegisterHealthServer(srv, hs)
	go func() { _ = srv.Serve(l) }()
	defer srv.Stop()
	if r, err := check(t, corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt(port)}}, execer{}, nil); err != nil ||
		!r.OK {
		t.Errorf("%+v %v", r, err)
	}
	g := corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: int32(port)}}
	if r, err := check(t, g, execer{}, nil); err != nil || !r.OK {
		t.Errorf("%+v %v", r, err)
	}
	hs.SetServingStatus("", healthpb.HealthCheckResponse_NOT_SERVING)
	if r, err := check(t, g, execer{}, nil); err != nil || r.OK || r.Output != `service unhealthy (responded with "NOT_SERVING")` {
		t.Errorf("%+v %v", r, err)
	}
	if r, err := check(t, corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt(1)}}, execer{}, nil); err != nil ||
		r.OK {
		t.Errorf("%+v %v", r, err)
	}
}

func TestHooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := probe.NewHandler(execer{code: 3})
		began := time.Now()
		if err := h.Hook(t.Context(), probe.Hook{Handler: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 7}}}); err != nil ||
			time.Since(began) != 7*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		if err := h.Hook(t.Context(),
			probe.Hook{Handler: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"a", "b"}}}}); err == nil ||
			!strings.HasPrefix(err.Error(), "command 'a b' exited with 3: ") {
			t.Errorf("%v", err)
		}
	})
}

// A pod's author names the host that is probed, and reads in the events what it answered:
// the metadata service of the machine, which knows its credentials, is none.
func TestProbesReachNoMetadataService(t *testing.T) {
	for _, host := range []string{"169.254.169.254", "::ffff:169.254.169.254", "fd00:ec2::254"} {
		for _, h := range []corev1.ProbeHandler{
			{HTTPGet: &corev1.HTTPGetAction{Host: host, Port: intstr.FromInt(80)}},
			{TCPSocket: &corev1.TCPSocketAction{Host: host, Port: intstr.FromInt(80)}},
		} {
			if r, err := check(t, h, execer{}, nil); err != nil || r.OK || !strings.Contains(r.Output, "metadata service") {
				t.Errorf("%s: %+v, %v", host, r, err)
			}
		}
	}
}
