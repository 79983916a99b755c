// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/wasmplane/wasmplane/core/kubelet/linuxhost"
	"github.com/wasmplane/wasmplane/plugins/component/componenttest"
)

// BenchmarkWasmHTTP asks one server of HTTP as an ordinary container and as a WebAssembly module, through their Services.
func BenchmarkWasmHTTP(b *testing.B) {
	for b.Loop() {
		measureWasmHTTP(b, 3, 3*time.Second).publish(b)
	}
}

// connections are kept open, with one request at a time on each.
const connections = 8

// measureWasmHTTP asks each server in turn, in some rounds.
func measureWasmHTTP(tb testing.TB, rounds int, each time.Duration) *report {
	registry := serveImages(tb, map[string]v1.Image{
		"answer:native": nativeImage(tb, buildAnswer(tb, "linux", "")), "answer:wasm": moduleImage(tb, buildAnswer(tb, "wasip1", "wasm")),
		"answer:component": moduleImage(tb, componenttest.HTTPServer(componenttest.HTTPAnswer).Bytes()),
	})
	c := newCluster(tb, "--nodes", "real")
	c.writeConfig(fmt.Sprintf("apiVersion: wasmplane.dev/v1alpha1\nkind: Configuration\nnode:\n  registries: [{host: %q, plainHTTP: true}]\n", registry))
	c.start()
	kube := c.kube()
	awaitAccount(tb, kube, "default")
	makeWasmOnlyClass(tb, kube)
	const text = "asked for /hello\n"
	servers := []*httpServer{
		{name: "native", what: "ordinary container", image: registry + "/answer:native", says: text},
		{name: "wasm", what: "module, class wasm", class: "wasm", image: registry + "/answer:wasm", says: text},
		{name: "wasm-only", what: "module, class wasm-only", class: "wasm-only", image: registry + "/answer:wasm", says: text},
		{name: "component", what: "component, class wasm-only", class: "wasm-only", image: registry + "/answer:component", says: "hell1\n"},
	}
	for _, s := range servers {
		s.begin(tb, kube)
		s.ask(tb, c, each/10) // for nothing
		s.asked, s.cpu, s.wall = 0, 0, 0
	}
	for range rounds {
		for _, s := range servers {
			s.ask(tb, c, each)
		}
	}
	title := fmt.Sprintf("One server of HTTP behind a Service, %d connections", connections)
	r := newReport(title, "", "requests", "a second", "a CPU second", "of the first")
	first := servers[0].perCPU()
	for _, s := range servers {
		second := float64(s.asked) / s.wall.Seconds()
		r.row(s.what, fmt.Sprint(s.asked), fmt.Sprintf("%.0f", second), fmt.Sprintf("%.0f", s.perCPU()), fmt.Sprintf("%.2f", s.perCPU()/first))
		r.metric(s.name+"/requests-per-CPU-second", s.perCPU())
	}
	r.note("The same Go program (net/http). CPU: of the pods' cgroup, the engine and the kernel's work for them included; the client's is not.")
	r.note("The component is another program: a handler of wasi:http without a language's runtime, with a new instance for each request.")
	return r
}

// httpServer is one form of the server.
type httpServer struct {
	name, what, class, image string
	says                     string // to each request
	address                  string
	asked                    int64
	cpu, wall                time.Duration
}

func (s *httpServer) perCPU() float64 { return float64(s.asked) / max(s.cpu, 1).Seconds() }

// begin makes the pod and its Service, and waits for an answer.
func (s *httpServer) begin(tb testing.TB, kube kubernetes.Interface) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	defer cancel()
	grace := int64(1)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: s.name, Labels: map[string]string{"app": s.name}},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{{
				Name: "main", Image: s.image, Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}},
			}},
		},
	}
	if s.class != "" {
		pod.Spec.RuntimeClassName = &s.class
	}
	if _, err := kube.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		tb.Fatal(err)
	}
	service, err := kube.CoreV1().Services("default").Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: s.name},
		Spec:       corev1.ServiceSpec{Selector: pod.Labels, Ports: []corev1.ServicePort{{Port: 8080}}},
	}, metav1.CreateOptions{})
	if err != nil {
		tb.Fatal(err)
	}
	s.address = "http://" + service.Spec.ClusterIP + ":8080/hello"
	for client := (&http.Client{Timeout: time.Second}); ; pause(ctx, 50*time.Millisecond) {
		err := s.get(ctx, client)
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			tb.Fatalf("%s does not answer: %v", s.what, err)
		}
	}
}

// ask sends requests for some time, on connections of its own.
func (s *httpServer) ask(tb testing.TB, c *cluster, during time.Duration) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), during)
	defer cancel()
	transport := &http.Transport{MaxIdleConnsPerHost: connections}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	var asked atomic.Int64
	var failed atomic.Pointer[error]
	pods := linuxhost.NamesOf(c.Name).PodsCgroup()
	before, began := cgroupCPU(tb, pods), time.Now()
	var all sync.WaitGroup
	for range connections {
		all.Go(func() {
			for ctx.Err() == nil {
				if err := s.get(ctx, client); err == nil {
					asked.Add(1)
				} else if ctx.Err() == nil {
					failed.Store(&err)
					return
				}
			}
		})
	}
	all.Wait()
	if err := failed.Load(); err != nil {
		tb.Fatalf("%s: %v", s.what, *err)
	}
	s.asked += asked.Load()
	s.wall += time.Since(began)
	s.cpu += cgroupCPU(tb, pods) - before
}

func (s *httpServer) get(ctx context.Context, client *http.Client) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.address, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && (resp.StatusCode != http.StatusOK || string(body) != s.says) {
		err = fmt.Errorf("answered %s: %q", resp.Status, body)
	}
	return err
}

// buildAnswer compiles the server; arch "" is the machine's own.
func buildAnswer(tb testing.TB, goos, arch string) []byte {
	tb.Helper()
	file := filepath.Join(tb.TempDir(), "answer")
	cmd := exec.CommandContext(tb.Context(), "go", "build", "-trimpath", "-ldflags=-s -w", "-o", file, "./test/bench/answer")
	cmd.Dir = built.Root
	cmd.Env = append(os.Environ(), "GOOS="+goos, "CGO_ENABLED=0")
	if arch != "" {
		cmd.Env = append(cmd.Env, "GOARCH="+arch)
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		tb.Fatalf("build the server: %v\n%s", err, out)
	}
	program, err := os.ReadFile(file)
	if err != nil {
		tb.Fatal(err)
	}
	return program
}

// nativeImage has a program and nothing else.
func nativeImage(tb testing.TB, program []byte) v1.Image {
	tb.Helper()
	var files bytes.Buffer
	w := tar.NewWriter(&files)
	err := w.WriteHeader(&tar.Header{Name: "answer", Mode: 0o755, Size: int64(len(program))})
	if err == nil {
		_, err = w.Write(program)
	}
	if err := errors.Join(err, w.Close()); err != nil {
		tb.Fatal(err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(files.Bytes())), nil })
	if err != nil {
		tb.Fatal(err)
	}
	image, err := mutate.AppendLayers(empty.Image, layer)
	if err == nil {
		image, err = mutate.Config(image, v1.Config{Entrypoint: []string{"/answer"}})
	}
	if err != nil {
		tb.Fatal(err)
	}
	return image
}
