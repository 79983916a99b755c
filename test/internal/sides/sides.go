// SPDX-License-Identifier: Apache-2.0

// Package sides starts the two API servers that tests compare: ours, and
// upstream's kube-apiserver with an etcd of its own. Both serve over TLS, on a
// port and in a directory that end with the test, and both let the same person
// do everything by RBAC. No controller and no scheduler runs on either.
//
// Variables of the environment name the binaries; the makefile's targets set them:
//
//	WASMPLANE_BIN       ours
//	KUBE_APISERVER_BIN  upstream's
//	KUBE_SCHEDULER_BIN  upstream's
//	ETCD_BIN            etcd, in the version that ours has inside
package sides

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/wasmplane/wasmplane/core/pki"
	"github.com/wasmplane/wasmplane/core/pki/kubeconfig"
	"github.com/wasmplane/wasmplane/test/internal/harness"
)

// Side is one of the two.
type Side struct {
	// Name is how reports call it. URL has no slash at its end. TLS is the
	// administrator's.
	Name, URL string
	TLS       *tls.Config
	// Kubeconfig is a file with the administrator's.
	Kubeconfig string
	// PIDs are of everything that it consists of.
	PIDs []int
	// Ready is how long its processes took from the command to the first "ok" of
	// /readyz.
	Ready time.Duration
}

// Ours starts `wasmplane apiserver` on an empty data directory, with further flags.
func Ours(tb testing.TB, flags ...string) *Side {
	tb.Helper()
	bin, dir := harness.Binary(tb), tb.TempDir()
	address := "127.0.0.1:" + freePort(tb)
	data := filepath.Join(dir, "data")
	began := time.Now()
	pid := process(tb, dir, bin, append([]string{"apiserver", "--data-dir", data, "--listen", address, "--log-level", "warn"}, flags...)...)
	kubeconfig := filepath.Join(data, "kubeconfig")
	AwaitFile(tb, kubeconfig)
	s := &Side{Name: "wasmplane", URL: "https://" + address, Kubeconfig: kubeconfig, PIDs: []int{pid}}
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		tb.Fatal(err)
	}
	s.TLS = clientTLS(tb, cfg.CAData, cfg.CertData, cfg.KeyData)
	s.awaitReady(tb, began)
	return s
}

// Theirs starts etcd and kube-apiserver, with further flags of the latter.
func Theirs(tb testing.TB, flags ...string) *Side {
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
	etcdPID := process(tb, dir, etcd, "--data-dir", filepath.Join(dir, "etcd"), "--listen-client-urls", etcdURL, "--advertise-client-urls",
		etcdURL,
		"--listen-peer-urls", peerURL, "--initial-advertise-peer-urls", peerURL, "--initial-cluster", "default="+peerURL, "--log-level", "error")
	key := filepath.Join(dir, "pki", "sa.key")
	pid := process(tb, dir, apiserver, append([]string{
		"--etcd-servers", etcdURL, "--secure-port", port, "--bind-address", "127.0.0.1",
		"--tls-cert-file", serving.File(), "--tls-private-key-file", serving.File(), "--client-ca-file", authority.CAFile(),
		"--service-account-issuer", Issuer, "--service-account-key-file", key, "--service-account-signing-key-file", key,
		"--service-cluster-ip-range", "10.96.0.0/16",
	}, flags...)...)
	s := &Side{Name: "upstream", URL: "https://127.0.0.1:" + port, PIDs: []int{pid, etcdPID}, TLS: identity(tb, authority, pki.BreakGlass())}
	s.awaitReady(tb, began)
	s.bindAdmins(tb)
	s.TLS, s.Kubeconfig = identity(tb, authority, pki.Admin()), filepath.Join(dir, "kubeconfig")
	config, err := kubeconfig.Of(authority, "upstream", s.URL, pki.Admin())
	if err == nil {
		err = kubeconfig.Write(s.Kubeconfig, config)
	}
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// Issuer is that of our own service account tokens by default.
const Issuer = "https://kubernetes.default.svc.cluster.local"

// bindAdmins makes the administrators on upstream's side what they are on ours:
// people whom RBAC lets do everything.
func (s *Side) bindAdmins(tb testing.TB) {
	tb.Helper()
	c := s.Client()
	defer c.CloseIdleConnections()
	body := fmt.Sprintf(`{"metadata":{"name":"admins"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},
		"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"Group","name":%q}]}`, pki.Admin().Groups[0])
	req, err := http.NewRequestWithContext(tb.Context(), http.MethodPost, s.URL+"/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
		strings.NewReader(body))
	if err != nil {
		tb.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.Do(req)
	if err != nil {
		tb.Fatal(err)
	}
	defer resp.Body.Close()
	if text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10)); resp.StatusCode != http.StatusCreated {
		tb.Fatalf("binding the administrators was answered %s: %s", resp.Status, text)
	}
}

