// SPDX-License-Identifier: Apache-2.0

package registry_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// state of a deployment, as far as the clients change it.
type state struct {
	uid        types.UID
	revision   string
	generation int64
	labels     map[string]string
	replicas   int32
	observed   int64
	finalizers []string
	owners     []string // sorted
	created    string
	deleted    string // when the deletion was ordered; "" = it was not
	// applied are the labels that appliers own: what they no longer name goes.
	applied map[string]bool
}

func stateOf(d *appsv1.Deployment) *state {
	s := &state{
		uid: d.UID, revision: d.ResourceVersion, generation: d.Generation, labels: d.Labels, replicas: *d.Spec.Replicas,
		observed: d.Status.ObservedGeneration, finalizers: d.Finalizers, created: d.CreationTimestamp.String(),
	}
	if d.DeletionTimestamp != nil {
		s.deleted = d.DeletionTimestamp.String()
	}
	for _, o := range d.OwnerReferences {
		s.owners = append(s.owners, string(o.UID))
	}
	slices.Sort(s.owners)
	return s
}

func (s *state) clone() *state {
	c := *s
	c.labels, c.applied = maps.Clone(s.labels), maps.Clone(s.applied)
	c.finalizers, c.owners = slices.Clone(s.finalizers), slices.Clone(s.owners)
	if c.labels == nil {
		c.labels = map[string]string{}
	}
	if c.applied == nil {
		c.applied = map[string]bool{}
	}
	return &c
}

// choose takes over what the server has chosen, where the model says that something
// is new.
func (s *state) choose(before, after *state) {
	if before == nil {
		s.uid, s.created = after.uid, after.created
	}
	if s.deleted == now {
		s.deleted = after.deleted
	}
}

// now stands for the time of the write.
const now = "now"

// same compares what the API shows, but for the revision.
func (s *state) same(o *state) bool {
	if s == nil || o == nil {
		return s == o
	}
	return s.uid == o.uid && s.generation == o.generation && maps.Equal(s.labels, o.labels) && s.replicas == o.replicas &&
		s.observed == o.observed &&
		slices.Equal(s.finalizers, o.finalizers) && slices.Equal(s.owners, o.owners) && s.created == o.created && s.deleted == o.deleted
}

func (s *state) String() string {
	if s == nil {
		return "nothing"
	}
	return fmt.Sprintf("%+v", *s)
}

// after is what an operation makes of a state (nil: nothing is there), or why it is refused.
func (a *ask) after(s *state) (*state, metav1.StatusReason) {
	if a.kind == "create" {
		return a.created(s)
	}
	if s == nil && a.kind == "apply" {
		n := &state{generation: 1, replicas: 1, labels: map[string]string{"admitted": "yes"}, applied: map[string]bool{}}
		a.applyTo(n)
		return n, ""
	}
	if s == nil {
		return nil, metav1.StatusReasonNotFound
	}
	if a.expected != "" && a.expected != s.revision || a.body != nil && a.body.UID != "" && a.body.UID != s.uid {
		return nil, metav1.StatusReasonConflict
	}
	n := s.clone()
	switch a.kind {
	case "get":
		return n, ""
	case "delete":
		return a.deleted(n)
	case "status":
		n.observed = observed(a.value)
		return n, ""
	case "putStatus": // may not change labels and spec, but finalizers and owners, as upstream has it
		n.observed = observed(a.value)
		n.finalizers, n.owners = slices.Clone(a.body.Finalizers), stateOf(a.body).owners
		return a.updated(s, n)
	case "apply":
		a.applyTo(n)
	case "put":
		n.labels = maps.Clone(a.body.Labels)
		n.labels[a.label()] = a.value
		n.replicas, n.finalizers, n.owners = *a.replicas, slices.Clone(a.body.Finalizers), stateOf(a.body).owners
	default:
		a.patch(n)
	}
	n.labels["admitted"] = "yes"
	return a.updated(s, n)
}

func (a *ask) created(s *state) (*state, metav1.StatusReason) {
	if s != nil {
		return nil, metav1.StatusReasonAlreadyExists
	}
	return &state{
		generation: 1, replicas: *a.replicas, labels: map[string]string{a.label(): a.value, "admitted": "yes"},
		finalizers: slices.Clone(a.finalizers), applied: map[string]bool{},
	}, ""
}

