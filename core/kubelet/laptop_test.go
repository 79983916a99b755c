// SPDX-License-Identifier: Apache-2.0

package kubelet_test

import (
	"fmt"
	"log/slog"
	"runtime"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/wasmplane/wasmplane/core/apiserver/apiservertest"
	"github.com/wasmplane/wasmplane/core/kubelet"
	"github.com/wasmplane/wasmplane/core/kubelet/feeds"
	"github.com/wasmplane/wasmplane/core/kubelet/lease"
)

// A laptop holds a hundred nodes and their pods, on a real API.
func TestAHundredNodes(t *testing.T) {
	const nodes, pods = 100, 300
	api := apiservertest.Start(t, apiservertest.Options{})
	cfg := api.Config("system:admin")
	cfg.QPS = -1
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	w.client = client
	if w.feeds, err = feeds.New(client, ""); err != nil {
		t.Fatal(err)
	}
	w.start()
	ensureNamespace(t, client, "default")
	ensureNamespace(t, client, corev1.NamespaceNodeLease)
	leases := lease.NewKeeper(lease.Config{})
	run(t, leases.Run)
	base := memory()
	began := time.Now()
	for i := range nodes {
		w.node(fmt.Sprintf("n%d", i), w.engine(), func(c *kubelet.Config) {
			c.Logger, c.Leases = slog.New(slog.DiscardHandler), leases
		})
	}
	t.Logf("%d nodes ready after %v", nodes, time.Since(began))
	withNodes := memory()
	t.Logf("%d KB a node, %d goroutines, with the API's share", (withNodes-base)>>10/nodes, runtime.NumGoroutine())
	began = time.Now()
	for i := range pods {
		w.create(fmt.Sprintf("n%d", i%nodes), fmt.Sprintf("p%d", i))
	}
	t.Logf("%d pods created after %v", pods, time.Since(began))
	w.within(2*time.Minute, "all run", func() bool {
		n := 0
		for i := range nodes {
			for _, p := range w.feeds.Pods(fmt.Sprintf("n%d", i)) {
				if running(p) {
					n++
				}
			}
		}
		return n == pods
	})
	t.Logf("%d pods running after %v", pods, time.Since(began))
	t.Logf("%d KB a pod, %d goroutines, with the API's share", (memory()-withNodes)>>10/pods, runtime.NumGoroutine())
}

func memory() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

func ensureNamespace(t *testing.T, c kubernetes.Interface, name string) {
	t.Helper()
	if _, err := c.CoreV1().Namespaces().Get(t.Context(), name, metav1.GetOptions{}); err == nil {
		return
	}
	if _, err := c.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}
