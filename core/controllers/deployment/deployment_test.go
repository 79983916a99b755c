// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"fmt"
	"math"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/controllers/controllertest"
	"github.com/wasmplane/wasmplane/core/controllers/replicaset"
)

func nginx(replicas int32) *appsv1.Deployment {
	labels := map[string]string{"app": "nginx"}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "nginx", Namespace: "default"},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To(replicas),
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Strategy: appsv1.DeploymentStrategy{
				Type: appsv1.RollingUpdateDeploymentStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDeployment{
					MaxSurge: ptr.To(intstr.FromString("25%")), MaxUnavailable: ptr.To(intstr.FromString("25%")),
				},
			},
			RevisionHistoryLimit:    ptr.To[int32](10),
			ProgressDeadlineSeconds: ptr.To[int32](600),
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "nginx", Image: "nginx:1"}}},
			},
		},
	}
}

// kubelet makes every pod ready, and removes those that are deleted at once (the
// fake clientset does).
func kubelet(t *testing.T, c *controllertest.Cluster) {
	t.Helper()
	pods, err := c.Client.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		if len(pod.Status.Conditions) > 0 {
			continue
		}
		pod.Status.Phase = corev1.PodRunning
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}
		// A conflict means that it was deleted meanwhile.
		_, _ = c.Client.CoreV1().Pods(pod.Namespace).UpdateStatus(t.Context(), pod, metav1.UpdateOptions{})
	}
}

func rolledOut(t *testing.T, c *controllertest.Cluster, image string) func() error {
	return func() error {
		kubelet(t, c)
		d, err := c.Client.AppsV1().Deployments("default").Get(t.Context(), "nginx", metav1.GetOptions{})
		if err != nil {
			return err
		}
		cond := condition(&d.Status, appsv1.DeploymentProgressing)
		if !complete(d, &d.Status) || cond == nil || cond.Reason != reasonAvailable {
			return fmt.Errorf("status %+v", d.Status)
		}
		pods, err := c.Client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for i := range pods.Items {
			if got := pods.Items[i].Spec.Containers[0].Image; got != image {
				return fmt.Errorf("pod runs %s", got)
			}
		}
		if len(pods.Items) != int(*d.Spec.Replicas) {
			return fmt.Errorf("%d pods", len(pods.Items))
		}
		return nil
	}
}

func cluster(t *testing.T, d *appsv1.Deployment) *controllertest.Cluster {
	t.Helper()
	c := controllertest.New(d)
	env := c.Env(t)
	dc, err := New(env, 2)
	if err != nil {
		t.Fatal(err)
	}
	rc, err := replicaset.New(env, 2)
	if err != nil {
		t.Fatal(err)
	}
	c.Start(t, dc, rc)
	return c
}

func change(t *testing.T, c *controllertest.Cluster, f func(*appsv1.Deployment)) {
	t.Helper()
	controllertest.Eventually(t, func() error {
		d, err := c.Client.AppsV1().Deployments("default").Get(t.Context(), "nginx", metav1.GetOptions{})
		if err != nil {
			return err
		}
		f(d)
		d.Generation++
		_, err = c.Client.AppsV1().Deployments("default").Update(t.Context(), d, metav1.UpdateOptions{})
		return err
	})
}

// A Deployment is created, updated, rolled back and scaled; each ends with the
// right pods, and its revisions are what kubectl rollout history shows.
func TestRolloutRollbackScale(t *testing.T) {
	c := cluster(t, nginx(4))
	controllertest.Eventually(t, rolledOut(t, c, "nginx:1"))

	change(t, c, func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = "nginx:2" })
	controllertest.Eventually(t, rolledOut(t, c, "nginx:2"))
	if got := revisions(t, c); got["nginx:1"] != "1" || got["nginx:2"] != "2" {
		t.Errorf("revisions %v", got)
	}

	change(t, c, func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = "nginx:1" })
	controllertest.Eventually(t, rolledOut(t, c, "nginx:1"))
	if got := revisions(t, c); got["nginx:1"] != "3" || len(got) != 2 {
		t.Errorf("after going back: revisions %v", got)
	}

	change(t, c, func(d *appsv1.Deployment) { d.Spec.Replicas = ptr.To[int32](7) })
	controllertest.Eventually(t, rolledOut(t, c, "nginx:1"))
	d, err := c.Client.AppsV1().Deployments("default").Get(t.Context(), "nginx", metav1.GetOptions{})
	if err != nil || d.Annotations[revisionKey] != "3" {
		t.Errorf("the Deployment's revision is %q, %v", d.Annotations[revisionKey], err)
	}
}

