// SPDX-License-Identifier: Apache-2.0

package action_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/fence"
	"github.com/wasmplane/wasmplane/core/apiserver/apiservertest"
	"github.com/wasmplane/wasmplane/core/registry"
	"github.com/wasmplane/wasmplane/core/registry/action"
	"github.com/wasmplane/wasmplane/core/store"
)

// lonely is a policy: of the pods one is not evicted, and a node has one. It reads the newest state, and has judged
// for the first time when as many requests have come to this as meet.
type lonely struct {
	server *apiservertest.Server
	pods   *registry.Registry
	meet   sync.WaitGroup
	first  sync.Map
}

func (*lonely) Mutate(context.Context, *admission.Request) error { return nil }

func (p *lonely) Validate(ctx context.Context, r *admission.Request) error {
	if r.Subresource == "" {
		return nil
	}
	if err := fence.Raise(ctx, ""); err != nil {
		return err
	}
	page, err := p.server.Store.List(ctx, "/registry/pods/", store.ListOptions{})
	if err != nil {
		return err
	}
	if _, again := p.first.LoadOrStore(r.Subresource+r.Name, true); !again {
		p.meet.Done()
		p.meet.Wait()
	}
	others := 0
	for _, kv := range page.Items {
		o, err := p.server.Contract.DecodeStorage(p.pods.Resource(), kv.Value)
		if err != nil {
			return err
		}
		v, err := o.Versioned()
		if err != nil {
			return err
		}
		pod := v.(*corev1.Pod)
		if r.Subresource == "binding" && pod.Spec.NodeName != "" {
			return apierrors.NewForbidden(corev1.Resource("pods"), r.Name, errors.New("the node is taken"))
		}
		if pod.Name != r.Name {
			others++
		}
	}
	if others == 0 {
		return apierrors.NewForbidden(corev1.Resource("pods"), r.Name, errors.New("one has to stay"))
	}
	return nil
}

// TestActionsInTheSameMoment: evictions or bindings that exclude each other, both judged before either is done.
func TestActionsInTheSameMoment(t *testing.T) {
	p := &lonely{}
	s := apiservertest.Start(t, apiservertest.Options{Registry: func(c *registry.Config) { c.Admission = p }})
	w := world{
		action.New(action.Config{Contract: s.Contract, Registries: s.Registries, Authorizer: s.Authorizer, Now: time.Now}), s.Registries,
	}
	pods := w.registry(t, corev1.Resource("pods"))
	p.server, p.pods = s, pods
	for _, name := range []string{"a", "b"} {
		body := `{"metadata":{"name":"` + name + `"},"spec":{"terminationGracePeriodSeconds":0,"containers":[{"name":"c","image":"i"}]}}`
		if _, err := pods.Create(t.Context(), request("", "", body)); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ subresource, body, want string }{
		{"binding", `"target":{"kind":"Node","name":"n"}`, "the node is taken"},
		{"eviction", `"deleteOptions":{"gracePeriodSeconds":0}`, "one has to stay"},
	} {
		p.meet.Add(2)
		results := make([]error, 2)
		var both sync.WaitGroup
		for i, name := range []string{"a", "b"} {
			both.Go(func() {
				_, results[i] = w.Do(t.Context(), pods, "create", request(name, c.subresource, `{"metadata":{"name":"`+name+`"},`+c.body+`}`))
			})
		}
		both.Wait()
		if (results[0] == nil) == (results[1] == nil) {
			t.Fatalf("%s: one was expected to be refused: %v and %v", c.subresource, results[0], results[1])
		}
		if err := errors.Join(results...); !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: refused for another reason: %v", c.subresource, err)
		}
	}
}
