// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	nodeutil "k8s.io/component-helpers/node/util"
)

// BenchmarkSimulated is 100 simulated nodes and 1,000 pods, as a user without rights.
func BenchmarkSimulated(b *testing.B) {
	for b.Loop() {
		measureSimulated(b, 100, 1000, 20*time.Second).publish(b)
	}
}

func measureSimulated(tb testing.TB, nodes, pods int, settle time.Duration) *report {
	r := newReport(fmt.Sprintf("%d simulated nodes, %d pods, without root", nodes, pods),
		"", "took", "CPU", "RSS", "anonymous", "peak RSS")
	c := newCluster(tb, "--nodes", fmt.Sprintf("simulated:%d", nodes))
	c.AsNobody = true
	took := c.start()
	state := func(what string, took, cpuBefore time.Duration) time.Duration {
		cpu, err := cpuOf(c.pid())
		if err != nil {
			tb.Fatal(err)
		}
		m, err := memoryOf(c.pid())
		if err != nil {
			tb.Fatal(err)
		}
		r.row(what, short(took), short(cpu-cpuBefore), mib(m.rss), mib(m.anon), mib(m.peak))
		r.metric("MiB/peak-rss", float64(m.peak)/(1<<20))
		return cpu
	}
	cpu := state("start to ready", took, 0)
	r.duration("start", took)
	kube := c.kube()
	awaitAccount(tb, kube, "default")
	c.profile(func() {
		took = runPods(tb, kube, pods)
		cpu = state("10 Deployments, to all Running", took, cpu)
		r.duration("all-running", took)
		r.metric("pods/s", float64(pods)/took.Seconds())
	})
	began := time.Now()
	pause(tb.Context(), settle)
	idle := time.Since(began)
	after := state("then idle", idle, cpu)
	r.note("idle, the process uses %s of a processor.", percent(after-cpu, idle))
	return r
}

// BenchmarkNodes is what simulated nodes cost that have nothing to do.
func BenchmarkNodes(b *testing.B) {
	for _, n := range []int{1000, 5000, 10000, 20000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			for b.Loop() {
				measureNodes(b, n, 30*time.Second).publish(b)
			}
		})
	}
}

// measureNodes starts nodes that have nothing to do, and leaves them alone for a while: their leases are renewed.
func measureNodes(tb testing.TB, nodes int, settle time.Duration) *report {
	r := newReport(fmt.Sprintf("%d simulated nodes without pods, without root", nodes),
		"nodes", "to ready", "CPU", "CPU each", "RSS", "goroutines", "idle", "peak RSS")
	c := newCluster(tb, "--nodes", fmt.Sprintf("simulated:%d", nodes))
	c.AsNobody = true
	took := c.start()
	kube := c.kube()
	since(tb, time.Now(), func(ctx context.Context) error { return allReady(ctx, kube, nodes) })
	used, err := cpuOf(c.pid())
	c.endProfile()
	r.note("until then, each: %s", strings.Join(c.traffic().each(nil, nodes), "; "))
	awaitCalm(tb, c)
	counted := c.traffic()
	began := time.Now()
	var before, after time.Duration
	var failed error
	c.profile(func() {
		before, failed = cpuOf(c.pid())
		pause(tb.Context(), settle)
	})
	idle := time.Since(began)
	after, unread := cpuOf(c.pid())
	m, unknown := memoryOf(c.pid())
	if err := errors.Join(err, failed, unread, unknown); err != nil {
		tb.Fatal(err)
	}
	r.note("then, each in %s: %s", short(idle), strings.Join(c.traffic().each(counted, nodes), "; "))
	text, err := kube.CoreV1().RESTClient().Get().AbsPath("/debug/pprof/goroutine").Param("debug", "1").DoRaw(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	found := regexp.MustCompile(`^goroutine profile: total (\d+)`).FindSubmatch(text)
	if found == nil {
		tb.Fatalf("not a profile of goroutines: %.100s", text)
	}
	goroutines, err := strconv.Atoi(string(found[1]))
	if err != nil {
		tb.Fatal(err)
	}
	r.row(strconv.Itoa(nodes), short(took), short(used), short(used/time.Duration(nodes)), mib(m.rss), strconv.Itoa(goroutines),
		percent(after-before, idle), mib(m.peak))
	r.duration("start", took)
	r.duration("cpu", used)
	r.duration("cpu-node", used/time.Duration(nodes)) // grows where nodes cost more, the more there are
	r.metric("MiB/rss", float64(m.rss)/(1<<20))
	r.metric("goroutines", float64(goroutines))
	return r
}

// allReady is nil where so many nodes are ready.
func allReady(ctx context.Context, kube kubernetes.Interface, nodes int) error {
	list, err := kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return err
	}
	ready := 0
	for i := range list.Items {
		if _, c := nodeutil.GetNodeCondition(&list.Items[i].Status, corev1.NodeReady); c != nil && c.Status == corev1.ConditionTrue {
			ready++
		}
	}
	if ready < nodes {
		pause(ctx, time.Second)
		return fmt.Errorf("%d of %d nodes are ready", ready, nodes)
	}
	return nil
}

// runPods has ten Deployments make n pods, and answers how long it took until the
// API had told of all that they run.
func runPods(tb testing.TB, kube kubernetes.Interface, n int) time.Duration {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	defer cancel()
	w, err := kube.CoreV1().Pods("default").Watch(ctx, metav1.ListOptions{LabelSelector: "bench=many"})
	if err != nil {
		tb.Fatal(err)
	}
	defer w.Stop()
	began := time.Now()
	for i := range 10 {
		if _, err := kube.AppsV1().Deployments("default").Create(ctx, manyPods(fmt.Sprintf("many-%d", i), n/10),
			metav1.CreateOptions{}); err != nil {
			tb.Fatal(err)
		}
	}
	running := map[string]bool{}
	for len(running) < n/10*10 {
		e, ok := <-w.ResultChan()
		if !ok || e.Type == watch.Error {
			tb.Fatalf("the watch of pods ended when %d of %d ran: %v", len(running), n, e.Object)
		}
		if pod := e.Object.(*corev1.Pod); pod.Status.Phase == corev1.PodRunning {
			running[pod.Name] = true
		}
	}
	return time.Since(began)
}

func manyPods(name string, replicas int) *appsv1.Deployment {
	r := int32(replicas)
	pod := hello("")
	pod.Labels = map[string]string{"app": name, "bench": "many"}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &r, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}},
			Template: corev1.PodTemplateSpec{ObjectMeta: pod.ObjectMeta, Spec: podSpecOf(pod)},
		},
	}
}

// podSpecOf is the pod's, with the default grace.
func podSpecOf(p *corev1.Pod) corev1.PodSpec {
	s := p.Spec
	s.TerminationGracePeriodSeconds = nil
	return s
}