func (a *ask) applyTo(n *state) {
	label := fmt.Sprint("a", a.client)
	switch {
	case !a.omit:
		n.labels[label], n.applied[label] = a.value, true
	case n.applied[label]:
		delete(n.labels, label)
		delete(n.applied, label)
	}
}

func (a *ask) patch(n *state) {
	n.labels[a.label()] = a.value
	if a.replicas != nil {
		n.replicas = *a.replicas
	}
	switch {
	case a.letGo:
		n.finalizers = nil
	case a.finalizers != nil && a.kind == "strategic":
		for _, f := range a.finalizers {
			if !slices.Contains(n.finalizers, f) {
				n.finalizers = append(n.finalizers, f)
			}
		}
	case a.finalizers != nil:
		n.finalizers = slices.Clone(a.finalizers)
	case a.owner != "" && a.kind == "strategic":
		if !slices.Contains(n.owners, a.owner) {
			n.owners = append(n.owners, a.owner)
			slices.Sort(n.owners)
		}
	case a.owner != "":
		n.owners = []string{a.owner}
	}
}

// updated is what all writes of the object itself have in common.
func (a *ask) updated(s, n *state) (*state, metav1.StatusReason) {
	// What was read may be of an object that is gone, and tell of its deletion. Where this
	// one is being deleted too, the server puts its own time in its place.
	if a.body != nil && stateOf(a.body).deleted != "" && s.deleted == "" {
		return nil, metav1.StatusReasonInvalid
	}
	for _, f := range n.finalizers {
		if s.deleted != "" && !slices.Contains(s.finalizers, f) {
			return nil, metav1.StatusReasonInvalid // nobody may hold up what is being deleted
		}
	}
	if n.replicas != s.replicas {
		n.generation++
	}
	for label := range n.applied {
		if a.kind != "apply" && n.labels[label] != s.labels[label] {
			delete(n.applied, label) // somebody else's now
		}
	}
	if s.deleted != "" && len(n.finalizers) == 0 {
		return nil, ""
	}
	return n, ""
}

func (a *ask) deleted(n *state) (*state, metav1.StatusReason) {
	orphan := a.policy == metav1.DeletePropagationOrphan || a.policy == "" && slices.Contains(n.finalizers, metav1.FinalizerOrphanDependents)
	kept := slices.DeleteFunc(slices.Clone(n.finalizers), func(f string) bool { return f == metav1.FinalizerOrphanDependents })
	if orphan {
		kept = append(kept, metav1.FinalizerOrphanDependents)
	}
	if len(kept) != len(n.finalizers) {
		n.finalizers = kept
	}
	if len(n.finalizers) == 0 {
		return nil, ""
	}
	if n.deleted == "" {
		n.deleted = now
		n.generation++
	}
	return n, ""
}

// version is the state of a name from a revision on.
type version struct {
	from, to int64 // both inclusive
	state    *state
	data     string
}

// check holds what the clients were told against the history.
func check(t *testing.T, events []change, operations []operation) {
	t.Helper()
	c := checker{t: t, versions: map[string][]version{}}
	for _, name := range historyNames {
		c.versions[name] = []version{{to: math.MaxInt64}}
	}
	answers := map[int64][]operation{} // writes that were answered with a revision
	deletions := map[types.UID][]operation{}
	for _, o := range operations {
		switch {
		case o.err != "" || o.kind == "get" || o.kind == "list":
		case o.deleted:
			deletions[o.uid] = append(deletions[o.uid], o)
		default:
			answers[o.revision] = append(answers[o.revision], o)
		}
	}
	last := int64(0)
	for _, e := range events {
		if e.revision <= last {
			t.Fatalf("revision %d comes after %d", e.revision, last)
		}
		last = e.revision
		c.step(e, answers[e.revision], deletions[e.uid])
		delete(answers, e.revision)
		if e.deleted {
			delete(deletions, e.uid)
		}
	}
	for _, left := range answers {
		t.Errorf("no change is that of %s", left[0])
	}
	for _, left := range deletions {
		t.Errorf("nothing was deleted by %s", left[0])
	}
	for _, o := range operations {
		c.outcome(o)
	}
}

type checker struct {
	t        *testing.T
	versions map[string][]version
}

