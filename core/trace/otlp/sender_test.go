// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"testing"

	"github.com/wasmplane/wasmplane/core/trace"
)

// What a journey says that a component did was handed in by that component, and by nobody else.
func TestSpansOfOthersAreRejected(t *testing.T) {
	node := Sender{User: "system:node:n1", Groups: []string{"system:nodes", "system:authenticated"}}
	for name, c := range map[string]struct {
		sender          Sender
		component, node string
		taken           bool
	}{
		"a kubelet of its node":              {node, "kubelet", "n1", true},
		"the DNS of a machine that joined":   {node, "dns", "", true},
		"a kubelet of another node":          {node, "kubelet", "n2", false},
		"a node as the scheduler":            {node, "scheduler", "", false},
		"a node as the API":                  {node, "apiserver", "n1", false},
		"a node as a program of an operator": {node, "shop", "", false},
		"the scheduler":                      {Sender{User: "system:kube-scheduler"}, "scheduler", "n2", true},
		"the scheduler as controllers":       {Sender{User: "system:kube-scheduler"}, "controllers", "", false},
		"a user called like a node":          {Sender{User: "system:node:n1"}, "kubelet", "n1", false},
		"an operator's program":              {Sender{User: "system:serviceaccount:a:shop"}, "shop", "", true},
		"an operator's program as a policy":  {Sender{User: "system:serviceaccount:a:shop"}, "apiserver", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			d := delivery{
				spans: []trace.Span{{Trace: "t", ID: "i", Attrs: map[string]string{
					string(trace.ComponentKey): c.component, string(trace.NodeKey): c.node, SenderKey: "somebody",
				}}},
				lost: map[string]int64{c.component: 7},
			}
			d.keep(c.sender)
			if (len(d.spans) == 1) != c.taken || (d.rejected == 0) != c.taken {
				t.Fatalf("kept %v, rejected %d; want that it is taken: %v", d.spans, d.rejected, c.taken)
			}
			if c.taken && d.spans[0].Attrs[SenderKey] != c.sender.User {
				t.Errorf("it is said to be of %q", d.spans[0].Attrs[SenderKey])
			}
			if _, counted := d.lost[c.component]; counted != c.sender.mayReport(c.component) {
				t.Errorf("what is lost is counted: %v", counted)
			}
		})
	}
}
