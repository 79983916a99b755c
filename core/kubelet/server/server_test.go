// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/diskusage"
	"github.com/wasmplane/wasmplane/core/kubelet/engine"
	"github.com/wasmplane/wasmplane/core/kubelet/podmetrics"
	"github.com/wasmplane/wasmplane/core/kubelet/server"
	"github.com/wasmplane/wasmplane/core/kubelet/volume"
	"github.com/wasmplane/wasmplane/core/zpages"
)

// runtime is the part of an engine that the server asks.
type runtime struct {
	engine.Engine
	url  string
	log  string
	mu   sync.Mutex
	exec *cri.ExecRequest
	// writing is told of a checkpoint, and has to be answered; nil: nobody waits for it.
	writing chan struct{}
}

func (r *runtime) Logs(context.Context, string) (io.ReadCloser, error) {
	return io.NopCloser(strings.NewReader(r.log)), nil
}

func (r *runtime) Exec(_ context.Context, req *cri.ExecRequest) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.exec = req
	return r.url, nil
}

func (r *runtime) ExecSync(_ context.Context, id string, cmd []string, _ int64) (stdout, stderr []byte, exit int32, err error) {
	return []byte(id + " " + strings.Join(cmd, " ")), nil, 0, nil
}

func (r *runtime) Ready(context.Context) error { return nil }

func (r *runtime) Stats(context.Context) ([]*cri.PodSandboxStats, error) {
	return []*cri.PodSandboxStats{{
		Attributes: &cri.PodSandboxAttributes{Id: "sb", Metadata: &cri.PodSandboxMetadata{Name: "p", Namespace: "ns", Uid: "u"}},
		Linux: &cri.LinuxPodSandboxStats{
			Cpu: &cri.CpuUsage{Timestamp: 1e9, UsageCoreNanoSeconds: &cri.UInt64Value{Value: 5e9}},
			Memory: &cri.MemoryUsage{
				UsageBytes: &cri.UInt64Value{Value: 43}, WorkingSetBytes: &cri.UInt64Value{Value: 42}, RssBytes: &cri.UInt64Value{Value: 41},
			},
			Process: &cri.ProcessUsage{ProcessCount: &cri.UInt64Value{Value: 6}},
			Containers: []*cri.ContainerStats{{
				Attributes: &cri.ContainerAttributes{Id: "id", Metadata: &cri.ContainerMetadata{Name: "c"}},
				Swap:       &cri.SwapUsage{Timestamp: 1e9, SwapUsageBytes: &cri.UInt64Value{Value: 30}, SwapAvailableBytes: &cri.UInt64Value{Value: 4}},
				WritableLayer: &cri.FilesystemUsage{
					Timestamp: 99e9, UsedBytes: &cri.UInt64Value{Value: 100}, InodesUsed: &cri.UInt64Value{Value: 5},
				},
			}},
		},
	}}, nil
}

type node struct {
	name string
	rt   *runtime
	pods []*corev1.Pod
	logs string
	// queries of logs are switched on.
	queries bool
	// checkpoints is their folder.
	checkpoints string
}

func (n *node) NodeName() string       { return n.name }
func (n *node) Pods() []*corev1.Pod    { return n.pods }
func (n *node) Runtime() engine.Engine { return n.rt }
func (n *node) Sandbox(types.UID) string {
	return "sandbox"
}

// ProbeMetrics say whose they are.
func (n *node) ProbeMetrics() prometheus.Gatherer {
	r := prometheus.NewRegistry()
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "prober_probe_total", Help: "of a test"}, []string{"node"})
	r.MustRegister(c)
	c.WithLabelValues(n.name).Inc()
	return r
}

// VolumeUsage is of a claim that a pod has twice, and of what is its own.
func (n *node) VolumeUsage(context.Context, types.UID) []volume.Measured {
	shared := diskusage.FileSystem{Bytes: 100, BytesUsed: 60, BytesFree: 40, Inodes: 9, InodesUsed: 2, InodesFree: 7}
	return []volume.Measured{
		{Name: "data", Claim: "shared", FileSystem: shared}, {Name: "own", FileSystem: diskusage.FileSystem{Bytes: 5}}, {Name: "same", Claim: "shared", FileSystem: shared},
	}
}

