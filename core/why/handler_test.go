// SPDX-License-Identifier: Apache-2.0

package why_test

import (
	"bytes"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/wasmplane/wasmplane/core/why"
)

// A pod whose RuntimeClass has a handler that its node lacks: the handlers that the node has are named.
func TestHandlerThatTheNodeLacks(t *testing.T) {
	class := "sandboxed"
	of := func(p *corev1.Pod) { p.Spec.RuntimeClassName = &class }
	handlers := func(n *corev1.Node) {
		n.Status.RuntimeHandlers = []corev1.NodeRuntimeHandler{{Name: ""}, {Name: "runc"}, {Name: "wasm"}}
	}
	for name, p := range map[string]*corev1.Pod{
		"no status yet": pod("p", on("a"), of),
		"waiting":       pod("p", waiting("ContainerCreating", ""), of),
	} {
		c := why.Cluster{Nodes: []*corev1.Node{node("a", handlers)}, Pods: []*corev1.Pod{p}}
		c.Events = []*corev1.Event{event("Pod", "p", "FailedCreatePodSandBox",
			`unable to get OCI runtime: no runtime for "gvisor" is configured`)}
		var out bytes.Buffer
		ask(t, &c, "pod/p").Write(&out)
		for _, want := range []string{"RuntimeClass sandboxed names a handler that is none of node a: it has runc, wasm", "node.runtimeHandlers", "kubectl get runtimeclass sandboxed"} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s: %q is not in\n%s", name, want, out.String())
			}
		}
	}
}
