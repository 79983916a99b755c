// SPDX-License-Identifier: Apache-2.0

package garbage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/lru"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/wasmplane/wasmplane/core/controllers"
)

var thing = kind{
	schema.GroupVersionKind{Group: "test", Version: "v1", Kind: "Thing"},
	schema.GroupVersionResource{Group: "test", Version: "v1", Resource: "things"},
	true,
}

// server keeps things as a real one does: finalizers hold up deletions, patches and
// deletions have preconditions. It fails the test when something is deleted that
// an owner still wants.
type server struct {
	metadata.ResourceInterface // the rest is not called
	t                          *rapid.T
	things                     map[string]*metav1.PartialObjectMetadata
	version                    int
	events                     []event // in order for each object, not among them
	down                       bool
}

func (s *server) Resource(schema.GroupVersionResource) metadata.Getter { return getter{s} }

type event struct {
	name    string
	deliver func(*Collector)
}

type getter struct{ *server }

func (g getter) Namespace(string) metadata.ResourceInterface { return g.server }

func (s *server) changed(old, now *metav1.PartialObjectMetadata) {
	name := ""
	if old != nil {
		name = old.Name
	} else {
		name = now.Name
	}
	s.events = append(s.events, event{name, func(c *Collector) {
		switch {
		case old == nil:
			c.changed(thing, nil, now)
		case now == nil:
			c.changed(thing, old, nil)
		default:
			c.changed(thing, old, now)
		}
	}})
}

// next takes out an event that may be the next one: the first of its object.
func (s *server) next(t *rapid.T) event {
	i := rapid.IntRange(0, len(s.events)-1).Draw(t, "event")
	i = slices.IndexFunc(s.events, func(e event) bool { return e.name == s.events[i].name })
	e := s.events[i]
	s.events = slices.Delete(s.events, i, i+1)
	return e
}

func (s *server) notFound(name string) error {
	return apierrors.NewNotFound(thing.resource.GroupResource(), name)
}

func (s *server) store(m *metav1.PartialObjectMetadata) {
	old := s.things[m.Name]
	if m.DeletionTimestamp != nil && len(m.Finalizers) == 0 {
		delete(s.things, m.Name)
		s.changed(old, nil)
		return
	}
	s.version++
	m.ResourceVersion = fmt.Sprint(s.version)
	s.things[m.Name] = m
	s.changed(old, m)
}

func (s *server) Get(_ context.Context, name string, _ metav1.GetOptions, _ ...string) (*metav1.PartialObjectMetadata, error) {
	if s.down && rapid.Bool().Draw(s.t, "no answer") {
		return nil, errors.New("no answer")
	}
	if m := s.things[name]; m != nil {
		return m.DeepCopy(), nil
	}
	return nil, s.notFound(name)
}

func (s *server) Patch(_ context.Context, name string, _ types.PatchType, data []byte, _ metav1.PatchOptions,
	_ ...string,
) (*metav1.PartialObjectMetadata, error) {
	m := s.things[name]
	if m == nil {
		return nil, s.notFound(name)
	}
	var patch struct {
		Metadata struct {
			UID             types.UID
			ResourceVersion string
			OwnerReferences *[]metav1.OwnerReference
			Finalizers      *[]string
		}
	}
	if err := json.Unmarshal(data, &patch); err != nil {
		return nil, err
	}
	if patch.Metadata.UID != m.UID || patch.Metadata.ResourceVersion != m.ResourceVersion {
		return nil, apierrors.NewConflict(thing.resource.GroupResource(), name, errors.New("changed"))
	}
	m = m.DeepCopy()
	if patch.Metadata.OwnerReferences != nil {
		m.OwnerReferences = *patch.Metadata.OwnerReferences
	}
	if patch.Metadata.Finalizers != nil {
		m.Finalizers = *patch.Metadata.Finalizers
	}
	s.store(m)
	return m, nil
}

func (s *server) Delete(_ context.Context, name string, o metav1.DeleteOptions, _ ...string) error {
	m := s.things[name]
	if m == nil {
		return s.notFound(name)
	}
	if *o.Preconditions.UID != m.UID || *o.Preconditions.ResourceVersion != m.ResourceVersion {
		return apierrors.NewConflict(thing.resource.GroupResource(), name, errors.New("changed"))
	}
	for _, ref := range m.OwnerReferences {
		owner := s.things[ref.Name]
		if owner != nil && owner.UID == ref.UID && !slices.Contains(owner.Finalizers, metav1.FinalizerDeleteDependents) {
			s.t.Fatalf("%s is collected, but its owner %s stands", name, ref.Name)
		}
	}
	s.delete(m, *o.PropagationPolicy)
	return nil
}

