package upstream

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/wasmplane/wasmplane/core/pki"
	"github.com/wasmplane/wasmplane/test/internal/harness"
)

// side is one of the two that are compared.
type side struct {
	name string
	url  string
	tls  *tls.Config
	pids []int // of everything that it consists of
	// ready is how long its processes took from the command to the first "ok" of /readyz.
	ready time.Duration
	again atomic.Int64 // requests that it answered 429
}

// process runs a command until the benchmark ends.
func process(tb testing.TB, dir, name string, args ...string) int {
	tb.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	return harness.Run(tb, cmd).PID()
}

func freePort(tb testing.TB) string {
	tb.Helper()
	address, err := harness.FreeAddress()
	if err != nil {
		tb.Fatal(err)
	}
	return address[strings.LastIndexByte(address, ':')+1:]
}

func binary(tb testing.TB, variable string) string {
	tb.Helper()
	path := os.Getenv(variable)
	if path == "" {
		tb.Fatalf("%s names no binary: run `make bench-api`, which builds what is compared", variable)
	}
	return path
}

// ours starts `wasmplane apiserver` on an empty data directory.
func ours(tb testing.TB) *side {
	tb.Helper()
	bin, dir := binary(tb, "WASMPLANE_BIN"), tb.TempDir()
	address := "127.0.0.1:" + freePort(tb)
	data := filepath.Join(dir, "data")
	began := time.Now()
	pid := process(tb, dir, bin, "apiserver", "--data-dir", data, "--listen", address, "--log-level", "warn")
	kubeconfig := filepath.Join(data, "kubeconfig")
	awaitFile(tb, kubeconfig)
	s := &side{name: "wasmplane", url: "https://" + address, pids: []int{pid}}
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		tb.Fatal(err)
	}
	s.tls = clientTLS(tb, cfg.CAData, cfg.CertData, cfg.KeyData)
	s.awaitReady(tb, began)
	return s
}

// theirs starts etcd and kube-apiserver.
func theirs(tb testing.TB) *side {
	tb.Helper()
	apiserver, etcd, dir := binary(tb, "KUBE_APISERVER_BIN"), binary(tb, "ETCD_BIN"), tb.TempDir()
	authority, err := pki.Open(pki.Config{Dir: filepath.Join(dir, "pki"), Hosts: []string{"127.0.0.1"}})
	if err != nil {
		tb.Fatal(err)
	}
	serving, err := authority.APIServer()
	if err != nil {
		tb.Fatal(err)
	}
	etcdURL, peerURL, port := "http://127.0.0.1:"+freePort(tb), "http://127.0.0.1:"+freePort(tb), freePort(tb)
	began := time.Now()
	etcdPID := process(tb, dir, etcd, "--data-dir", filepath.Join(dir, "etcd"), "--listen-client-urls", etcdURL, "--advertise-client-urls", etcdURL,
		"--listen-peer-urls", peerURL, "--initial-advertise-peer-urls", peerURL, "--initial-cluster", "default="+peerURL, "--log-level", "error")
	key := filepath.Join(dir, "pki", "sa.key")
	pid := process(tb, dir, apiserver, "--etcd-servers", etcdURL, "--secure-port", port, "--bind-address", "127.0.0.1",
		"--tls-cert-file", serving.File(), "--tls-private-key-file", serving.File(), "--client-ca-file", authority.CAFile(),
		"--service-account-issuer", "https://bench", "--service-account-key-file", key, "--service-account-signing-key-file", key,
		"--service-cluster-ip-range", "10.96.0.0/16", "--authorization-mode", "RBAC")
	s := &side{name: "upstream", url: "https://127.0.0.1:" + port, pids: []int{pid, etcdPID}, tls: identity(tb, authority, pki.BreakGlass())}
	s.awaitReady(tb, began)
	// The measured clients are who they are on our side: somebody whom RBAC lets do everything.
	c := s.client()
	defer c.CloseIdleConnections()
	s.must(tb.Context(), tb, c, http.MethodPost, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", fmt.Sprintf(
		`{"metadata":{"name":"admins"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},
		"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"Group","name":%q}]}`, pki.Admin().Groups[0]))
	s.tls = identity(tb, authority, pki.Admin())
	return s
}

func identity(tb testing.TB, authority *pki.Authority, who pki.Identity) *tls.Config {
	tb.Helper()
	pair, err := authority.Client(who)
	if err != nil {
		tb.Fatal(err)
	}
	key, err := pair.KeyPEM()
	if err != nil {
		tb.Fatal(err)
	}
	return clientTLS(tb, authority.CAPEM(), pair.CertPEM(), key)
}

