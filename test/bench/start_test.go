// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/wasmplane/wasmplane/test/internal/harness"
)

// BenchmarkStart is the time from the command to "Ready": with an empty data
// directory, and warm with 10,000 objects.
func BenchmarkStart(b *testing.B) {
	for b.Loop() {
		measureStart(b, demoPlugins(b), 3, 10_000).publish(b)
	}
}

// starts are what one way of starting took.
type starts struct {
	ready, node, cpu times
	parts            string
}

func (s *starts) take(c *cluster) {
	took := c.start()
	cpu, err := cpuOf(c.pid())
	if err != nil {
		c.t.Fatal(err)
	}
	c.endProfile()
	s.ready, s.cpu = append(s.ready, took), append(s.cpu, cpu)
	s.node = append(s.node, took+awaitNodeReady(c.t, c.kube()))
	s.parts = c.parts()
}

func measureStart(tb testing.TB, with plugins, rounds, objects int) *report {
	r := newReport("Start to ready, a real node with its containerd", "", "starts", "ready: median", "worst", "node Ready", "CPU", "aim")
	row := func(what, unit, aim string, s starts) {
		r.row(what, fmt.Sprint(len(s.ready)), short(s.ready.median()), short(s.ready.quantile(1)), short(s.node.median()), short(s.cpu.median()),
			aim)
		r.duration(unit, s.ready.median())
		r.metric("cpu-ms/"+unit, float64(s.cpu.median().Milliseconds()))
		r.note("%s, the last: %s", what, s.parts)
	}
	var empty, compiled, cached, warm starts
	for range rounds { // turn by turn
		func() {
			c := newCluster(tb, "--nodes", "real")
			defer c.purge()
			empty.take(c)
		}()
		cache := filepath.Join(built.Dir, "plugin-cache")
		func() {
			c := newCluster(tb, "--nodes", "real")
			defer c.purge()
			c.writeConfig(with.config)
			compiled.take(c)
			c.stop()
			if err := harness.Execute("cp", "-a", filepath.Join(c.Data, "plugin-cache"), cache); err != nil {
				tb.Fatal(err)
			}
		}()
		func() {
			c := newCluster(tb, "--nodes", "real")
			defer c.purge()
			c.writeConfig(with.config)
			if err := os.MkdirAll(c.Data, 0o700); err != nil {
				tb.Fatal(err)
			}
			if err := os.Rename(cache, filepath.Join(c.Data, "plugin-cache")); err != nil {
				tb.Fatal(err)
			}
			cached.take(c)
		}()
	}
	c := newCluster(tb, "--nodes", "real")
	c.start()
	fill(tb, c.kube(), objects)
	for range rounds {
		c.stop()
		warm.take(c)
	}
	row("empty, no plugins", "start-empty", "3s", empty)
	row("empty, "+with.what+", first compile", "start-plugins-first", "", compiled)
	row("empty, "+with.what+", compiled before", "start-plugins-cached", "3s", cached)
	row(fmt.Sprintf("warm, %d objects, containerd adopted", objects), "start-warm", "2s", warm)
	return r
}

// awaitNodeReady waits until the API says that the node is ready, which may be a
// moment after the process says so of itself.
func awaitNodeReady(tb testing.TB, kube kubernetes.Interface) time.Duration {
	tb.Helper()
	began := time.Now()
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	defer cancel()
	w, err := kube.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{})
	if err != nil {
		tb.Fatal(err)
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		node, ok := e.Object.(*corev1.Node)
		if !ok || e.Type == watch.Deleted {
			continue
		}
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
				return time.Since(began)
			}
		}
	}
	tb.Fatalf("no node was ready within %s", patience)
	return 0
}

// fill makes n objects, of the sizes and kinds that a cluster has many of: mostly
// ConfigMaps and Secrets, and a tenth pods, which are bound to the nodes in turn; without nodes,
// they wait for one that there is not.
func fill(tb testing.TB, kube kubernetes.Interface, n int, nodes ...string) {
	tb.Helper()
	awaitAccount(tb, kube, "default")
	work := make(chan int)
	errs := make(chan error, 1)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for i := range work {
				if err := fillOne(tb.Context(), kube, i, nodes); err != nil {
					select {
					case errs <- err:
					default:
					}
				}
			}
		})
	}
	for i := range n {
		work <- i
	}
	close(work)
	wg.Wait()
	select {
	case err := <-errs:
		tb.Fatal(err)
	default:
	}
}

func fillOne(ctx context.Context, kube kubernetes.Interface, i int, nodes []string) error {
	meta := metav1.ObjectMeta{Name: fmt.Sprintf("bench-%d", i), Labels: map[string]string{"app": "filling"}}
	text := map[string]string{"settings.yaml": fmt.Sprintf("number: %d\n%0700d\n", i, i)}
	var err error
	switch i % 10 {
	case 0:
		pod := hello(meta.Name)
		pod.Labels = meta.Labels
		if len(nodes) > 0 {
			pod.Spec.NodeName = nodes[i/10%len(nodes)]
		} else {
			pod.Spec.NodeSelector = map[string]string{"bench": "nowhere"}
		}
		_, err = kube.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{})
	case 1, 2, 3:
		_, err = kube.CoreV1().Secrets("default").Create(ctx, &corev1.Secret{ObjectMeta: meta, StringData: text}, metav1.CreateOptions{})
	default:
		_, err = kube.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: meta, Data: text}, metav1.CreateOptions{})
	}
	return err
}
