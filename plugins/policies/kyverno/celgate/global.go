// SPDX-License-Identifier: Apache-2.0

package celgate

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/plugins/apiobject"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/policies/kyverno"
	"github.com/wasmplane/wasmplane/plugins/policies/kyverno/beyond"
)

// Global implements beyond.Reach. Whoever wrote the policy has to be allowed to get the entry, whoever wrote the entry what is in it.
func (r *reach) Global(ctx context.Context, name, projection string) (any, error) {
	if projection != "" {
		return nil, fmt.Errorf("the projection %q is in JMESPath, which is not evaluated here: select in the expression", projection)
	}
	g := r.gate
	if err := g.cfg.Rights.Act(ctx, r.policy.writer, authorizationv1.ResourceAttributes{
		Verb: "get", Group: kyverno.GlobalGroup, Resource: "globalcontextentries", Name: name,
	}); err != nil {
		return nil, err
	}
	o, err := g.cfg.World.Get(ctx, schema.GroupVersionKind{
		Group: kyverno.GlobalGroup, Version: kyverno.GlobalVersions()[0], Kind: kyverno.GlobalKind,
	}, "", name)
	u, ok := o.(*unstructured.Unstructured)
	if apierrors.IsNotFound(err) || err == nil && (!ok || u.GetDeletionTimestamp() != nil) {
		return nil, fmt.Errorf("there is no %s %q", kyverno.GlobalKind, name)
	}
	if err != nil {
		return nil, err
	}
	e, err := kyverno.ReadGlobalEntry(u.Object)
	if err == nil && u.GetAnnotations()[apiobject.WriterAnnotation] == "" {
		err = errors.New("nobody knows who wrote it: write it again")
	}
	if err == nil {
		var out any
		if out, err = g.entry(ctx, e, apiobject.Bare(u), versionOf(u)); err == nil {
			return out, nil
		}
	}
	return nil, fmt.Errorf("%s %q: %w", kyverno.GlobalKind, name, err)
}

// entry is what an entry holds.
func (g *Gate) entry(ctx context.Context, e *kyverno.GlobalEntry, writer *manifest.Entry, version string) (any, error) {
	apiVersion := schema.GroupVersion{Group: e.Group, Version: e.Version}.String()
	switch {
	case e.Object != "":
		o, err := g.get(ctx, writer, apiVersion, e.Resource, e.Namespace, e.Object)
		if o == nil && err == nil {
			err = fmt.Errorf("there is no %s of %s", e.Object, e.Resource)
		}
		return o, err
	case e.Resource != "": // as the watch cache has it: nothing is kept twice
		list, err := g.list(ctx, writer, apiVersion, e.Resource, e.Namespace, nil)
		if err != nil || e.Single {
			return list, err
		}
		return list["items"], nil
	}
	if err := g.cfg.Rights.Grants(ctx, writer, "spec.apiCall", "send from the control plane's machines"); err != nil {
		return nil, err
	}
	return g.answers.of(ctx, version, e.Refresh, func() (any, error) {
		q := beyond.Request{Method: e.Method, URL: e.URL, Headers: e.Headers, Body: e.Body, Authorities: e.Authorities}
		var out any
		err := errors.New("it was never asked")
		for i := 0; i <= e.Retries && err != nil && ctx.Err() == nil; i++ {
			out, err = g.send(ctx, q, true)
		}
		return out, err
	})
}

// Bounds of answers that are kept.
const (
	mostAnswers = 200
	failedFor   = 5 * time.Second
)

// answers are those to the requests of entries. Each is asked for by one at a time; others wait for the same answer.
type answers struct {
	mu   *sync.Mutex
	kept map[string]*kept
}

type kept struct {
	turn  chan struct{}
	until time.Time
	value any
	err   error
}

func newAnswers() answers { return answers{&sync.Mutex{}, map[string]*kept{}} }

func (a *answers) of(ctx context.Context, version string, refresh time.Duration, ask func() (any, error)) (any, error) {
	a.mu.Lock()
	k := a.kept[version]
	if k == nil {
		if len(a.kept) >= mostAnswers {
			clear(a.kept)
		}
		k = &kept{turn: make(chan struct{}, 1)}
		a.kept[version] = k
	}
	a.mu.Unlock()
	select {
	case k.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-k.turn }()
	if time.Now().Before(k.until) {
		return k.value, k.err
	}
	k.value, k.err = ask()
	k.until = time.Now().Add(refresh)
	if k.err != nil {
		k.until = time.Now().Add(failedFor)
	}
	return k.value, k.err
}
