// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"slices"
	"strings"

	"github.com/wasmplane/wasmplane/core/trace"
)

// Sender is who hands spans in, as authentication found it.
type Sender struct {
	User   string
	Groups []string
}

// SenderKey says, on a span that came over the network, who handed it in. What the sender writes there is replaced.
const SenderKey = "wasmplane.sender"

const (
	nodePrefix = "system:node:"
	masters    = "system:masters"
)

// components of the cluster itself: a journey says in their name who decided what. Each is listed
// with the users that may; a machine that joined is kubelet, proxy and DNS as its node.
var components = map[string][]string{
	"apiserver":   nil,
	"etcd":        nil,
	"controllers": {"system:kube-controller-manager"},
	"scheduler":   {"system:kube-scheduler"},
	"kubelet":     {nodePrefix},
	"proxy":       {"system:kube-proxy", nodePrefix},
	"dns":         {"system:serviceaccount:kube-system:coredns", nodePrefix},
}

// mayReport tells whether the sender may report in the name of a component. Whoever was given the right
// to hand in spans may do so in names that are not the cluster's.
func (s Sender) mayReport(component string) bool {
	users, own := components[component]
	node := s.node()
	switch {
	case slices.Contains(s.Groups, masters):
		return true
	case !own:
		return node == "" && component != ""
	}
	return slices.Contains(users, s.User) || node != "" && slices.Contains(users, nodePrefix)
}

func (s Sender) node() string {
	if node, ok := strings.CutPrefix(s.User, nodePrefix); ok && slices.Contains(s.Groups, "system:nodes") {
		return node
	}
	return ""
}

// claims tells whether a span is one that its sender may report.
func (s Sender) claims(span *trace.Span) bool {
	if !s.mayReport(span.Get(trace.ComponentKey)) {
		return false
	}
	about, node := span.Get(trace.NodeKey), s.node()
	return node == "" || about == "" || about == node
}

// keep leaves what a sender may report, and marks it.
func (d *delivery) keep(s Sender) {
	before := len(d.spans)
	d.spans = slices.DeleteFunc(d.spans, func(span trace.Span) bool { return !s.claims(&span) })
	d.rejected += before - len(d.spans)
	for i := range d.spans {
		d.spans[i].Attrs[SenderKey] = s.User
	}
	for component := range d.lost {
		if !s.mayReport(component) {
			delete(d.lost, component)
		}
	}
}
