// SPDX-License-Identifier: Apache-2.0

// Package whyapi answers why an object does not get on: it reads what the API stores about the
// object and its neighbours, with the rights of whoever asks, and has core/why make an
// answer of it. The API server offers that as Path, where the scheduler's own profiles and its
// plugins in Wasm take part; where no server does, the command asks from here, with the
// native plugins alone.
package whyapi

import (
	"context"
	"regexp"
	"strings"

	"k8s.io/client-go/informers"

	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/scheduler"
	"github.com/wasmplane/wasmplane/core/trace"
	"github.com/wasmplane/wasmplane/core/trace/journey"
	"github.com/wasmplane/wasmplane/core/trace/otlp"
	"github.com/wasmplane/wasmplane/core/why"
)

// Question is which object is asked about.
type Question struct {
	Word      string // the kind, in any form that kubectl takes: pod, po, deployments, widgets.example.com
	Namespace string
	Name      string
}

// Trials are profiles for decisions that take no effect. Release gives up what they hold.
type Trials struct {
	Profiles func(informers.SharedInformerFactory) ([]scheduler.Profile, error)
	// Untried are plugins of the profiles that cannot be asked beside the scheduler.
	Untried []string
	Release func()
}

// explain answers a question with the rights of set.
func explain(ctx context.Context, set *client.Set, q Question, t Trials) (*why.Answer, object, error) {
	o, err := find(set, q.Word, q.Namespace, q.Name)
	if err != nil {
		return nil, o, &badQuestionError{err}
	}
	r := &reader{ctx: ctx, set: set}
	cluster, err := r.cluster(&o)
	if err != nil {
		return nil, o, err
	}
	cluster.Profiles, cluster.Untried = t.Profiles, t.Untried
	if o.kind == "pod" && (t.Profiles == nil || len(t.Untried) > 0) {
		cluster.Refusals = refusals(ctx, set, q.Namespace, q.Name)
	}
	a, err := why.Explain(ctx, cluster, o.kind, q.Namespace, q.Name)
	return a, o, err
}

// badQuestionError is the asker's to mend.
type badQuestionError struct{ error }

// Unwrap is for errors.As.
func (e *badQuestionError) Unwrap() error { return e.error }

// Local answers from here, without a server's help.
func Local(ctx context.Context, set *client.Set, q Question) (*why.Answer, error) {
	a, _, err := explain(ctx, set, q, Trials{})
	return a, err
}

// leftOut is how a trace words a node's refusal: "node-1: Insufficient cpu [NodeResourcesFit]".
var leftOut = regexp.MustCompile(`[^:;]+: ([^\[\];]+) \[([^\]]+)\]`)

// refusals are the reasons of a pod's refusals and the plugins that gave them, as the trace
// has them. Where there is no trace, there are none.
func refusals(ctx context.Context, set *client.Set, namespace, name string) map[string]string {
	found, err := otlp.Ask(ctx, set.Kube.Discovery().RESTClient(), trace.Query{Kind: "pod", Namespace: namespace, Name: name})
	if err != nil || found.Root == nil {
		return nil
	}
	out := map[string]string{}
	var walk func([]*journey.Step)
	walk = func(steps []*journey.Step) {
		for _, s := range steps {
			for _, text := range []string{s.Attrs[string(trace.NodesKey)], s.Summary} {
				_, text, _ = strings.Cut(text, "left out: ")
				for _, m := range leftOut.FindAllStringSubmatch(text, -1) {
					out[m[1]] = m[2]
				}
			}
			walk(s.Steps)
		}
	}
	walk(found.Root.Steps)
	return out
}
