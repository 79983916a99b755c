// SPDX-License-Identifier: Apache-2.0

package registry_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/fence"
	"github.com/wasmplane/wasmplane/core/api"
	"github.com/wasmplane/wasmplane/core/registry"
	"github.com/wasmplane/wasmplane/core/store"
	"github.com/wasmplane/wasmplane/core/store/etcd"
	"github.com/wasmplane/wasmplane/core/watchcache"
)

// oneHolder is a policy: one ConfigMap of all has a host. It reads the others where they are stored, as they
// are at that moment, and has judged for the first time when as many requests have come to this as meet.
type oneHolder struct {
	store store.Store
	meet  *sync.WaitGroup // of the first judgements; nil = nobody is waited for
	first sync.Map        // by the name of the object
}

func (*oneHolder) Mutate(context.Context, *admission.Request) error { return nil }

// look reads the ConfigMaps that a request is judged by, and waits for the others that are judged for the first time.
func (p *oneHolder) look(ctx context.Context, r *admission.Request) (store.Page, error) {
	if err := fence.Raise(ctx, r.Resource.Group); err != nil {
		return store.Page{}, err
	}
	page, err := p.store.List(ctx, "/registry/configmaps/", store.ListOptions{})
	if err != nil {
		return store.Page{}, err
	}
	if _, again := p.first.LoadOrStore(r.Name, true); !again && p.meet != nil {
		p.meet.Done()
		p.meet.Wait()
	}
	return page, nil
}

func (p *oneHolder) Validate(ctx context.Context, r *admission.Request) error {
	page, err := p.look(ctx, r)
	if err != nil {
		return err
	}
	tree, err := r.Object.Tree()
	if err != nil {
		return err
	}
	host := fmt.Sprint(tree["data"].(map[string]any)["host"])
	for _, other := range page.Items {
		if !strings.HasSuffix(other.Key, "/"+r.Name) && strings.Contains(string(other.Value), host) {
			return apierrors.NewForbidden(r.Resource.GroupResource(), r.Name, errors.New("the host is taken by "+other.Key))
		}
	}
	return nil
}

// servers are as many registries of ConfigMaps over one store, each with a cache of its own.
func servers(t *testing.T, n int) (out []*registry.Registry, policies []*oneHolder) {
	t.Helper()
	out = serversWith(t, n, func(s store.Store) registry.Admission {
		p := &oneHolder{store: s}
		policies = append(policies, p)
		return p
	})
	return out, policies
}

func serversWith(t *testing.T, n int, policy func(store.Store) registry.Admission) (out []*registry.Registry) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	e, err := etcd.Start(ctx, etcd.ServerConfig{Dir: t.TempDir(), NoFsync: true})
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		running.Wait()
		_ = e.Close()
	})
	for range n {
		contract, err := api.New()
		if err != nil {
			t.Fatal(err)
		}
		cache, err := watchcache.New(watchcache.Config{Store: e.Store()})
		if err != nil {
			t.Fatal(err)
		}
		set, err := registry.New(registry.Config{Contract: contract, Store: e.Store(), Cache: cache, Admission: policy(e.Store())})
		if err != nil {
			t.Fatal(err)
		}
		running.Go(func() { _ = cache.Run(ctx) })
		<-cache.Ready()
		r, ok := set.For(schema.GroupResource{Resource: "configmaps"})
		if !ok {
			t.Fatal("no ConfigMaps")
		}
		out = append(out, r)
	}
	return out
}

// TestTwinsInTheSameMoment: two writes that exclude each other, both judged before either is stored, by one
// server or by two. One of them is stored, and the other is judged again, by it.
func TestTwinsInTheSameMoment(t *testing.T) {
	body := func(name, host string) string {
		return `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"` + name + `"},"data":{"host":"` + host + `"}}`
	}
	type write func(r *registry.Registry, name string) error
	for what, c := range map[string]write{
		"creates": func(r *registry.Registry, name string) error {
			_, err := r.Create(t.Context(), request("ns", "", body(name, "one.example.org"), &metav1.CreateOptions{}))
			return err
		},
		"updates": func(r *registry.Registry, name string) error {
			_, err := r.Update(t.Context(), request("ns", name, body(name, "one.example.org"), &metav1.UpdateOptions{}))
			return err
		},
		"patches": func(r *registry.Registry, name string) error {
			_, err := r.Patch(t.Context(), patch("ns", name, types.MergePatchType, `{"data":{"host":"one.example.org"}}`))
			return err
		},
		"applies": func(r *registry.Registry, name string) error {
			apply := patch("ns", name, types.ApplyPatchType, body(name, "one.example.org"))
			apply.Options = &metav1.PatchOptions{Force: new(true)}
			_, err := r.Patch(t.Context(), apply)
			return err
		},
		"a create and an update": func(r *registry.Registry, name string) error {
			if name == "a" {
				_, err := r.Create(t.Context(), request("ns", "", body("made", "one.example.org"), &metav1.CreateOptions{}))
				return err
			}
			_, err := r.Update(t.Context(), request("ns", name, body(name, "one.example.org"), &metav1.UpdateOptions{}))
			return err
		},
	} {
		for n := 1; n <= 2; n++ {
			t.Run(fmt.Sprintf("%s by %d", what, n), func(t *testing.T) {
				all, policies := servers(t, n)
				names := []string{"a", "b"}
				if what != "creates" {
					for _, name := range names {
						create(t, all[0], "ns", body(name, name+".example.org"))
					}
				}
				meet := &sync.WaitGroup{}
				meet.Add(2)
				for _, p := range policies {
					p.first.Clear()
					p.meet = meet
				}
				results := make([]error, 2)
				var writes sync.WaitGroup
				for i, name := range names {
					writes.Go(func() { results[i] = c(all[i%n], name) })
				}
				writes.Wait()
				if (results[0] == nil) == (results[1] == nil) {
					t.Fatalf("one was expected to be refused: %v and %v", results[0], results[1])
				}
				if err := errors.Join(results...); !strings.Contains(err.Error(), "the host is taken by /registry/configmaps/ns/") {
					t.Errorf("refused for another reason: %v", err)
				}
			})
		}
	}
}