// Usage is known of n2's machine.
func (n *node) Usage(context.Context) (cpu uint64, memory *cri.MemoryUsage, ok bool) {
	return 7e9, &cri.MemoryUsage{
		UsageBytes: &cri.UInt64Value{Value: 99}, WorkingSetBytes: &cri.UInt64Value{Value: 77}, RssBytes: &cri.UInt64Value{Value: 55},
	}, n.name == "n2"
}

// Disk of n1 has been measured, of n2 not yet.
func (n *node) Disk(context.Context) (diskusage.FileSystem, *diskusage.Pods, bool) {
	fs := diskusage.FileSystem{Bytes: 1000, BytesFree: 700, BytesUsed: 300, Inodes: 50, InodesFree: 40, InodesUsed: 10}
	if n.name == "n2" {
		return fs, nil, true
	}
	return fs, &diskusage.Pods{
		At: time.Unix(100, 0), Logs: map[string]diskusage.Usage{"id": {Bytes: 20, Inodes: 2}},
		Volumes: map[types.UID]map[string]diskusage.Usage{"u": {"scratch": {Bytes: 7, Inodes: 3}}},
	}, true
}

func (n *node) Config() any { return map[string]string{"a": "b"} }
func (n *node) Exited(types.UID, string) <-chan struct{} {
	ch := make(chan struct{})
	close(ch)
	return ch
}

func (n *node) Pod(ns, name string, uid types.UID) *corev1.Pod {
	if name == "" {
		panic("a request that names no pod has all nodes of the server asked for one") // thousands of simulated ones share a server
	}
	for _, p := range n.pods {
		if p.Namespace == ns && p.Name == name && (uid == "" || uid == p.UID) {
			return p
		}
	}
	return nil
}

func aPod(name string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name + "-uid")}}
	p.Spec.Containers = []corev1.Container{{Name: "c"}, {Name: "waits"}}
	p.Status.Phase = corev1.PodRunning
	p.Status.ContainerStatuses = []corev1.ContainerStatus{
		{Name: "c", ContainerID: "x://id-" + name, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}},
		{Name: "waits", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}}},
	}
	return p
}

// users are known by a header, and may do what their name says: "USER: verb/subresource/node".
type users struct{}

func (users) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	switch u := r.Header.Get("User"); u {
	case "":
		return nil, false, nil
	case "broken":
		return nil, false, errors.New("who?")
	default:
		return &authenticator.Response{User: &user.DefaultInfo{Name: u}}, true, nil
	}
}

