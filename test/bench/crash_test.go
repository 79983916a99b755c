// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/wasmplane/wasmplane/test/internal/harness"
)

// BenchmarkCrash is the time from kill -9 until a write is acknowledged again, with 50,000 objects.
func BenchmarkCrash(b *testing.B) {
	for b.Loop() {
		measureCrash(b, 50_000, 50, 5).publish(b)
	}
}

var isReady = regexp.MustCompile(`(?m)^Ready in .*$`)

// measureCrash kills the process of a cluster that holds objects, a tenth of them pods that are bound to simulated
// nodes, starts it at once, and lets clients try all the time.
func measureCrash(tb testing.TB, objects, nodes, rounds int) *report {
	r := newReport(fmt.Sprintf("kill -9, and a start at once, with %d objects, %d of them pods on %d simulated nodes", objects, objects/10, nodes),
		"", "times", "median", "worst", "aim")
	c := newCluster(tb, "--nodes", fmt.Sprintf("simulated:%d", nodes))
	c.start()
	kube := c.kube()
	names := nodeNames(tb, kube)
	awaitAccount(tb, kube, "default")
	began := time.Now()
	fill(tb, kube, objects, names...)
	awaitRunning(tb, kube, objects/10)
	r.note("filled, and all pods Running, after %s", short(time.Since(began)))
	var write, ready, cpu times
	var peak int64
	for range rounds {
		if err := c.Process("up").End(os.Kill); err != nil {
			tb.Fatal(err)
		}
		killed := time.Now()
		launched := c.launch()
		var w, a time.Duration
		var all sync.WaitGroup
		fresh := []kubernetes.Interface{c.kube(), c.kube()} // whose connections are their own
		all.Go(func() {
			w = since(tb, killed, func(ctx context.Context) error { return writeOne(ctx, fresh[0], "after-") })
		})
		all.Go(func() { a = since(tb, killed, func(ctx context.Context) error { return readyz(ctx, fresh[1]) }) })
		all.Wait()
		used, err := cpuOf(c.pid())
		if err != nil {
			tb.Fatal(err)
		}
		c.endProfile()
		write, ready, cpu = append(write, w), append(ready, a), append(cpu, used)
		if _, err := launched.AwaitLine(isReady); err != nil {
			tb.Fatal(err)
		}
		m, err := memoryOf(c.pid())
		if err != nil {
			tb.Fatal(err)
		}
		peak = max(peak, m.peak)
		r.note("%s, the parts: %s", short(w), c.parts())
		awaitCalm(tb, c)
	}
	row := func(what, unit, aim string, ts times) {
		r.row(what, fmt.Sprint(len(ts)), short(ts.median()), short(ts.quantile(1)), aim)
		r.duration(unit, ts.median())
	}
	row("kill -9 to the next acknowledged write", "write", "2s", write)
	row("kill -9 to /readyz", "readyz", "", ready)
	row("CPU of the process until both", "cpu", "", cpu)
	r.row("peak RSS while it started", fmt.Sprint(rounds), "", mib(peak), "")
	return r
}

// since tries until it succeeds, and answers how long that was after began.
func since(tb testing.TB, began time.Time, try func(context.Context) error) time.Duration {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	defer cancel()
	if err := harness.Poll(ctx, 5*time.Millisecond, func() error {
		one, cancel := context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		return try(one)
	}); err != nil {
		tb.Error(err)
	}
	return time.Since(began)
}

func writeOne(ctx context.Context, kube kubernetes.Interface, prefix string) error {
	_, err := kube.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: prefix}},
		metav1.CreateOptions{})
	return err
}

func readyz(ctx context.Context, kube kubernetes.Interface) error {
	var status int
	if err := kube.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).StatusCode(&status).Error(); err != nil {
		return err
	}
	if status != http.StatusOK {
		return fmt.Errorf("/readyz: %d", status)
	}
	return nil
}

func nodeNames(tb testing.TB, kube kubernetes.Interface) (names []string) {
	tb.Helper()
	nodes, err := kube.CoreV1().Nodes().List(tb.Context(), metav1.ListOptions{})
	if err != nil || len(nodes.Items) == 0 {
		tb.Fatalf("%d nodes, %v", len(nodes.Items), err)
	}
	for i := range nodes.Items {
		names = append(names, nodes.Items[i].Name)
	}
	return names
}

// awaitRunning waits until n pods run.
func awaitRunning(tb testing.TB, kube kubernetes.Interface, n int) {
	tb.Helper()
	since(tb, time.Now(), func(ctx context.Context) error {
		pods, err := kube.CoreV1().Pods("default").List(ctx, metav1.ListOptions{FieldSelector: "status.phase=Running", ResourceVersion: "0"})
		if err == nil && len(pods.Items) < n {
			pause(ctx, time.Second)
			err = fmt.Errorf("%d of %d pods run", len(pods.Items), n)
		}
		return err
	})
}

// awaitCalm waits until the process has done what it does after its start: it uses less than a third of a processor for a second.
func awaitCalm(tb testing.TB, c *cluster) {
	tb.Helper()
	since(tb, time.Now(), func(ctx context.Context) error {
		before, err := cpuOf(c.pid())
		if err != nil {
			return err
		}
		began := time.Now()
		pause(ctx, time.Second)
		after, err := cpuOf(c.pid())
		if err == nil && ratio(after-before, time.Since(began)) > 0.33 {
			err = fmt.Errorf("it uses %s of a processor", percent(after-before, time.Since(began)))
		}
		return err
	})
}