func (s *server) delete(m *metav1.PartialObjectMetadata, policy metav1.DeletionPropagation) {
	m = m.DeepCopy()
	if m.DeletionTimestamp == nil {
		m.DeletionTimestamp = ptr.To(metav1.Now())
	}
	switch policy {
	case metav1.DeletePropagationForeground:
		if !slices.Contains(m.Finalizers, metav1.FinalizerDeleteDependents) {
			m.Finalizers = append(m.Finalizers, metav1.FinalizerDeleteDependents)
		}
	case metav1.DeletePropagationOrphan:
		m.Finalizers = append(m.Finalizers, metav1.FinalizerOrphanDependents)
	case metav1.DeletePropagationBackground: // nothing holds it back
	}
	s.store(m)
}

func newCollector(s *server) (*Collector, *work) {
	todo := &work{}
	c := &Collector{
		client: s, recorder: record.NewFakeRecorder(1000), graph: newGraph(), absent: lru.New(100),
		queue: func(w work) {
			todo.check = append(todo.check, w.check...)
			todo.orphan = append(todo.orphan, w.orphan...)
		},
		monitors: &monitors{
			kinds:   map[schema.GroupVersionKind]kind{thing.GroupVersionKind: thing},
			refresh: make(chan struct{}, 1), log: slog.New(slog.DiscardHandler),
		},
	}
	return c, todo
}

// Objects come, change and go in every way while events are late and the server
// is sometimes silent. Nothing is collected that an owner wants (the server checks
// it at each deletion), and in the end nothing is left that nobody wants.
func TestCollects(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &server{t: t, things: map[string]*metav1.PartialObjectMetadata{}}
		c, todo := newCollector(s)
		serial := 0
		names := func() []string {
			var all []string
			for i := range serial {
				if n := fmt.Sprint("t", i); s.things[n] != nil {
					all = append(all, n)
				}
			}
			return all
		}
		step := func(n int) {
			for ; n > 0 && len(s.events) > 0; n-- {
				s.next(t).deliver(c)
			}
		}
		work := func(n int) {
			for ; n > 0 && len(todo.check)+len(todo.orphan) > 0; n-- {
				var again error
				if len(todo.orphan) > 0 {
					uid := todo.orphan[0]
					todo.orphan = todo.orphan[1:]
					if again = c.orphan(context.Background(), uid); again != nil {
						todo.orphan = append(todo.orphan, uid)
					}
					continue
				}
				i := rapid.IntRange(0, len(todo.check)-1).Draw(t, "which")
				uid := todo.check[i]
				todo.check = slices.Delete(todo.check, i, i+1)
				if again = c.check(context.Background(), uid); again != nil {
					todo.check = append(todo.check, uid)
				}
			}
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			alive := names()
			switch op := rapid.IntRange(0, 9).Draw(t, "op"); {
			case op <= 3 || len(alive) == 0:
				m := &metav1.PartialObjectMetadata{}
				m.Name, m.Namespace, m.UID = fmt.Sprint("t", serial), "default", types.UID(fmt.Sprint("u", serial))
				serial++
				for range rapid.IntRange(0, min(2, len(alive))).Draw(t, "owners") {
					owner := s.things[rapid.SampledFrom(alive).Draw(t, "owner")]
					if refIndex(m.OwnerReferences, owner.UID) < 0 {
						m.OwnerReferences = append(m.OwnerReferences, metav1.OwnerReference{
							APIVersion: "test/v1", Kind: "Thing", Name: owner.Name, UID: owner.UID,
							BlockOwnerDeletion: ptr.To(rapid.Bool().Draw(t, "blocks")),
						})
					}
				}
				if rapid.IntRange(0, 9).Draw(t, "dangling") == 0 {
					m.OwnerReferences = append(m.OwnerReferences, metav1.OwnerReference{APIVersion: "test/v1", Kind: "Thing", Name: "never", UID: "never"})
				}
				s.store(m)
			case op == 4:
				s.down = !s.down
			case op == 5:
				m := s.things[rapid.SampledFrom(alive).Draw(t, "victim")]
				policies := []metav1.DeletionPropagation{metav1.DeletePropagationBackground, metav1.DeletePropagationForeground}
				if m.DeletionTimestamp == nil {
					s.delete(m, rapid.SampledFrom(policies).Draw(t, "policy"))
				}
			case op <= 7:
				step(rapid.IntRange(1, 5).Draw(t, "events"))
			default:
				work(rapid.IntRange(1, 5).Draw(t, "checks"))
			}
		}
		s.down = false
		for range 300 {
			step(1000)
			work(20)
		}
		for _, name := range names() {
			m := s.things[name]
			if m.DeletionTimestamp != nil {
				t.Fatalf("%s is stuck: finalizers %v", name, m.Finalizers)
			}
			wanted := len(m.OwnerReferences) == 0
			for _, ref := range m.OwnerReferences {
				owner := s.things[ref.Name]
				wanted = wanted || (owner != nil && owner.UID == ref.UID)
			}
			if !wanted {
				t.Fatalf("%s is left, though its owners %v are gone", name, m.OwnerReferences)
			}
		}
	})
}