func may(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetUser().GetName() == "admin" || a.GetUser().GetName() == a.GetVerb()+"/"+a.GetSubresource()+"/"+a.GetName() {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "no rule", nil
}

type world struct {
	t    *testing.T
	url  string
	http *http.Client
	rt   *runtime
	n1   *node

	server *server.Server
}

// logs gives n1 a folder of its machine's logs.
func (w *world) logs(dir string) { w.n1.logs = dir }

func start(t *testing.T) *world {
	t.Helper()
	certs := httptest.NewUnstartedServer(nil)
	certs.StartTLS()
	defer certs.Close()
	pool := x509.NewCertPool()
	pool.AddCert(certs.Certificate())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, err := server.New(server.Config{
		Listener: l, TLS: &tls.Config{Certificates: certs.TLS.Certificates}, Authenticator: users{}, Authorizer: authorizer.AuthorizerFunc(may),
		Metrics: podmetrics.New().Gatherer(), BodyTimeout: 300 * time.Millisecond, SandboxImage: "pause:1",
		Flags: zpages.Flags{"log-level": "info"},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, ServerName: "example.com"}}
	t.Cleanup(func() {
		tr.CloseIdleConnections()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	w := &world{
		t: t, url: "https://" + l.Addr().String(), http: &http.Client{Transport: tr},
		server: s, rt: &runtime{log: "2026-01-02T03:04:05Z stdout F hello\n"},
	}
	w.n1 = &node{name: "n1", rt: w.rt, pods: []*corev1.Pod{aPod("p")}}
	s.Add(w.n1)
	q := aPod("q")
	q.Spec.Volumes = []corev1.Volume{{Name: "data"}, {Name: "own"}}
	s.Add(&node{name: "n2", rt: w.rt, pods: []*corev1.Pod{q}})
	return w
}

func (w *world) do(as, method, path string) (int, string) {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), method, w.url+path, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set("User", as)
	resp, err := w.http.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return resp.StatusCode, strings.TrimSpace(string(b))
}

func TestWhoMayWhat(t *testing.T) {
	w := start(t)
	for _, c := range []struct {
		as, method, path string
		code             int
	}{
		{"", "GET", "/healthz", 401},
		{"", "GET", "/no/such/thing", 401},
		{"broken", "GET", "/healthz", 401},
		{"nobody", "GET", "/healthz", 403},
		{"get/healthz/n1", "GET", "/healthz", 200},
		{"get/proxy/n1", "GET", "/healthz", 200},
		{"get/healthz/n1", "GET", "/pods", 403},
		{"get/pods/n1", "GET", "/pods", 200},
		{"get/stats/n2", "GET", "/stats/summary?node=n2", 200},
		{"get/stats/n1", "GET", "/stats/summary?node=n2", 403},
		{"get/metrics/n1", "GET", "/metrics/resource", 200},
		{"get/metrics/n1", "GET", "/metrics/probes", 200},
		{"get/stats/n1", "GET", "/metrics/probes", 403},
		{"get/configz/n1", "GET", "/configz", 200},
		{"get/proxy/n1", "GET", "/containerLogs/ns/p/c", 200},
		{"get/proxy/n1", "GET", "/containerLogs/ns/q/c", 403},
		{"get/proxy/n2", "GET", "/containerLogs/ns/q/c", 200},
		{"create/proxy/n1", "POST", "/run/ns/p/c?cmd=ls&cmd=-l", 200},
		{"get/proxy/n1", "POST", "/run/ns/p/c?cmd=ls", 403},
		{"admin", "GET", "/no/such/thing", 404},
		{"admin", "DELETE", "/pods", 404},
	} {
		if code, body := w.do(c.as, c.method, c.path); code != c.code {
			t.Errorf("%q %s %s: %d %s, want %d", c.as, c.method, c.path, code, body, c.code)
		}
	}
	if _, body := w.do("nobody", "GET", "/healthz"); body != "Forbidden (user=nobody, verb=get, resource=nodes, subresource(s)=[healthz])" {
		t.Errorf("%s", body)
	}
}

func TestAnswers(t *testing.T) {
	w := start(t)
	for _, c := range []struct {
		method, path string
		code         int
		want         string
	}{
		{"GET", "/containerLogs/ns/p/c", 200, "hello"},
		{"GET", "/containerLogs/ns/p/c?timestamps=true", 200, "2026-01-02T03:04:05.000000000Z hello"},
		{"GET", "/containerLogs/ns/p/c?limitBytes=2", 200, "he"},
		{"GET", "/containerLogs/ns/p/c?follow=true&tailLines=1", 200, "hello"},
		{"GET", "/containerLogs/ns/none/c", 404, `pod "none" does not exist`},
		{"GET", "/containerLogs/ns/p/none", 404, `container "none" not found in pod "p"`},
		{"GET", "/containerLogs/ns/p/waits", 400, `container "waits" in pod "p" is waiting to start: trying and failing to pull image`},
		{"GET", "/containerLogs/ns/p/c?previous=true", 400, `previous terminated container "c" in pod "p" not found`},
		{"GET", "/containerLogs/ns/p/c?tailLines=-1", 422, `invalid tailLines "-1": must be a number that is not negative`},
		{"GET", "/containerLogs/ns/p/c?stream=Both", 422, `invalid stream "Both": must be All, Stdout or Stderr`},
		{"POST", "/run/ns/p/p-uid/c?cmd=ls&cmd=-l", 200, "id-p ls -l"},
		{"POST", "/run/ns/p/wrong-uid/c?cmd=ls", 404, "pod does not exist"},
		{"POST", "/exec/ns/p/c?command=ls", 400, "you must specify at least 1 of stdin, stdout, stderr and ask for an upgrade of the connection"},
	} {
		if code, body := w.do("admin", c.method, c.path); code != c.code || body != c.want {
			t.Errorf("%s %s: %d %q, want %d %q", c.method, c.path, code, body, c.code, c.want)
		}
	}
	var list corev1.PodList
	_, body := w.do("admin", "GET", "/pods")
	if err := json.Unmarshal([]byte(body), &list); err != nil || len(list.Items) != 2 {
		t.Errorf("%s %v", body, err)
	}
	if _, body := w.do("admin", "GET", "/metrics/resource?node=n1"); !strings.Contains(body,
		`pod_cpu_usage_seconds_total{namespace="ns",pod="p"} 5 1000`) {
		t.Errorf("%s", body)
	}
	for _, want := range []string{
		"node_cpu_usage_seconds_total 5 1000\n", "node_memory_working_set_bytes 42 ", "resource_scrape_error 0",
		`container_swap_usage_bytes{container="c",namespace="ns",pod="p"} 30 1000`, `pod_swap_usage_bytes{namespace="ns",pod="p"} 30 1000`,
		`container_swap_limit_bytes{container="c",namespace="ns",pod="p"} 34 1000`,
		"# TYPE container_start_time_seconds gauge\n",
	} {
		if _, body := w.do("admin", "GET", "/metrics/resource?node=n1"); !strings.Contains(body, want) {
			t.Errorf("%q is not in %s", want, body)
		}
	}
	if _, body := w.do("admin", "GET", "/metrics/probes"); !strings.Contains(body, `prober_probe_total{node="n1"} 1`) ||
		!strings.Contains(body, `prober_probe_total{node="n2"} 1`) {
		t.Errorf("probes: %s", body)
	}
	if _, body := w.do("admin", "GET", "/metrics/probes?node=n2"); strings.Contains(body, `node="n1"`) {
		t.Errorf("probes of n2: %s", body)
	}
	for path, want := range map[string]string{
		"/metrics/resource?node=n2": "node_cpu_usage_seconds_total 7 ", "/stats/summary?node=n2": `"workingSetBytes":77`,
	} {
		if _, body := w.do("admin", "GET", path); !strings.Contains(body, want) {
			t.Errorf("%s of a machine: %q is not in %s", path, want, body)
		}
	}
	// What a pod takes of the disk is its containers' files and logs, and its volumes.
	const most = `"availableBytes":700,"capacityBytes":1000,"usedBytes":%d,"inodesFree":40,"inodes":50,"inodesUsed":%d`
	_, body = w.do("admin", "GET", "/stats/summary?node=n1")
	for _, want := range []string{
		`"fs":{"time":`, `"imageFs":{"time":`, fmt.Sprintf(most, 300, 10),
		`"rootfs":{"time":"1970-01-01T00:01:39Z",` + fmt.Sprintf(most, 100, 5),
		`"logs":{"time":"1970-01-01T00:01:40Z",` + fmt.Sprintf(most, 20, 2),
		fmt.Sprintf(most, 7, 3) + `,"name":"scratch"`,
		`"ephemeral-storage":{"time":"1970-01-01T00:01:40Z",` + fmt.Sprintf(most, 127, 10),
		`"process_stats":{"process_count":6}`,
		`"swap":{"time":"1970-01-01T00:00:01Z","swapAvailableBytes":4,"swapUsageBytes":30}`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("%s is not in %s", want, body)
		}
	}
	_, body = w.do("admin", "GET", "/stats/summary?node=n2")
	if !strings.Contains(body, `"rootfs"`) || strings.Contains(body, "ephemeral-storage") {
		t.Errorf("before it was measured: %s", body)
	}
	// Clients of the summary read these of every node without a look whether they are there.
	for node, want := range map[string]string{
		"n1": `"usageBytes":43,"workingSetBytes":42,"rssBytes":41`, "n2": `"usageBytes":99,"workingSetBytes":77,"rssBytes":55`,
	} {
		_, body := w.do("admin", "GET", "/stats/summary?node="+node)
		if of, _, _ := strings.Cut(body, `"pods":`); !strings.Contains(of, want) {
			t.Errorf("%s: %q is not in %s", node, want, of)
		}
	}
	if _, body := w.do("admin", "GET", "/stats/summary"); !strings.Contains(body, `"workingSetBytes":42`) {
		t.Errorf("%s", body)
	}
	_, body = w.do("admin", "GET", "/metrics")
	for metric, want := range map[string]int{
		`kubelet_running_pods{node="n2"}`: 1,
		`kubelet_node_name{node="n2"}`:    1,
		`kubelet_started_pods_total`:      0,
		`kubelet_volume_stats_capacity_bytes{namespace="ns",persistentvolumeclaim="shared"}`:  100,
		`kubelet_volume_stats_available_bytes{namespace="ns",persistentvolumeclaim="shared"}`: 40,
		`kubelet_volume_stats_used_bytes{namespace="ns",persistentvolumeclaim="shared"}`:      60,
		`kubelet_volume_stats_inodes{namespace="ns",persistentvolumeclaim="shared"}`:          9,
		`kubelet_volume_stats_inodes_used{namespace="ns",persistentvolumeclaim="shared"}`:     2,
		`kubelet_volume_stats_inodes_free{namespace="ns",persistentvolumeclaim="shared"}`:     7,
	} {
		if strings.Count(body+"\n", fmt.Sprintf("%s %d\n", metric, want)) != 1 {
			t.Errorf("%s %d is not once in %s", metric, want, body)
		}
	}
}

// echo is a streaming server that sends back what it gets.
func echo(t *testing.T) string {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			t.Error("credentials were passed on")
		}
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", r.Header.Get("Upgrade"))
		_, _ = io.Copy(conn, rw)
	}))
	t.Cleanup(srv.Close)
	return srv.URL + "/exec/token"
}

