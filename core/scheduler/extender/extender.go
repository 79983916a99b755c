// SPDX-License-Identifier: Apache-2.0

// Package extender asks scheduler extenders: services that kube-scheduler's configuration names, and
// that have a say in which node a pod gets. It speaks upstream's protocol, the types of
// k8s.io/kube-scheduler/extender/v1 in JSON over HTTP, and means by it what Kubernetes 1.37 does.
//
// An extender is named by the operator and may still be wrong, slow or somebody else by now. So it
// is reached by the operator's dial policy, follows no redirect, and has httpTimeout for each answer, which may be no longer
// than the question lets expect. What it says of nodes that it was not asked about is an error or counts for nothing.
package extender

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

// Extender is one of the configuration. It is safe for concurrent use.
type Extender struct {
	name    string
	s       Settings
	managed map[corev1.ResourceName]bool
	client  *http.Client
	reach   Reach
	failing atomic.Bool
}

var (
	_ framework.Extender = (*Extender)(nil)
	_ framework.Bind     = (*Extender)(nil)
	_ framework.Signed   = (*Extender)(nil)
)

// Name implements framework.Plugin: the word and the URL that it is configured by.
func (x *Extender) Name() string { return x.name }

// Ignorable implements framework.Extender.
func (x *Extender) Ignorable() bool { return x.s.Ignorable }

// Takes implements framework.Selective.
func (x *Extender) Takes(at framework.Point) bool { return x.verb(at) != "" }

func (x *Extender) verb(at framework.Point) string {
	switch at {
	case framework.AtFilter:
		return x.s.FilterVerb
	case framework.AtScore:
		return x.s.PrioritizeVerb
	case framework.AtPostFilter:
		return x.s.PreemptVerb
	case framework.AtBind:
		if !x.reach.Trial {
			return x.s.BindVerb
		}
	default: // it has no verb for it
	}
	return ""
}

// Asked implements framework.Extender.
func (x *Extender) Asked(at framework.Point, p *corev1.Pod) bool {
	return x.verb(at) != "" && x.interested(p)
}

// interested says whether a container of the pod asks for one of the resources that the extender manages; one that
// manages none is asked about every pod.
func (x *Extender) interested(p *corev1.Pod) bool {
	if len(x.managed) == 0 {
		return true
	}
	asks := func(c corev1.Container) bool {
		for _, list := range []corev1.ResourceList{c.Resources.Requests, c.Resources.Limits} {
			for name := range list {
				if x.managed[name] {
					return true
				}
			}
		}
		return false
	}
	return slices.ContainsFunc(p.Spec.Containers, asks) || slices.ContainsFunc(p.Spec.InitContainers, asks)
}

// Sign implements framework.Signed: what an extender goes by is not known, and it may answer differently at any time.
// Pods that it is not asked about are alike to it.
func (x *Extender) Sign(p *framework.PodInfo, s *framework.Signature) bool {
	s.Number(0)
	return !x.Asked(framework.AtFilter, p.Pod) && !x.Asked(framework.AtPostFilter, p.Pod)
}

// nodes as they are sent: the names for an extender that knows the nodes itself, else the objects.
func (x *Extender) nodes(p *framework.PodInfo, nodes []*framework.NodeInfo) *extenderv1.ExtenderArgs {
	args := &extenderv1.ExtenderArgs{Pod: p.Pod}
	if x.s.NodeCacheCapable {
		names := make([]string, len(nodes))
		for i, n := range nodes {
			names[i] = n.Node.Name
		}
		args.NodeNames = &names
		return args
	}
	args.Nodes = &corev1.NodeList{Items: make([]corev1.Node, len(nodes))}
	for i, n := range nodes {
		args.Nodes.Items[i] = *n.Node
	}
	return args
}

// Narrow implements framework.Extender.
func (x *Extender) Narrow(ctx context.Context, p *framework.PodInfo, nodes []*framework.NodeInfo) ([]*framework.Status, *framework.Status) {
	var answer extenderv1.ExtenderFilterResult
	err := x.send(ctx, x.s.FilterVerb, x.nodes(p, nodes), &answer)
	if err == nil && answer.Error != "" {
		err = errors.New(short(answer.Error))
	}
	if err != nil {
		return nil, framework.AsStatus(err)
	}
	place := make(map[string]int, len(nodes))
	for i, n := range nodes {
		place[n.Node.Name] = i
	}
	kept := make([]bool, len(nodes))
	keep := func(name string) error {
		i, known := place[name]
		if !known {
			return fmt.Errorf("it lets node %q through, about which it was not asked", short(name))
		}
		kept[i] = true
		return nil
	}
	switch {
	case x.s.NodeCacheCapable && answer.NodeNames != nil:
		for _, name := range *answer.NodeNames {
			if err := keep(name); err != nil {
				return nil, framework.AsStatus(err)
			}
		}
	case answer.Nodes != nil:
		for i := range answer.Nodes.Items {
			if err := keep(answer.Nodes.Items[i].Name); err != nil {
				return nil, framework.AsStatus(err)
			}
		}
	}
	return x.refusals(nodes, kept, &answer), nil
}

