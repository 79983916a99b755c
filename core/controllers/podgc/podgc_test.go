// SPDX-License-Identifier: Apache-2.0

package podgc

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/controllers/controllertest"
)

func pod(name, node string, change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, Spec: corev1.PodSpec{NodeName: node}}
	p.Status.Phase = corev1.PodRunning
	if change != nil {
		change(p)
	}
	return p
}

func deleted(p *corev1.Pod) {
	now := metav1.Now()
	p.DeletionTimestamp, p.Finalizers = &now, nil
}

// Pods of a node that goes are removed after the quarantine, unless a node of that
// name is back; a pod that is deleted unbound goes at once.
func TestOrphans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := func(name string) *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} }
		c := controllertest.New(node("stays"), node("goes"), node("returns"),
			pod("a", "stays", nil), pod("b", "goes", nil), pod("c", "returns", nil), pod("d", "", nil), pod("e", "never-was", nil),
			pod("f", "", deleted))
		ctl, err := New(c.Env(t), 1, 0)
		if err != nil {
			t.Fatal(err)
		}
		c.Start(t, ctl)
		exist := func(want string) {
			t.Helper()
			synctest.Wait()
			pods, err := c.Client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			for _, p := range pods.Items {
				got += p.Name
			}
			if got != want {
				t.Errorf("there are %q, want %q", got, want)
			}
		}
		time.Sleep(time.Second)
		exist("abcde")
		for _, name := range []string{"goes", "returns"} {
			if err := c.Client.CoreV1().Nodes().Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(20 * time.Second)
		if _, err := c.Client.CoreV1().Nodes().Create(t.Context(), node("returns"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		exist("abcde")
		time.Sleep(30 * time.Second)
		exist("acd")
	})
}

func TestSurplus(t *testing.T) {
	at := func(name string, second int64, phase corev1.PodPhase, reason string) *corev1.Pod {
		return pod(name, "n", func(p *corev1.Pod) {
			p.CreationTimestamp = metav1.NewTime(time.Unix(second, 0))
			p.Status.Phase, p.Status.Reason = phase, reason
		})
	}
	got := surplus([]*corev1.Pod{
		at("new", 30, corev1.PodSucceeded, ""), at("old", 10, corev1.PodFailed, ""), at("evicted", 20, corev1.PodFailed, "Evicted"),
		at("runs", 1, corev1.PodRunning, ""),
	}, 1)
	if len(got) != 2 || got[0].Name != "evicted" || got[1].Name != "old" {
		t.Errorf("surplus %v", got)
	}
}