// step takes one change: exactly one operation has made it, of the state before.
func (c *checker) step(e change, answered, deletions []operation) {
	c.t.Helper()
	history := c.versions[e.name]
	before := &history[len(history)-1]
	by := answered
	if e.deleted {
		by = deletions
	}
	var writer *operation
	for i := range by {
		o := &by[i]
		if o.name != e.name || o.from >= e.revision || o.to < e.revision {
			continue
		}
		after, refused := o.after(before.state)
		if after != nil && e.state != nil {
			after.choose(before.state, e.state)
		}
		// Two may make the same of it, one of them by finding it so: then the other wrote.
		if refused == "" && after.same(e.state) && (writer == nil || !changesNothing(o, e.state)) {
			writer = o
			if after != nil {
				e.state.applied = after.applied
			}
		}
	}
	if writer == nil {
		c.t.Errorf("revision %d: nobody makes %s of %s; answered with it were %v", e.revision, e.state, before.state, by)
	}
	if e.deleted && len(by) > 1 {
		c.t.Errorf("revision %d: %d clients were told that they deleted it: %v", e.revision, len(by), by)
	}
	if writer != nil && !e.deleted && writer.data != e.data {
		c.t.Errorf("revision %d: the answer was\n%s and is stored as\n%s", e.revision, writer.data, e.data)
	}
	if before.state != nil && !e.deleted && timeless(before.data) == timeless(e.data) {
		c.t.Errorf("revision %d changes nothing: %s", e.revision, e.data)
	}
	before.to = e.revision - 1
	c.versions[e.name] = append(history, version{from: e.revision, to: math.MaxInt64, state: e.state, data: e.data})
	for i := range by {
		if o := &by[i]; o != writer && !e.deleted {
			c.unchanging(o, e.state)
		}
	}
}

// unchanging is an operation that was answered with a state that it did not make:
// then it had nothing to change in it.
func (c *checker) unchanging(o *operation, s *state) {
	c.t.Helper()
	if !changesNothing(o, s) {
		after, refused := o.after(s)
		c.t.Errorf("%s was answered with %s, of which it makes %s %s", o, s, after, refused)
	}
}

// changesNothing says that a state is what an operation would make of it.
func changesNothing(o *operation, s *state) bool {
	after, refused := o.after(s)
	return refused == "" && after.same(s)
}

// timeless is an object without its revision and the times of its managers.
func timeless(data string) string {
	d := &appsv1.Deployment{}
	if err := json.Unmarshal([]byte(data), d); err != nil {
		return err.Error()
	}
	d.ResourceVersion = ""
	for i := range d.ManagedFields {
		d.ManagedFields[i].Time = nil
	}
	// With other times they may come in another order.
	slices.SortFunc(d.ManagedFields, func(a, b metav1.ManagedFieldsEntry) int { return strings.Compare(a.String(), b.String()) })
	out, err := json.Marshal(d)
	if err != nil {
		return err.Error()
	}
	return string(out)
}

// during are the states of a name at some moment of an operation.
func (c *checker) during(name string, o operation) []version {
	return slices.DeleteFunc(slices.Clone(c.versions[name]), func(v version) bool { return v.to < o.from || v.from > o.to })
}

// outcome checks refusals and reads: there was a moment at which they were right.
func (c *checker) outcome(o operation) {
	c.t.Helper()
	switch {
	case o.kind == "list":
		c.listed(o)
	case o.err != "":
		for _, v := range c.during(o.name, o) {
			if _, refused := o.after(v.state); refused == o.err {
				return
			}
		}
		c.t.Errorf("refused for nothing: %s; there were %v", o, c.during(o.name, o))
	case !o.deleted: // a read, or a write that was answered
		for _, v := range c.during(o.name, o) {
			if v.from == o.revision {
				if o.data != v.data {
					c.t.Errorf("%s was told\n%s of\n%s", o, o.data, v.data)
				}
				return
			}
		}
		c.t.Errorf("its answer was past or not yet: %s; there were %v", o, c.during(o.name, o))
	}
}

func (c *checker) listed(o operation) {
	c.t.Helper()
	if o.err != "" || o.revision < o.from || o.revision > o.to {
		c.t.Errorf("a list of revision %d: %s", o.revision, o)
		return
	}
	for _, name := range historyNames {
		for _, v := range c.versions[name] {
			if o.revision >= v.from && o.revision <= v.to && (v.state != nil) != (o.listed[name] != "") {
				c.t.Errorf("%s has %q of %s, which was %s", o, o.listed[name], name, v.state)
			} else if o.revision >= v.from && o.revision <= v.to && v.state != nil && v.data != o.listed[name] {
				c.t.Errorf("%s has\n%s for\n%s", o, o.listed[name], v.data)
			}
		}
	}
}