// 100 MB pass each way at once, and what comes back is what went in.
func TestStreamsPassThrough(t *testing.T) {
	w := start(t)
	w.rt.url = echo(t)
	conn, err := tls.Dial("tcp", strings.TrimPrefix(w.url, "https://"), w.http.Transport.(*http.Transport).TLSClientConfig)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST /exec/ns/p/c?command=cat&input=1&output=1 HTTP/1.1\r\nHost: x\r\nUser: admin\r\nAuthorization: Bearer secret\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n")
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%v %v", resp, err)
	}
	const size = 100 << 20
	sent, got := sha256.New(), sha256.New()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.CopyN(io.MultiWriter(conn, sent), rand.Reader, size)
	}()
	n, err := io.CopyN(got, r, size)
	if err != nil || n != size {
		t.Fatalf("%d bytes came back: %v", n, err)
	}
	<-done
	if string(sent.Sum(nil)) != string(got.Sum(nil)) {
		t.Error("what came back is not what went in")
	}
	w.rt.mu.Lock()
	defer w.rt.mu.Unlock()
	if e := w.rt.exec; e.ContainerId != "id-p" || !e.Stdin || !e.Stdout || e.Stderr || e.Tty || e.Cmd[0] != "cat" {
		t.Errorf("asked for %+v", e)
	}
}