func revisions(t *testing.T, c *controllertest.Cluster) map[string]string {
	t.Helper()
	sets, err := c.Client.AppsV1().ReplicaSets("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for i := range sets.Items {
		all[sets.Items[i].Spec.Template.Spec.Containers[0].Image] = sets.Items[i].Annotations[revisionKey]
	}
	return all
}

func TestRecreateHasNoTwoGenerations(t *testing.T) {
	d := nginx(3)
	d.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
	c := cluster(t, d)
	controllertest.Eventually(t, rolledOut(t, c, "nginx:1"))
	change(t, c, func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = "nginx:2" })
	controllertest.Eventually(t, func() error {
		pods, err := c.Client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		images := map[string]bool{}
		for i := range pods.Items {
			images[pods.Items[i].Spec.Containers[0].Image] = true
		}
		if len(images) > 1 {
			t.Fatalf("pods of both generations: %v", images)
		}
		return rolledOut(t, c, "nginx:2")()
	})
}

func TestCollisionChangesTheName(t *testing.T) {
	d := nginx(1)
	first := newSet(d)
	d.Status.CollisionCount = ptr.To[int32](1)
	second := newSet(d)
	if first.Name == second.Name ||
		first.Labels[appsv1.DefaultDeploymentUniqueLabelKey] == second.Labels[appsv1.DefaultDeploymentUniqueLabelKey] {
		t.Errorf("%s and %s", first.Name, second.Name)
	}
}

func TestDeadline(t *testing.T) {
	d := nginx(1)
	now := time.Now()
	setCondition(&d.Status, appsv1.DeploymentProgressing, corev1.ConditionTrue, reasonUpdated, "", now.Add(-601*time.Second))
	rs := newSet(d)
	*rs.Spec.Replicas = 1
	rs.UID = "rs"
	setScaleAnnotations(d, rs)
	p := decide(situation{deployment: d, owned: []*appsv1.ReplicaSet{rs}, now: now})
	if p.status == nil {
		t.Fatal("no status")
	}
	c := condition(&p.status.Status, appsv1.DeploymentProgressing)
	if c.Reason != reasonTimedOut || c.Message != fmt.Sprintf("ReplicaSet %q has timed out progressing.", rs.Name) {
		t.Errorf("%+v", c)
	}
}

// A Deployment of two billion replicas may have as many pods as a count can say, and no more.
func TestLimitsOfTwoBillion(t *testing.T) {
	quarter, all, most := intstr.FromString("25%"), intstr.FromString("4000000000%"), intstr.FromInt32(math.MaxInt32)
	for _, tt := range []struct {
		replicas           int32
		surge, unavailable intstr.IntOrString
	}{
		{2_000_000_000, quarter, quarter}, {math.MaxInt32, quarter, quarter}, {5, most, most}, {5, all, all},
	} {
		d := &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Replicas: &tt.replicas, Strategy: appsv1.DeploymentStrategy{
			Type:          appsv1.RollingUpdateDeploymentStrategyType,
			RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &tt.surge, MaxUnavailable: &tt.unavailable},
		}}}
		surge, unavailable := limits(d)
		if surge < 0 || unavailable < 0 || tt.replicas+surge < tt.replicas || maxUnavailable(d) > tt.replicas {
			t.Errorf("%d replicas, maxSurge %v: surge %d, unavailable %d", tt.replicas, &tt.surge, surge, unavailable)
		}
		set := &appsv1.ReplicaSet{Spec: appsv1.ReplicaSetSpec{Replicas: &tt.replicas}}
		if n := sum([]*appsv1.ReplicaSet{set, set, set}, wanted); n < tt.replicas {
			t.Errorf("three sets of %d are %d together", tt.replicas, n)
		}
	}
}