// refusals are the statuses of the nodes that an answer does not let through.
func (x *Extender) refusals(nodes []*framework.NodeInfo, kept []bool, answer *extenderv1.ExtenderFilterResult) []*framework.Status {
	// Nodes that are refused for the same reason share a status; how many reasons there are is bounded.
	type kind struct {
		code   framework.Code
		reason string
	}
	known := map[kind]*framework.Status{}
	status := func(code framework.Code, reason string) *framework.Status {
		k := kind{code, short(reason)}
		if known[k] == nil && len(known) >= mostReasons {
			k.reason = "node(s) were refused by an extender for other reasons"
		}
		if known[k] == nil {
			known[k] = &framework.Status{Code: code, Reasons: []string{k.reason}, Plugin: x.name}
		}
		return known[k]
	}
	out := make([]*framework.Status, len(nodes))
	for i, n := range nodes {
		if kept[i] {
			continue
		}
		if why, ok := answer.FailedAndUnresolvableNodes[n.Node.Name]; ok {
			out[i] = status(framework.Unresolvable, why)
		} else if why, ok := answer.FailedNodes[n.Node.Name]; ok {
			out[i] = status(framework.Unschedulable, why)
		} else {
			out[i] = status(framework.Unresolvable, "node(s) were left out by an extender")
		}
	}
	return out
}

const (
	mostReasons = 64  // of one answer
	mostReason  = 512 // bytes of one
)

// short is a text of the extender's as it is shown: one line, and not a long one.
func short(text string) string {
	if len(text) > mostReason {
		text = text[:mostReason]
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == utf8.RuneError || r == 0x7f {
			return ' '
		}
		return r
	}, text)
}

// Rate implements framework.Extender.
func (x *Extender) Rate(ctx context.Context, p *framework.PodInfo, nodes []*framework.NodeInfo) ([]int64, *framework.Status) {
	var answer extenderv1.HostPriorityList
	if err := x.send(ctx, x.s.PrioritizeVerb, x.nodes(p, nodes), &answer); err != nil {
		return nil, framework.AsStatus(err)
	}
	place := make(map[string]int, len(nodes))
	for i, n := range nodes {
		place[n.Node.Name] = i
	}
	scores := make([]int64, len(nodes))
	for _, host := range answer {
		// Upstream takes scores outside of 0 to 10 as well; what could overflow is an error here.
		if host.Score > math.MaxInt32 || host.Score < math.MinInt32 {
			return nil, framework.AsStatus(fmt.Errorf("it gives node %q the score %d; expected 0 to %d",
				short(host.Host), host.Score, extenderv1.MaxExtenderPriority))
		}
		if i, known := place[host.Host]; known {
			scores[i] += host.Score * x.s.Weight * (framework.MaxScore / extenderv1.MaxExtenderPriority)
		}
	}
	return scores, nil
}

// Bind implements framework.Bind: the extender binds the pod itself.
func (x *Extender) Bind(ctx context.Context, _ *framework.State, p *framework.PodInfo, node string) (framework.Binding, *framework.Status) {
	if !x.Asked(framework.AtBind, p.Pod) {
		return framework.Binding{}, framework.NewStatus(framework.Skip)
	}
	var answer extenderv1.ExtenderBindingResult
	err := x.send(ctx, x.s.BindVerb, &extenderv1.ExtenderBindingArgs{
		PodName: p.Pod.Name, PodNamespace: p.Pod.Namespace, PodUID: p.Pod.UID, Node: node,
	}, &answer)
	if err == nil && answer.Error != "" {
		err = errors.New(short(answer.Error))
	}
	switch {
	case err == nil:
		return framework.Binding{Done: true}, nil
	case x.s.Ignorable:
		return framework.Binding{}, framework.NewStatus(framework.Skip)
	}
	return framework.Binding{}, framework.AsStatus(err)
}

// observe logs that an extender begins to fail, and that it answers again: not each of a thousand failures a second.
func (x *Extender) observe(ctx context.Context, verb string, err error) {
	if x.reach.Logger == nil || errors.Is(context.Cause(ctx), context.Canceled) || x.failing.Swap(err != nil) == (err != nil) {
		return
	}
	if err != nil {
		x.reach.Logger.WarnContext(ctx, "a scheduler extender fails; further failures are not logged until it answers", "extender", x.s.URLPrefix,
			"verb", verb, "ignorable", x.s.Ignorable, "error", err)
		return
	}
	x.reach.Logger.InfoContext(ctx, "a scheduler extender answers again", "extender", x.s.URLPrefix, "verb", verb)
}

// Reach is how extenders are reached.
type Reach struct {
	// Dial makes their clients.
	Dial Dialer
	// Trial: the pods are not real, or are only thought of elsewhere; no extender is to bind them.
	Trial bool
	// Metrics count the calls; nil = nobody does.
	Metrics *Metrics
	// Logger is told when an extender begins to fail and when it answers again; nil = nobody is.
	Logger *slog.Logger
}
