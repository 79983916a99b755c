// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/wasmplane/wasmplane/core/kubelet/cri"
	"github.com/wasmplane/wasmplane/core/kubelet/linuxhost"
	"github.com/wasmplane/wasmplane/core/kubelet/realnode/nodetest"
)

// BenchmarkPods is pod create to Running, beside raw CRI calls on the same containerd.
func BenchmarkPods(b *testing.B) {
	for b.Loop() {
		measurePods(b, 15, 4, 10).publish(b)
	}
}

// measurePods runs rounds of one pod through the API and one by raw CRI calls, and
// then rounds of atOnce of each.
func measurePods(tb testing.TB, one, many, atOnce int) *report {
	c := newCluster(tb, "--nodes", "real")
	c.start()
	c.importHello()
	kube := c.kube()
	eng, err := cri.New(cri.Config{Endpoint: c.socket()})
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = eng.Close() }()
	f := &floor{t: tb, engine: eng, cgroup: linuxhost.NamesOf(c.Name).PodsCgroup(), logs: filepath.Join(c.Dir, "floor-logs")}
	p := newPodTimer(tb, kube, "default")
	// Once for nothing: first use of the image, the bridge, the code.
	p.run(1)
	f.run(1)

	r := newReport("Pod create to Running, beside raw CRI calls on the same node",
		"", "pods", "API median", "API p90", "CRI median", "CRI p90", "ratio", "aim")
	rounds := func(what string, n, atOnce int) {
		var api, raw, apiWall, rawWall times
		for i := range n {
			// Turn by turn, and who begins changes too.
			steps := []func(){
				func() { ts, wall := p.run(atOnce); api, apiWall = append(api, ts...), append(apiWall, wall) },
				func() { ts, wall := f.run(atOnce); raw, rawWall = append(raw, ts...), append(rawWall, wall) },
			}
			steps[i%2]()
			steps[1-i%2]()
		}
		q := ratio(api.median(), raw.median())
		r.row(what, fmt.Sprint(len(api)), short(api.median()), short(api.quantile(0.9)), short(raw.median()), short(raw.quantile(0.9)),
			fmt.Sprintf("%.2f", q), "1.30")
		r.metric(fmt.Sprintf("ratio/%d-at-once", atOnce), q)
		r.duration(fmt.Sprintf("api-%d-at-once", atOnce), api.median())
		r.duration(fmt.Sprintf("cri-%d-at-once", atOnce), raw.median())
		if atOnce > 1 {
			q := ratio(apiWall.median(), rawWall.median())
			r.row(what+", until the last", fmt.Sprint(len(apiWall)), short(apiWall.median()), short(apiWall.quantile(0.9)), short(rawWall.median()), short(rawWall.quantile(0.9)), fmt.Sprintf("%.2f", q), "1.30")
			r.metric(fmt.Sprintf("ratio/last-of-%d", atOnce), q)
		}
	}
	rounds("one by one", one, 1)
	rounds(fmt.Sprintf("%d at once", atOnce), many, atOnce)
	r.note("API: from the create request's send to the watch event that says Running. CRI: sandbox, create and start.")
	return r
}

// floor measures raw CRI calls.
type floor struct {
	t            testing.TB
	engine       *cri.Engine
	cgroup, logs string
}

func (f *floor) run(n int) (times, time.Duration) {
	r, err := nodetest.Floor(f.t.Context(), f.engine, nodetest.FloorConfig{
		Image: helloImage, Pods: n, AtOnce: n, CgroupParent: f.cgroup, LogDir: f.logs,
	})
	if err != nil {
		f.t.Fatal(err)
	}
	return r.Running, r.Wall
}

// podTimer measures pods that are created through the API.
type podTimer struct {
	t         testing.TB
	kube      kubernetes.Interface
	namespace string
	next      int
	pod       func(name string) *corev1.Pod // hello, if nil
	running   func()                        // called when all run, before they are removed; may be nil
}

// newPodTimer waits until pods can be made in the namespace.
func newPodTimer(tb testing.TB, kube kubernetes.Interface, namespace string) *podTimer {
	awaitAccount(tb, kube, namespace)
	return &podTimer{t: tb, kube: kube, namespace: namespace}
}

// awaitAccount waits for the namespace's service account, without which no pod is admitted.
func awaitAccount(tb testing.TB, kube kubernetes.Interface, namespace string) {
	tb.Helper()
	for end := time.Now().Add(patience); ; {
		_, err := kube.CoreV1().ServiceAccounts(namespace).Get(tb.Context(), "default", metav1.GetOptions{})
		if err == nil {
			return
		}
		if !apierrors.IsNotFound(err) || time.Now().After(end) {
			tb.Fatalf("wait for the service account of namespace %s: %v", namespace, err)
		}
		pause(tb.Context(), 10*time.Millisecond)
	}
}

// hello is a pod like the Deployment's of `make run`.
func hello(name string) *corev1.Pod {
	grace := int64(0)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "bench"}},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: &grace,
			Containers:                    []corev1.Container{{Name: "main", Image: helloImage, Ports: []corev1.ContainerPort{{ContainerPort: 80}}}},
		},
	}
}

// run creates n pods at the same time, and answers for each the time to Running
// and for all the time to the last one. They are gone when it returns.
func (p *podTimer) run(n int) (times, time.Duration) {
	ctx, cancel := context.WithTimeout(p.t.Context(), patience*time.Duration(1+n/200))
	defer cancel()
	pods := p.kube.CoreV1().Pods(p.namespace)
	list, err := pods.List(ctx, metav1.ListOptions{LabelSelector: "app=bench"})
	if err != nil {
		p.t.Fatal(err)
	}
	w, err := pods.Watch(ctx, metav1.ListOptions{LabelSelector: "app=bench", ResourceVersion: list.ResourceVersion})
	if err != nil {
		p.t.Fatal(err)
	}
	defer w.Stop()
	sent := map[string]time.Time{}
	began := time.Now()
	failed := make(chan error, n)
	for range n {
		p.next++
		template := hello
		if p.pod != nil {
			template = p.pod
		}
		pod := template(fmt.Sprintf("pod-%d", p.next))
		sent[pod.Name] = time.Now()
		go func() { // ends with the request
			if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
				failed <- err
			}
		}()
	}
	var took times
	for len(took) < n {
		select {
		case err := <-failed:
			p.t.Fatal(err)
		case e, ok := <-w.ResultChan():
			if !ok || e.Type == watch.Error {
				p.t.Fatalf("the watch of pods ended before all ran: %v", e.Object)
			}
			pod := e.Object.(*corev1.Pod)
			if at, waiting := sent[pod.Name]; waiting && pod.Status.Phase == corev1.PodRunning {
				took = append(took, time.Since(at))
				delete(sent, pod.Name)
			}
		}
	}
	wall := time.Since(began)
	if p.running != nil {
		p.running()
	}
	p.remove(ctx, w, n)
	return took, wall
}

func (p *podTimer) remove(ctx context.Context, w watch.Interface, n int) {
	err := p.kube.CoreV1().Pods(p.namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "app=bench"})
	if err != nil {
		p.t.Fatal(err)
	}
	for n > 0 {
		e, ok := <-w.ResultChan()
		if !ok {
			p.t.Fatal("the watch of pods ended before all were gone")
		}
		if e.Type == watch.Deleted {
			n--
		}
	}
}