func clientTLS(tb testing.TB, ca, cert, key []byte) *tls.Config {
	tb.Helper()
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		tb.Fatal(err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		tb.Fatal("no certificate of an authority")
	}
	return &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
}

func awaitFile(tb testing.TB, file string) {
	tb.Helper()
	until(tb, file+" to be written", func() error { _, err := os.Stat(file); return err })
}

// until polls, closely, for the start of another process is what is measured.
func until(tb testing.TB, what string, check func() error) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), 3*time.Minute)
	defer cancel()
	if err := harness.Poll(ctx, 5*time.Millisecond, check); err != nil {
		tb.Fatalf("gave up waiting for %s: %v", what, err)
	}
}

func (s *side) awaitReady(tb testing.TB, began time.Time) {
	tb.Helper()
	c := s.client()
	until(tb, s.name+" to be ready", func() error {
		resp, err := c.Get(s.url + "/readyz")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		_, _ = io.Copy(io.Discard, resp.Body)
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("it answers %s", resp.Status)
		}
		return nil
	})
	s.ready = time.Since(began)
}

// client has one connection of its own.
func (s *side) client() *http.Client {
	return &http.Client{Transport: &http.Transport{
		TLSClientConfig: s.tls.Clone(), ForceAttemptHTTP2: true, DisableCompression: true, MaxIdleConnsPerHost: 1,
	}}
}

// cpu is the processor time that the side has taken so far.
func (s *side) cpu(tb testing.TB) time.Duration {
	tb.Helper()
	var sum time.Duration
	for _, pid := range s.pids {
		data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
		if err != nil {
			tb.Fatal(err)
		}
		// The command's name may have spaces; fields are counted behind it.
		f := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
		for _, ticks := range f[11:13] {
			n, err := strconv.ParseInt(ticks, 10, 64)
			if err != nil {
				tb.Fatal(err)
			}
			sum += time.Duration(n) * 10 * time.Millisecond // USER_HZ is 100 on every platform of Go's
		}
	}
	return sum
}

// memory is the resident memory of the side, in bytes.
func (s *side) memory(tb testing.TB) int64 {
	tb.Helper()
	var sum int64
	for _, pid := range s.pids {
		data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
		if err != nil {
			tb.Fatal(err)
		}
		_, after, ok := strings.Cut(string(data), "VmRSS:")
		if !ok {
			tb.Fatalf("/proc/%d/status has no VmRSS", pid)
		}
		kb, err := strconv.ParseInt(strings.Fields(after)[0], 10, 64)
		if err != nil {
			tb.Fatal(err)
		}
		sum += kb << 10
	}
	return sum
}

// must sends a request that has to be answered well.
func (s *side) must(ctx context.Context, tb testing.TB, c *http.Client, method, path, body string) {
	tb.Helper()
	if err := s.send(ctx, c, method, path, "application/json", body); err != nil {
		tb.Fatal(err)
	}
}

// send sends a request and reads the answer to its end.
func (s *side) send(ctx context.Context, c *http.Client, method, path, mediaType, body string) error {
	resp, err := s.request(ctx, c, method, path, mediaType, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

// patience is how often a request is sent to a server that says it is busy.
const patience = 300

// request sends a request until it is answered other than by 429: a hundred
// watches that one user begins at once are more than fairness lets in, on both
// sides. An answer that is an error is one.
func (s *side) request(ctx context.Context, c *http.Client, method, path, mediaType, body string) (*http.Response, error) {
	for attempt := 1; ; attempt++ {
		resp, err := s.once(ctx, c, method, path, mediaType, body)
		if err != nil {
			return nil, err
		}
		if resp.StatusCode < 300 {
			return resp, nil
		}
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusTooManyRequests || attempt == patience {
			return nil, fmt.Errorf("%s: %s %s answered %d: %s", s.name, method, path, resp.StatusCode, text)
		}
		s.again.Add(1)
		timer := time.NewTimer(100 * time.Millisecond)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, ctx.Err()
		}
	}
}

func (s *side) once(ctx context.Context, c *http.Client, method, path, mediaType, body string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, s.url+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	switch method {
	case http.MethodGet:
		req.Header.Set("Accept", mediaType)
	default:
		req.Header.Set("Content-Type", mediaType)
	}
	return c.Do(req)
}