// A runtime's streaming server that sends its client elsewhere is not followed.
func TestRedirectsAreNotFollowed(t *testing.T) {
	w := start(t)
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it was followed") }))
	defer elsewhere.Close()
	srv := httptest.NewServer(http.RedirectHandler(elsewhere.URL, http.StatusFound))
	defer srv.Close()
	w.rt.url = srv.URL
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url+"/exec/ns/p/c?command=cat&output=1", nil)
	req.Header.Set("User", "admin")
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "SPDY/3.1")
	w.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	resp, err := w.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusBadGateway || resp.Header.Get("Location") != "" {
		t.Errorf("%s, to %q", resp.Status, resp.Header.Get("Location"))
	}
}

// A body that never comes: whoever is refused must not hold the connection for as
// long as they like.
func TestARefusedRequestWhoseBodyNeverComesEnds(t *testing.T) {
	w := start(t)
	for _, as := range []string{"", "broken", "nobody"} {
		dialer := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // the test's own server
		conn, err := dialer.DialContext(t.Context(), "tcp", strings.TrimPrefix(w.url, "https://"))
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(time.Minute)) // which is what ended it
		if _, err := fmt.Fprintf(conn, "POST /run/ns/p/c?cmd=ls HTTP/1.1\r\nHost: x\r\nUser: %s\r\nContent-Length: 10\r\n\r\n", as); err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(conn) // to the end of the connection
		if err != nil {
			t.Errorf("%q: the connection is still there: %v", as, err)
		}
		if !strings.HasPrefix(string(answer), "HTTP/1.1 40") {
			t.Errorf("%q: answered %q", as, answer)
		}
		_ = conn.Close()
	}
}

