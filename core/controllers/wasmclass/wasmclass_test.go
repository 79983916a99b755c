// SPDX-License-Identifier: Apache-2.0

package wasmclass_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/controllers/controllertest"
	"github.com/wasmplane/wasmplane/core/controllers/wasmclass"
)

func node(name string, handlers ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, h := range handlers {
		n.Status.RuntimeHandlers = append(n.Status.RuntimeHandlers, corev1.NodeRuntimeHandler{Name: h})
	}
	return n
}

// markersAskedFor is how often somebody looked whether the class was made.
func markersAskedFor(c *controllertest.Cluster) int {
	asked := 0
	for _, a := range c.Client.Actions() {
		if a.Matches("get", "configmaps") {
			asked++
		}
	}
	return asked
}

// TestTheClassIsMadeOnce: by the first node that has the handler; whoever deletes it has it deleted for good.
func TestTheClassIsMadeOnce(t *testing.T) {
	c := controllertest.New(node("without", "", "runc"))
	c.Start(t, wasmclass.New(c.Env(t)))
	classes := c.Client.NodeV1().RuntimeClasses()
	nodes := c.Client.CoreV1().Nodes()
	if _, err := nodes.Create(t.Context(), node("first", "", "runc", "wasm"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	marker := corev1.SchemeGroupVersion.WithResource("configmaps")
	controllertest.Eventually(t, func() error {
		_, err := c.Client.Tracker().Get(marker, "kube-system", wasmclass.MarkerName)
		return err
	})
	if asked := markersAskedFor(c); asked != 1 {
		t.Errorf("the marker was looked for %d times: for a node without the handler too", asked)
	}
	class, err := classes.Get(t.Context(), wasmclass.Name, metav1.GetOptions{})
	if err != nil || class.Handler != "wasm" {
		t.Fatalf("the class: %+v %v", class, err)
	}
	if err := classes.Delete(t.Context(), wasmclass.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	// The second of these is looked at when the first has been.
	for i, name := range []string{"second", "third"} {
		if _, err := nodes.Create(t.Context(), node(name, "wasm"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		controllertest.Eventually(t, func() error {
			if asked := markersAskedFor(c); asked < i+2 {
				return fmt.Errorf("the marker was looked for %d times", asked)
			}
			return nil
		})
	}
	if _, err := classes.Get(t.Context(), wasmclass.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the class that was deleted is there again: %v", err)
	}
}
