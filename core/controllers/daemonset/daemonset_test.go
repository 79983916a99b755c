// SPDX-License-Identifier: Apache-2.0

package daemonset

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/wasmplane/wasmplane/core/controllers"
	"github.com/wasmplane/wasmplane/core/controllers/controllertest"
)

func agent() *appsv1.DaemonSet {
	l := map[string]string{"app": "agent"}
	return &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "agent", Namespace: "default", UID: "agent", Generation: 1},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: l}, RevisionHistoryLimit: ptr.To[int32](10),
			UpdateStrategy: appsv1.DaemonSetUpdateStrategy{
				Type:          appsv1.RollingUpdateDaemonSetStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxUnavailable: ptr.To(intstr.FromInt32(1)), MaxSurge: ptr.To(intstr.FromInt32(0))},
			},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: l},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "agent:1"}}},
			},
		},
	}
}

func node(name string, taints ...corev1.Taint) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"name": name}},
		Spec:       corev1.NodeSpec{Taints: taints},
	}
}

// kubelets bind and start every pod.
func kubelets(t *testing.T, c *controllertest.Cluster) []corev1.Pod {
	t.Helper()
	pods, err := c.Client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		if len(pod.Status.Conditions) == 0 {
			pod.Spec.NodeName = target(pod)
			pod.Status.Phase = corev1.PodRunning
			pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}
			_, _ = c.Client.CoreV1().Pods("default").Update(t.Context(), pod, metav1.UpdateOptions{})
		}
	}
	return pods.Items
}

// Pods come to every node that tolerates them, follow nodes that come and are
// tainted, and are replaced when the template changes; the history remembers both.
func TestFollowsNodesAndTemplate(t *testing.T) {
	c := controllertest.New(agent(), node("a"),
		node("b", corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}),
		node("gpu", corev1.Taint{Key: "gpu", Effect: corev1.TaintEffectNoSchedule}))
	ctl, err := New(c.Env(t), 1)
	if err != nil {
		t.Fatal(err)
	}
	c.Start(t, ctl)
	runs := func(want string) {
		t.Helper()
		controllertest.Eventually(t, func() error {
			var got []string
			for _, pod := range kubelets(t, c) {
				got = append(got, target(&pod)+"="+pod.Spec.Containers[0].Image)
			}
			slices.Sort(got)
			if s := strings.Join(got, " "); s != want {
				return fmt.Errorf("runs %q, want %q", s, want)
			}
			set, err := c.Client.AppsV1().DaemonSets("default").Get(t.Context(), "agent", metav1.GetOptions{})
			if err != nil {
				return err
			}
			if s := set.Status; int(s.NumberAvailable) != len(got) || int(s.DesiredNumberScheduled) != len(got) ||
				int(s.UpdatedNumberScheduled) != len(got) || s.ObservedGeneration != set.Generation {
				return fmt.Errorf("status %+v", s)
			}
			return nil
		})
	}
	runs("a=agent:1 b=agent:1")
	if _, err := c.Client.CoreV1().Nodes().Create(t.Context(), node("c"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	runs("a=agent:1 b=agent:1 c=agent:1")
	if _, err := c.Client.CoreV1().Nodes().Update(t.Context(), node("c", corev1.Taint{Key: "out", Effect: corev1.TaintEffectNoExecute}),
		metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	runs("a=agent:1 b=agent:1")
	controllertest.Eventually(t, func() error {
		set, err := c.Client.AppsV1().DaemonSets("default").Get(t.Context(), "agent", metav1.GetOptions{})
		if err != nil {
			return err
		}
		set.Spec.Template.Spec.Containers[0].Image, set.Generation = "agent:2", 2
		_, err = c.Client.AppsV1().DaemonSets("default").Update(t.Context(), set, metav1.UpdateOptions{})
		return err
	})
	runs("a=agent:2 b=agent:2")
	history, err := c.Client.AppsV1().ControllerRevisions("default").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(history.Items) != 2 {
		t.Errorf("%d revisions, %v", len(history.Items), err)
	}
}

// While templates change and pods become available at any time: never more nodes
// without an available pod than maxUnavailable, never more pods than one a node
// plus the surge, and in the end every node has one of the new.
func TestLimitsHold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		set := agent()
		surge, unavailable := rapid.IntRange(0, 2).Draw(t, "surge"), 0
		if surge == 0 {
			unavailable = rapid.IntRange(1, 3).Draw(t, "unavailable")
		}
		set.Spec.UpdateStrategy.RollingUpdate.MaxSurge = ptr.To(intstr.FromInt(surge))
		set.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable = ptr.To(intstr.FromInt(unavailable))
		var nodes []*corev1.Node
		for i := range rapid.IntRange(1, 5).Draw(t, "nodes") {
			nodes = append(nodes, node(fmt.Sprint("n", i)))
		}
		var pods []*corev1.Pod
		serial, hash := 0, "h1"
		now := time.Unix(1_800_000_000, 0)
		step := func() {
			now = now.Add(time.Second)
			p := decide(situation{set: set, nodes: nodes, pods: pods, hash: hash, now: now, backoff: func(string) time.Duration { return 0 }})
			for _, pod := range p.remove {
				pods = slices.DeleteFunc(pods, func(x *corev1.Pod) bool { return x.UID == pod.UID })
			}
			for _, name := range p.create {
				pod := newPod(set, hash, name)
				serial++
				pod.UID, pod.Name, pod.CreationTimestamp = types.UID(fmt.Sprint(serial)), fmt.Sprint(serial), metav1.NewTime(now)
				pods = append(pods, pod)
			}
		}
		ready := func(pod *corev1.Pod) {
			pod.Spec.NodeName, pod.Status.Phase = target(pod), corev1.PodRunning
			pod.Status.Conditions = []corev1.PodCondition{{
				Type: corev1.PodReady, Status: corev1.ConditionTrue,
				LastTransitionTime: metav1.NewTime(now),
			}}
		}
		settle := func() {
			for range 20 {
				step()
				for _, pod := range pods {
					ready(pod)
				}
			}
		}
		settle()
		for range rapid.IntRange(0, 40).Draw(t, "steps") {
			switch rapid.IntRange(0, 4).Draw(t, "op") {
			case 0:
				hash = rapid.SampledFrom([]string{"h1", "h2", "h3"}).Draw(t, "template")
			case 1, 2:
				if len(pods) > 0 {
					ready(rapid.SampledFrom(pods).Draw(t, "pod"))
				}
			default:
				step()
			}
			covered := map[string]bool{}
			for _, pod := range pods {
				if controllers.PodReady(pod) {
					covered[target(pod)] = true
				}
			}
			if down := len(nodes) - len(covered); down > unavailable {
				t.Fatalf("%d nodes without a pod, at most %d may be", down, unavailable)
			}
			if len(pods) > len(nodes)+surge {
				t.Fatalf("%d pods for %d nodes with a surge of %d", len(pods), len(nodes), surge)
			}
		}
		settle()
		if len(pods) != len(nodes) {
			t.Fatalf("%d pods for %d nodes", len(pods), len(nodes))
		}
		for _, pod := range pods {
			if pod.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] != hash {
				t.Fatalf("an old pod is left on %s", target(pod))
			}
		}
	})
}