// Scheduler is how a scheduler is started.
type Scheduler struct {
	// Upstreams: it is upstream's.
	Upstreams bool
	// Flags of upstream's alone.
	Flags []string
	// Without names a plugin that is switched off.
	Without string
	// Plugins is a list in YAML of plugins of our configuration; files are relative to Dir.
	Plugins, Dir string
}

// Schedule starts a scheduler beside the server that may send as many requests as it likes. It
// answers where the scheduler serves its metrics.
func (s *Side) Schedule(tb testing.TB, as Scheduler) string {
	tb.Helper()
	dir, port := tb.TempDir(), freePort(tb)
	if as.Dir != "" {
		dir = as.Dir
	}
	profiles := ""
	if as.Without != "" {
		profiles = fmt.Sprintf("profiles: [{schedulerName: default-scheduler, plugins: {multiPoint: {disabled: [{name: %s}]}}}]\n", as.Without)
	}
	bin, file := harness.Binary(tb), filepath.Join(dir, "scheduler.yaml")
	config := fmt.Sprintf("apiVersion: wasmplane.dev/v1alpha1\nkind: Configuration\nscheduler: {serving: {listen: '127.0.0.1:%s'}}\n", port)
	if profiles != "" {
		config = strings.Replace(config, "}}", "}, configFile: profiles.yaml}", 1)
		ours := "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n" + profiles
		if err := os.WriteFile(filepath.Join(dir, "profiles.yaml"), []byte(ours), 0o600); err != nil {
			tb.Fatal(err)
		}
	}
	if as.Plugins != "" {
		config += "plugins: " + as.Plugins + "\n"
	}
	args := []string{
		"scheduler", "--data-dir", filepath.Join(dir, "data"), "--kubeconfig", s.Kubeconfig, "--config", file, "--log-level", "warn",
	}
	if as.Upstreams {
		bin = binary(tb, "KUBE_SCHEDULER_BIN")
		config = fmt.Sprintf("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"+
			"leaderElection: {leaderElect: false}\nclientConnection: {kubeconfig: %q, qps: 5000, burst: 5000}\n%s", s.Kubeconfig, profiles)
		args = append([]string{
			"--config", file, "--bind-address", "127.0.0.1", "--secure-port", port, "--authentication-kubeconfig", s.Kubeconfig,
			"--authorization-kubeconfig", s.Kubeconfig,
		}, as.Flags...)
	}
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		tb.Fatal(err)
	}
	s.PIDs = append(s.PIDs, process(tb, dir, bin, args...))
	until(tb, "the scheduler to serve its metrics", func() error {
		c, err := (&net.Dialer{}).DialContext(tb.Context(), "tcp", "127.0.0.1:"+port)
		if err != nil {
			return err
		}
		return c.Close()
	})
	return "https://127.0.0.1:" + port + "/metrics"
}

// CPU is the processor time that the side has taken so far.
func (s *Side) CPU(tb testing.TB) time.Duration {
	tb.Helper()
	var sum time.Duration
	for _, pid := range s.PIDs {
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

// Memory is the resident memory of the side, in bytes.
func (s *Side) Memory(tb testing.TB) int64 {
	tb.Helper()
	var sum int64
	for _, pid := range s.PIDs {
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

// Client has one connection of its own.
func (s *Side) Client() *http.Client {
	return &http.Client{Transport: &http.Transport{
		TLSClientConfig: s.TLS.Clone(), ForceAttemptHTTP2: true, DisableCompression: true, MaxIdleConnsPerHost: 1,
	}}
}

func (s *Side) awaitReady(tb testing.TB, began time.Time) {
	tb.Helper()
	c := s.Client()
	defer c.CloseIdleConnections()
	until(tb, s.Name+" to be ready", func() error {
		req, err := http.NewRequestWithContext(tb.Context(), http.MethodGet, s.URL+"/readyz", nil)
		if err != nil {
			return err
		}
		resp, err := c.Do(req)
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
	s.Ready = time.Since(began)
}

// process runs a command until the test ends.
func process(tb testing.TB, dir, name string, args ...string) int {
	tb.Helper()
	cmd := exec.Command(name, args...) //nolint:noctx // the harness ends it, in order
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
		tb.Fatalf("%s names no binary: run `make bench-api` or `make differential`, which build what is compared", variable)
	}
	return path
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

// AwaitFile waits until a file is there.
func AwaitFile(tb testing.TB, file string) {
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
