// SPDX-License-Identifier: Apache-2.0

// Package nodeadmission lets Wasm plugins decide whether a node runs a pod: it
// is core's kubelet.Admitter over a plugin.
//
// The hook sees the pod and the node. A refusal ends the pod with the plugin's
// reason and message in its status. A plugin that fails keeps the pod waiting,
// and is asked again, unless its failure policy is Ignore.
package nodeadmission

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/point"
)

// Admitter is kubelet.Admitter, named here so that plugins need not link a kubelet.
type Admitter interface {
	Name() string
	Admit(ctx context.Context, pod *corev1.Pod, node *corev1.Node) (admitted bool, reason, message string, err error)
}

// New makes the adapter of a plugin; nil where it has no hook at nodeadmission now.
func New(p *point.Plugin) Admitter {
	if v := p.Current(); v == nil || v.Hook(abi.NodeAdmission) == nil {
		return nil
	}
	return &adapter{plugin: p}
}

type adapter struct{ plugin *point.Plugin }

// Name implements Admitter.
func (a *adapter) Name() string { return a.plugin.Name() }

type document struct {
	Pod  abi.Object `json:"pod"`
	Node abi.Object `json:"node"`
}

// Admit implements Admitter.
func (a *adapter) Admit(ctx context.Context, pod *corev1.Pod, node *corev1.Node) (admitted bool, reason, message string, err error) {
	v1 := corev1.SchemeGroupVersion
	c := a.plugin.Ask(ctx, abi.NodeAdmission, "Pod", &document{
		Pod:  abi.Object{Object: pod, GVK: v1.WithKind("Pod")},
		Node: abi.Object{Object: node, GVK: v1.WithKind("Node")},
	})
	if c == nil {
		return true, "", "", nil
	}
	var answer abi.NodeAdmissionAnswer
	if c.Err == nil {
		if answer, err = abi.ParseNodeAdmission(c.Answer); err != nil {
			c.Fail(err)
		}
	}
	outcome := point.Outcome{Decision: "allow", Span: string(abi.NodeAdmission)}
	refused := answer.Admitted != nil && !*answer.Admitted
	if refused {
		outcome.Decision, outcome.Message = "deny", answer.Message
	}
	c.Record(ctx, abi.NodeAdmission, outcome)
	switch {
	case c.Mode() != manifest.Enforce:
		return true, "", "", nil
	case c.Err != nil && c.Policy(manifest.Fail) == manifest.Ignore:
		return true, "", "", nil
	case c.Err != nil:
		return false, "", "", fmt.Errorf("node admission: %w", c.Err)
	case !refused:
		return true, "", "", nil
	}
	if answer.Reason == "" {
		answer.Reason = "PluginRefused"
	}
	if answer.Message == "" {
		answer.Message = fmt.Sprintf("plugin %q refused the pod", a.Name())
	}
	return false, answer.Reason, answer.Message, nil
}