// Real makes n1 a machine of its own; n2 is simulated.
func (n *node) Real() bool { return n.name == "n1" }

// TestWhatANodeReachesIsForWhoMayRunCommands in its pods.
func TestWhatANodeReachesIsForWhoMayRunCommands(t *testing.T) {
	w := start(t)
	post := func(as, query, body string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url+"/wasmplane/reach"+query, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("User", as)
		resp, err := w.http.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, strings.TrimSpace(string(b))
	}
	self := fmt.Sprintf(`[{"kind":"tcp","address":%q}]`, strings.TrimPrefix(w.url, "https://"))
	for name, c := range map[string]struct {
		as, query, body string
		code            int
		answer          string
	}{
		"who may run commands":       {"create/proxy/n1", "", self, http.StatusOK, `[{}]`},
		"who may read":               {"get/proxy/n1", "", self, http.StatusForbidden, "Forbidden"},
		"another node's right":       {"create/proxy/n2", "", self, http.StatusForbidden, "Forbidden"},
		"a simulated node":           {"create/proxy/n2", "?node=n2", self, http.StatusNotFound, "this node has no machine of its own"},
		"a name":                     {"admin", "", `[{"kind":"tcp","address":"example.com:80"}]`, http.StatusBadRequest, "expected IP:PORT"},
		"no list":                    {"admin", "", `{}`, http.StatusBadRequest, "the addresses to try"},
		"more than anybody asks for": {"admin", "", `[` + strings.Repeat(" ", 70<<10) + `]`, http.StatusBadRequest, "too large"},
	} {
		t.Run(name, func(t *testing.T) {
			if code, answer := post(c.as, c.query, c.body); code != c.code || !strings.Contains(answer, c.answer) {
				t.Errorf("%d %s; want %d %s", code, answer, c.code, c.answer)
			}
		})
	}
}

// TestPagesOfUpstream: each for whoever has upstream's right to it, or the right to all of the node.
func TestPagesOfUpstream(t *testing.T) {
	w := start(t)
	if code, body := w.do("get/healthz/n1", http.MethodGet, "/healthz"); code != http.StatusOK {
		t.Fatalf("healthz: %d %s", code, body)
	}
	for path, c := range map[string]struct{ right, other, want string }{
		"/statusz":      {"get/statusz/n1", "get/configz/n1", "kubelet statusz"},
		"/flagz":        {"get/configz/n1", "get/statusz/n1", "info"},
		"/metrics/slis": {"get/metrics/n1", "get/statusz/n1", `kubernetes_healthcheck{name="container-runtime",type="healthz"} 1`},
	} {
		for _, as := range []string{c.right, "get/proxy/n1"} {
			if code, body := w.do(as, http.MethodGet, path); code != http.StatusOK || !strings.Contains(body, c.want) {
				t.Errorf("%s as %s: %d %s", path, as, code, body)
			}
		}
		if code, _ := w.do(c.other, http.MethodGet, path); code != http.StatusForbidden {
			t.Errorf("%s as %s: %d", path, c.other, code)
		}
	}
	if _, body := w.do("admin", http.MethodGet, "/statusz"); !strings.Contains(body, "/stats") || !strings.Contains(body, "/flagz") {
		t.Errorf("paths: %s", body)
	}
	if code, _ := w.do("get/metrics/n1", http.MethodDelete, "/metrics/slis"); code != http.StatusForbidden {
		t.Errorf("reset by a reader: %d", code)
	}
	if code, _ := w.do("delete/metrics/n1", http.MethodDelete, "/metrics/slis"); code != http.StatusOK {
		t.Errorf("reset: %d", code)
	}
	if _, body := w.do("admin", http.MethodGet, "/metrics/slis"); strings.Contains(body, "kubernetes_healthcheck{") {
		t.Errorf("reset, there is %s", body)
	}
}