// keeper is a policy about what goes: the last ConfigMap stays, and one stays that another requires, which in
// turn is created only while that one is there.
type keeper struct {
	oneHolder
	contract *api.Contract
	res      *api.Resource
	off      bool
}

func (p *keeper) Validate(ctx context.Context, r *admission.Request) error {
	if p.off {
		return nil
	}
	page, err := p.look(ctx, r)
	if err != nil {
		return err
	}
	others, required, present := 0, false, map[string]bool{}
	for _, kv := range page.Items {
		o, err := p.contract.DecodeStorage(p.res, kv.Value)
		if err != nil {
			return err
		}
		m, err := o.Meta()
		if err != nil {
			return err
		}
		if m.GetName() == r.Name {
			continue
		}
		required = required || m.GetAnnotations()["requires"] == r.Name
		if r.Operation == admission.Update || m.GetDeletionTimestamp() == nil {
			others++
			present[m.GetName()] = true
		}
	}
	var needs string
	if r.Object != nil {
		m, err := r.Object.Meta()
		if err != nil {
			return err
		}
		needs = m.GetAnnotations()["requires"]
	}
	switch {
	case needs != "" && !present[needs], r.Operation == admission.Delete && required, r.Operation != admission.Create && others == 0:
		return apierrors.NewForbidden(r.Resource.GroupResource(), r.Name, errors.New("one has to stay"))
	}
	return nil
}

// TestDeletionsInTheSameMoment: deletions that exclude each other, or a write that needs what is deleted, both
// judged before either is done, by one server or by two.
func TestDeletionsInTheSameMoment(t *testing.T) {
	const finalizer = `,"finalizers":["example.org/held"]`
	body := func(name, more string) string {
		return `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"` + name + `"` + more + `}}`
	}
	remove := func(r *registry.Registry, name string) error {
		_, err := r.Delete(t.Context(), request("ns", name, "", &metav1.DeleteOptions{}))
		return err
	}
	for what, c := range map[string]struct {
		before string // in the metadata of the objects
		marked bool   // they are being deleted
		do     func(r *registry.Registry, name string) error
	}{
		"deletions": {do: remove},
		"marks":     {before: finalizer, do: remove},
		"collections of one": {do: func(r *registry.Registry, name string) error {
			_, err := r.DeleteCollection(t.Context(), request("ns", "", "", &metav1.DeleteOptions{}),
				registry.ListOptions{Fields: fields.OneTermEqualSelector("metadata.name", name)})
			return err
		}},
		"the last finalizers": {before: finalizer, marked: true, do: func(r *registry.Registry, name string) error {
			_, err := r.Patch(t.Context(), patch("ns", name, types.MergePatchType, `{"metadata":{"finalizers":null}}`))
			return err
		}},
		"a deletion and what requires it": {do: func(r *registry.Registry, name string) error {
			if name == "b" {
				return remove(r, name)
			}
			_, err := r.Create(t.Context(), request("ns", "", body("made", `,"annotations":{"requires":"b"}`), &metav1.CreateOptions{}))
			return err
		}},
	} {
		for n := 1; n <= 2; n++ {
			t.Run(fmt.Sprintf("%s by %d", what, n), func(t *testing.T) {
				contract, err := api.New()
				if err != nil {
					t.Fatal(err)
				}
				var policies []*keeper
				all := serversWith(t, n, func(s store.Store) registry.Admission {
					p := &keeper{oneHolder: oneHolder{store: s}, contract: contract}
					policies = append(policies, p)
					return p
				})
				for i, p := range policies {
					p.res = all[i].Resource()
				}
				names := []string{"a", "b"}
				for _, name := range names {
					create(t, all[0], "ns", body(name, c.before))
				}
				for _, name := range names {
					if !c.marked {
						break
					}
					policies[0].off = true
					if err := remove(all[0], name); err != nil {
						t.Fatal(err)
					}
					policies[0].off = false
				}
				meet := &sync.WaitGroup{}
				meet.Add(2)
				for _, p := range policies {
					p.first.Clear()
					p.meet = meet
				}
				results := make([]error, 2)
				var writes sync.WaitGroup
				for i, name := range names {
					writes.Go(func() { results[i] = c.do(all[i%n], name) })
				}
				writes.Wait()
				if (results[0] == nil) == (results[1] == nil) {
					t.Fatalf("one was expected to be refused: %v and %v", results[0], results[1])
				}
				if err := errors.Join(results...); !strings.Contains(err.Error(), "one has to stay") {
					t.Errorf("refused for another reason: %v", err)
				}
			})
		}
	}
}
