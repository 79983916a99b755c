// SPDX-License-Identifier: Apache-2.0

package nodettl

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/wasmplane/wasmplane/core/controllers/controllertest"
)

func TestSteps(t *testing.T) {
	for _, c := range []struct{ at, nodes, seconds int }{
		{0, 0, 0},
		{0, 100, 0},
		{0, 101, 15},
		{1, 95, 15},
		{1, 89, 0},
		{0, 5000, 300},
		{4, 1800, 300},
		{4, 1799, 60},
		{4, 10, 0},
	} {
		if got := steps()[next(c.at, c.nodes)].seconds; got != c.seconds {
			t.Errorf("%d nodes after step %d: %d seconds, want %d", c.nodes, c.at, got, c.seconds)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		at, nodes := rapid.IntRange(0, len(steps())-1).Draw(t, "at"), rapid.IntRange(0, 10_000).Draw(t, "nodes")
		then := next(at, nodes)
		if s := steps()[then]; nodes < s.least || nodes > s.most {
			t.Fatalf("%d nodes are not of step %+v", nodes, s)
		}
		if next(then, nodes) != then {
			t.Fatal("the same number makes another step")
		}
	})
}

func TestNodesAreAnnotated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := controllertest.New(
			&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "first", Annotations: map[string]string{"a": "b", corev1.ObjectTTLAnnotationKey: "7"}}})
		ctl, err := New(c.Env(t), 1)
		if err != nil {
			t.Fatal(err)
		}
		c.Start(t, ctl)
		ttl := func(name, want string) {
			t.Helper()
			time.Sleep(time.Second) // of the bubble
			synctest.Wait()
			node, err := c.Client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if got := node.Annotations[corev1.ObjectTTLAnnotationKey]; got != want {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
		}
		ttl("first", "0")
		for i := range 100 {
			if _, err := c.Client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i)}},
				metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		ttl("first", "15")
		ttl("n99", "15")
		for i := range 20 {
			if err := c.Client.CoreV1().Nodes().Delete(t.Context(), fmt.Sprint("n", i), metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		ttl("first", "0")
		ttl("n99", "0")
	})
}
