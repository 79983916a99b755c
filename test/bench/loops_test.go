// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
)

// BenchmarkLoops is what the loops behind the scheduler take with 20,000 pods and 2,000 Jobs on 200 simulated nodes, as a user without rights.
func BenchmarkLoops(b *testing.B) {
	for b.Loop() {
		measureLoops(b, 20_000, 2_000, 200).publish(b)
	}
}

// measureLoops makes pods by a Deployment, Jobs of a pod each that nobody schedules, a Service in front of all pods of the
// Deployment, and then deletes the Deployment and the Jobs, whose pods the garbage collector has to find.
func measureLoops(tb testing.TB, pods, jobs, nodes int) *report {
	r := newReport(fmt.Sprintf("loops behind the scheduler, %d pods on %d simulated nodes, %d Jobs, without root", pods, nodes, jobs),
		"", "objects", "took", "CPU", "CPU each")
	c := newCluster(tb, "--nodes", fmt.Sprintf("simulated:%d", nodes))
	c.AsNobody = true
	c.start()
	kube := c.kube()
	awaitAccount(tb, kube, "default")
	row := func(what, unit string, n int, work func(ctx context.Context) error, done func(ctx context.Context) (int, error)) {
		counted := c.traffic()
		before, err := cpuOf(c.pid())
		if err != nil {
			tb.Fatal(err)
		}
		began := time.Now()
		c.profile(func() {
			if err := work(tb.Context()); err != nil {
				tb.Fatal(err)
			}
			since(tb, began, func(ctx context.Context) error {
				got, err := done(ctx)
				if err == nil && got != n {
					pause(ctx, 500*time.Millisecond)
					err = fmt.Errorf("%s: %d of %d", what, got, n)
				}
				return err
			})
		})
		took := time.Since(began)
		after, err := cpuOf(c.pid())
		if err != nil {
			tb.Fatal(err)
		}
		r.row(what, fmt.Sprint(n), short(took), short(after-before), short((after-before)/time.Duration(n)))
		r.duration(unit, took)
		awaitCalm(tb, c)
		r.note("%s, each: %s", what, strings.Join(c.traffic().each(counted, n), "; "))
	}
	many := manyPods("many", pods)
	row("a Deployment's pods, to all Running", "replicaset", pods, func(ctx context.Context) error {
		_, err := kube.AppsV1().Deployments("default").Create(ctx, many, metav1.CreateOptions{})
		return err
	}, func(ctx context.Context) (int, error) {
		d, err := kube.AppsV1().Deployments("default").Get(ctx, many.Name, metav1.GetOptions{})
		return int(d.Status.ReadyReplicas), err
	})
	row("a Service in front of them, to all in EndpointSlices", "endpointslice", pods, func(ctx context.Context) error {
		_, err := kube.CoreV1().Services("default").Create(ctx, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: many.Name},
			Spec:       corev1.ServiceSpec{Selector: many.Spec.Selector.MatchLabels, Ports: []corev1.ServicePort{{Port: 80}}},
		}, metav1.CreateOptions{})
		return err
	}, func(ctx context.Context) (n int, err error) {
		list, err := kube.DiscoveryV1().EndpointSlices("default").List(ctx, metav1.ListOptions{
			LabelSelector: discoveryv1.LabelServiceName + "=" + many.Name, ResourceVersion: "0",
		})
		for i := range list.Items {
			n += len(list.Items[i].Endpoints)
		}
		return n, err
	})
	row("Jobs, to a pod of each", "job", jobs, func(ctx context.Context) error { return makeJobs(ctx, kube, jobs) },
		func(ctx context.Context) (int, error) { return countPods(ctx, kube, batchv1.JobNameLabel) })
	everything := metav1.ListOptions{}
	background := metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)}
	row("the Jobs deleted, to their pods gone", "gc-jobs", jobs, func(ctx context.Context) error {
		return kube.BatchV1().Jobs("default").DeleteCollection(ctx, background, everything)
	}, func(ctx context.Context) (int, error) {
		left, err := countPods(ctx, kube, batchv1.JobNameLabel)
		return jobs - left, err
	})
	row("the Deployment deleted, to its pods gone", "gc-pods", pods, func(ctx context.Context) error {
		return kube.AppsV1().Deployments("default").Delete(ctx, many.Name, background)
	}, func(ctx context.Context) (int, error) {
		left, err := countPods(ctx, kube, "app="+many.Name)
		return pods - left, err
	})
	return r
}

// makeJobs makes Jobs whose pods no scheduler takes.
func makeJobs(ctx context.Context, kube kubernetes.Interface, n int) error {
	pod := podSpecOf(hello(""))
	pod.SchedulerName, pod.RestartPolicy = "nobody", corev1.RestartPolicyNever
	for i := range n {
		if _, err := kube.BatchV1().Jobs("default").Create(ctx, &batchv1.Job{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("job-%d", i)},
			Spec:       batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: pod}},
		}, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// countPods counts pods. Where there are any it reads all, of the cache: that takes a part of what is measured.
func countPods(ctx context.Context, kube kubernetes.Interface, selector string) (int, error) {
	list, err := kube.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: selector, Limit: 1})
	if err != nil || len(list.Items) == 0 {
		return 0, err
	}
	if list, err = kube.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: selector, ResourceVersion: "0"}); err != nil {
		return 0, err
	}
	return len(list.Items), nil
}