// With orphan, dependents live on without the reference.
func TestOrphans(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &server{t: t, things: map[string]*metav1.PartialObjectMetadata{}}
		c, todo := newCollector(s)
		add := func(name string, owners ...string) {
			m := &metav1.PartialObjectMetadata{}
			m.Name, m.Namespace, m.UID = name, "default", types.UID("u-"+name)
			for _, o := range owners {
				m.OwnerReferences = append(m.OwnerReferences,
					metav1.OwnerReference{APIVersion: "test/v1", Kind: "Thing", Name: o, UID: types.UID("u-" + o)})
			}
			s.store(m)
		}
		add("parent")
		add("other")
		add("child", "parent")
		add("shared", "parent", "other")
		add("grandchild", "child")
		s.delete(s.things["parent"], metav1.DeletePropagationOrphan)
		for range 50 {
			for _, e := range s.events {
				e.deliver(c)
			}
			s.events = nil
			for _, uid := range todo.orphan {
				if err := c.orphan(context.Background(), uid); err != nil && !errors.Is(err, controllers.ErrStale) {
					t.Fatal(err)
				}
			}
			checks := todo.check
			todo.check, todo.orphan = nil, nil
			for _, uid := range checks {
				if err := c.check(context.Background(), uid); err != nil {
					todo.check = append(todo.check, uid)
				}
			}
		}
		if s.things["parent"] != nil || s.things["child"] == nil || s.things["shared"] == nil || s.things["grandchild"] == nil {
			t.Fatalf("left: %v", s.things)
		}
		if n := len(s.things["child"].OwnerReferences); n != 0 {
			t.Errorf("the child still has %d owners", n)
		}
		if n := len(s.things["shared"].OwnerReferences); n != 1 {
			t.Errorf("the shared one has %d owners", n)
		}
	})
}

// What discovery doesn't know is not deleted for.
func TestUnknownKindIsKept(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &server{t: t, things: map[string]*metav1.PartialObjectMetadata{}}
		c, todo := newCollector(s)
		m := &metav1.PartialObjectMetadata{}
		m.Name, m.Namespace, m.UID = "child", "default", "child"
		m.OwnerReferences = []metav1.OwnerReference{{APIVersion: "gone.example.com/v1", Kind: "Widget", Name: "w", UID: "w"}}
		s.store(m)
		s.events[0].deliver(c)
		for _, uid := range append(todo.check, "child") {
			if err := c.check(context.Background(), uid); err == nil {
				t.Error("no error")
			}
		}
		if s.things["child"] == nil {
			t.Error("it was deleted")
		}
	})
}

func TestTable(t *testing.T) {
	verbs := metav1.Verbs{"delete", "list", "watch"}
	groups := []*metav1.APIGroup{{
		Name: "g", Versions: []metav1.GroupVersionForDiscovery{
			{GroupVersion: "g/v1beta1", Version: "v1beta1"},
			{GroupVersion: "g/v1", Version: "v1"},
		},
		PreferredVersion: metav1.GroupVersionForDiscovery{GroupVersion: "g/v1", Version: "v1"},
	}}
	lists := []*metav1.APIResourceList{
		{GroupVersion: "g/v1beta1", APIResources: []metav1.APIResource{{Name: "as", Kind: "A", Verbs: verbs}, {Name: "bs", Kind: "B", Verbs: verbs}}},
		{GroupVersion: "g/v1", APIResources: []metav1.APIResource{
			{Name: "as", Kind: "A", Verbs: verbs}, {Name: "as/status", Kind: "A", Verbs: verbs}, {Name: "reviews", Kind: "R", Verbs: metav1.Verbs{"create"}},
		}},
	}
	all, watch := table(groups, lists)
	if len(all) != 3 {
		t.Errorf("kinds %v", all)
	}
	if _, ok := watch[schema.GroupVersionResource{Group: "g", Version: "v1", Resource: "as"}]; !ok || len(watch) != 2 {
		t.Errorf("watched %v", watch)
	}
}
