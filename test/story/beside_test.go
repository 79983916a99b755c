// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"fmt"
	"log"
	"os"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// besideHostiles is a program of the plugins' story: beside KUBECONFIG NAMESPACE...
// It writes to namespaces that hostile plugins watch, and meanwhile measures
// requests that have nothing to do with them.
func besideHostiles() {
	const hostile, tolerable = 60, time.Second
	set := clientOf(os.Args[1])
	ctx := context.Background()
	var refused atomic.Int64
	var writers sync.WaitGroup
	for _, namespace := range os.Args[2:] {
		writers.Go(func() {
			for i := range hostile {
				m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("b-%d", i)}}
				if _, err := set.CoreV1().ConfigMaps(namespace).Create(ctx, m, metav1.CreateOptions{}); err != nil {
					refused.Add(1)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() {
		writers.Wait()
		close(done)
	}()
	requests, slow, worst := 0, 0, time.Duration(0)
	for over := false; !over; requests++ {
		began := time.Now()
		m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("beside-%d", requests)}}
		if _, err := set.CoreV1().ConfigMaps("default").Create(ctx, m, metav1.CreateOptions{}); err != nil {
			log.Fatal(err)
		}
		if _, err := set.CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{Limit: 10}); err != nil {
			log.Fatal(err)
		}
		took := time.Since(began)
		if worst = max(worst, took); took > tolerable {
			slow++
		}
		select {
		case <-done:
			over = true
		default:
		}
	}
	fmt.Printf("refused: %d of %d\n", refused.Load(), hostile*len(os.Args[2:]))
	fmt.Printf("requests beside them: %d, slower than %s: %d, slowest: %s\n", requests, tolerable, slow, worst)
}
