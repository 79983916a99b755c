// SPDX-License-Identifier: Apache-2.0

// Package journey makes of the spans about an object what happened to it, from its
// apply to running containers, and prints that. It is pure.
package journey

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/wasmplane/wasmplane/core/trace"
)

// Journey is what happened to one object from its apply on: the steps of the
// object itself, then those of what it owns, and so on down to running containers.
type Journey struct {
	Kind       string    `json:"kind"`
	Namespace  string    `json:"namespace,omitempty"`
	Name       string    `json:"name"`
	Generation int64     `json:"generation,omitempty"`
	Start      time.Time `json:"start"` // offsets count from here
	// Outcome in one sentence: "2 of 2 pods running, the last after 1.2s".
	Outcome string     `json:"outcome,omitempty"`
	Root    *Traveller `json:"object,omitempty"` // nil where nothing is known
	// Unknown are sentences about what the store cannot tell (any more).
	Unknown []string `json:"unknown,omitempty"`
}

// Traveller is one object of a journey.
type Traveller struct {
	Kind      string  `json:"kind"`
	Namespace string  `json:"namespace,omitempty"`
	Name      string  `json:"name"`
	UID       string  `json:"uid,omitempty"`
	Steps     []*Step `json:"steps,omitempty"`
	// Hidden counts updates of its status, which are not among the steps.
	Hidden int          `json:"hiddenStatusUpdates,omitempty"`
	Owned  []*Traveller `json:"owned,omitempty"`
}

// Step is one thing that was done.
type Step struct {
	Name      string            `json:"name"`
	Component string            `json:"component,omitempty"`
	Summary   string            `json:"summary,omitempty"`
	Offset    float64           `json:"offsetMs"`
	Duration  float64           `json:"durationMs"`
	Error     string            `json:"error,omitempty"`
	Attrs     map[string]string `json:"attributes,omitempty"`
	Events    []StepEvent       `json:"events,omitempty"`
	Steps     []*Step           `json:"steps,omitempty"`
}

// StepEvent is a moment within a step.
type StepEvent struct {
	Name   string            `json:"name"`
	Offset float64           `json:"offsetMs"`
	Attrs  map[string]string `json:"attributes,omitempty"`
}

// Of is the journey of an object, as far as a store knows it.
func Of(s *trace.Store, q trace.Query) (*Journey, error) {
	if q.Kind == "" || q.Name == "" {
		return nil, fmt.Errorf("journey of kind %q, name %q: both are needed", q.Kind, q.Name)
	}
	spans, known := s.Collect(q)
	return Assemble(q, spans, known), nil
}

// Assemble makes a journey of spans, in any order. It is pure.
func Assemble(q trace.Query, spans []trace.Span, known trace.Known) *Journey {
	a := assembly{query: q, spans: spans, known: known}
	a.link()
	a.identify()
	a.place()
	return a.journey()
}

// assembly is the work on one journey.
type assembly struct {
	query trace.Query
	spans []trace.Span
	known trace.Known

	byID     map[spanID]*trace.Span
	children map[spanID][]*trace.Span
	objects  map[string]*thing      // by key
	names    map[string][]*thing    // by nameKey, those with a uid, oldest first
	home     map[*trace.Span]*thing // whom a span is about
	start    time.Time              // steps that ended before it are not shown
}

// thing is an object as the spans tell of it. Its key is its uid, or its name
// where no uid is known.
type thing struct {
	key, kind, resource, namespace, name, uid, owner string

	first time.Time     // first heard of
	spans []*trace.Span // about it, whose parents are not
}

type spanID struct{ trace, id string }

func idOf(s *trace.Span) spanID     { return spanID{s.Trace, s.ID} }
func parentOf(s *trace.Span) spanID { return spanID{s.Trace, s.Parent} }

func (a *assembly) link() {
	a.byID, a.children = map[spanID]*trace.Span{}, map[spanID][]*trace.Span{}
	slices.SortStableFunc(a.spans, func(x, y trace.Span) int {
		return cmp.Or(x.Start.Compare(y.Start), y.End.Compare(x.End), strings.Compare(x.ID, y.ID))
	})
	for i := range a.spans {
		s := &a.spans[i]
		a.byID[idOf(s)] = s
		if s.Parent != "" {
			a.children[parentOf(s)] = append(a.children[parentOf(s)], s)
		}
	}
}

// identify learns of all objects that spans and their events name with a uid.
func (a *assembly) identify() {
	a.objects, a.names = map[string]*thing{}, map[string][]*thing{}
	for i := range a.spans {
		s := &a.spans[i]
		a.learn(s.Attrs, s.Start)
		for _, e := range s.Events {
			a.learn(e.Attrs, e.Time)
		}
	}
	for _, list := range a.names {
		slices.SortStableFunc(list, func(x, y *thing) int { return x.first.Compare(y.first) })
	}
}

func (a *assembly) learn(m map[string]string, at time.Time) {
	uid := m[string(trace.UIDKey)]
	if uid == "" {
		return
	}
	t := a.objects[uid]
	if t == nil {
		t = &thing{key: uid, uid: uid, first: at}
		a.objects[uid] = t
	}
	if at.Before(t.first) {
		t.first = at
	}
	t.fill(m)
	for _, k := range trace.NamesOf(m) {
		if !slices.Contains(a.names[k], t) {
			a.names[k] = append(a.names[k], t)
		}
	}
}

func (t *thing) fill(m map[string]string) {
	for _, f := range []struct {
		field *string
		value string
	}{
		{&t.kind, trace.KindOf(m[string(trace.ResourceKey)], m[string(trace.KindKey)])},
		{&t.resource, trace.Requested(m[string(trace.ResourceKey)])},
		{&t.namespace, m[string(trace.NamespaceKey)]},
		{&t.name, m[string(trace.NameKey)]},
		{&t.owner, m[string(trace.OwnerUIDKey)]},
	} {
		if *f.field == "" {
			*f.field = f.value
		}
	}
}

// place finds for each span the object that it is about.
func (a *assembly) place() {
	a.home = map[*trace.Span]*thing{}
	for i := range a.spans {
		a.homeOf(&a.spans[i], 0)
	}
	for i := range a.spans {
		s := &a.spans[i]
		t := a.home[s]
		if t == nil {
			continue
		}
		if p := a.byID[parentOf(s)]; p == nil || a.home[p] != t {
			t.spans = append(t.spans, s)
		}
	}
}

func (a *assembly) homeOf(s *trace.Span, depth int) *thing {
	if t, ok := a.home[s]; ok {
		return t
	}
	t := a.own(s)
	if p := a.byID[parentOf(s)]; t == nil && p != nil && p != s && depth < 64 {
		t = a.homeOf(p, depth+1)
	}
	a.home[s] = t
	return t
}

// own is the object that a span names itself.
func (a *assembly) own(s *trace.Span) *thing {
	if uid := s.Get(trace.UIDKey); uid != "" {
		return a.objects[uid]
	}
	if s.Name == trace.Request {
		// The uid of a new object is known only where it is written.
		for _, c := range a.children[idOf(s)] {
			if uid := c.Get(trace.UIDKey); uid != "" && c.Name == trace.StoreWrite {
				return a.objects[uid]
			}
		}
	}
	keys := trace.NamesOf(s.Attrs)
	// Of several objects that had the name, the last one that was known by the time the step ended.
	var best *thing
	for _, k := range keys {
		for _, t := range a.names[k] {
			if best == nil || !t.first.After(s.End) {
				best = t
			}
		}
	}
	if best != nil || len(keys) == 0 {
		return best
	}
	t := a.objects[keys[0]]
	if t == nil {
		t = &thing{key: keys[0], first: s.Start}
		for _, k := range keys {
			a.objects[k] = t
		}
	}
	t.fill(s.Attrs)
	return t
}

func (a *assembly) journey() *Journey {
	q := a.query
	j := &Journey{Kind: q.Kind, Namespace: q.Namespace, Name: q.Name}
	root := a.root()
	if root == nil || len(root.spans) == 0 && !a.ownsAny(root) {
		j.Unknown = append(j.Unknown, fmt.Sprintf("Nothing is recorded about %s: either it does not exist, or nothing has happened to it since recording began at %s (steps are kept in memory, and do not outlive the server).",
			nameOf(q.Kind, q.Namespace, q.Name), clock(a.known.Since)))
		return j
	}
	j.Kind = cmp.Or(root.kind, q.Kind)
	apply := a.begin(root, j)
	j.Root = a.travel(root, map[*thing]bool{})
	j.Outcome = a.outcome(j, apply)
	j.Unknown = append(j.Unknown, a.unknown(j, root, apply)...)
	return j
}

func (a *assembly) root() *thing {
	if a.query.UID != "" {
		return a.objects[a.query.UID]
	}
	for _, k := range a.query.Names() {
		if list := a.names[k]; len(list) > 0 {
			latest := list[len(list)-1]
			if a.query.All {
				a.merge(latest, list[:len(list)-1])
			}
			return latest
		}
		if t := a.objects[k]; t != nil {
			return t
		}
	}
	return nil
}

// merge shows earlier objects of the same name with the latest one.
func (a *assembly) merge(into *thing, others []*thing) {
	for _, o := range others {
		into.spans = append(into.spans, o.spans...)
		for _, t := range a.objects {
			if t.owner == o.uid {
				t.owner = into.uid
			}
		}
	}
	slices.SortStableFunc(into.spans, func(x, y *trace.Span) int { return x.Start.Compare(y.Start) })
}

func (a *assembly) ownsAny(t *thing) bool {
	for _, o := range a.objects {
		if t.uid != "" && o.owner == t.uid {
			return true
		}
	}
	return false
}

// begin finds the apply that the journey begins with: the first request that
// made the latest generation; where generations are not known, the last write of somebody
// who is not a part of the system; else a refused one. nil where none is known.
func (a *assembly) begin(root *thing, j *Journey) *trace.Span {
	var made, last, refused *trace.Span
	for _, s := range root.spans {
		if !isWrite(s) {
			continue
		}
		system := strings.HasPrefix(s.Get(trace.UserKey), "system:")
		if failed(s) {
			// Conflicts of controllers are everyday life, not an answer to anybody's apply.
			if !system {
				refused = s
			}
			continue
		}
		if g, err := strconv.ParseInt(s.Get(trace.GenerationKey), 10, 64); err == nil &&
			(g > j.Generation || g == j.Generation && !system && made != nil && scales(made)) {
			made, j.Generation = s, g
		}
		if last == nil || !system || s.Get(trace.VerbKey) == "create" {
			last = s
		}
		if made != nil && scales(s) {
			made = s // a Scale does not tell the generation that it makes
			j.Generation++
		}
	}
	apply := cmp.Or(made, last)
	if refused != nil && (apply == nil || refused.Start.After(apply.Start)) {
		apply = refused // the newest thing that anybody asked for
	}
	switch {
	case apply != nil:
		a.start = apply.Start
	case len(root.spans) > 0:
		a.start = root.spans[0].Start
	default:
		a.start = root.first
	}
	j.Start = a.start
	if a.query.All {
		for _, s := range root.spans {
			if s.Start.Before(j.Start) {
				j.Start = s.Start
			}
		}
		a.start = j.Start
	}
	return apply
}

func scales(s *trace.Span) bool { return strings.HasSuffix(s.Get(trace.ResourceKey), "/scale") }

// isWrite: the span is a request that writes what the user wants of the object.
func isWrite(s *trace.Span) bool {
	if s.Name != trace.Request || strings.Contains(s.Get(trace.ResourceKey), "/") && !scales(s) {
		return false
	}
	switch s.Get(trace.VerbKey) {
	case "create", "update", "patch", "apply":
		return true
	}
	return false
}

func failed(s *trace.Span) bool { return s.Error != "" || status(s) >= 400 }

func status(s *trace.Span) int {
	n, err := strconv.Atoi(s.Get(trace.StatusKey))
	if err != nil {
		return 0
	}
	return n
}

// travel makes the part of the journey that an object and what it owns have in it.
func (a *assembly) travel(t *thing, seen map[*thing]bool) *Traveller {
	seen[t] = true
	out := &Traveller{Kind: cmp.Or(t.kind, t.resource), Namespace: t.namespace, Name: t.name, UID: t.uid}
	for _, s := range t.spans {
		if s.Start.Before(a.start) && !s.End.After(a.start) {
			continue
		}
		if !a.query.All && s.Name == trace.Request && strings.HasSuffix(s.Get(trace.ResourceKey), "/status") && !failed(s) {
			out.Hidden++
			continue
		}
		out.Steps = append(out.Steps, a.step(s, t))
	}
	slices.SortStableFunc(out.Steps, func(x, y *Step) int { return cmp.Compare(x.when(), y.when()) })
	for _, o := range slices.SortedFunc(maps.Values(a.objects),
		func(x, y *thing) int { return cmp.Or(x.first.Compare(y.first), strings.Compare(x.key, y.key)) }) {
		if t.uid == "" || o.owner != t.uid || seen[o] {
			continue
		}
		if c := a.travel(o, seen); len(c.Steps)+len(c.Owned) > 0 || !o.first.Before(a.start) {
			out.Owned = append(out.Owned, c)
		}
	}
	return out
}

func (a *assembly) step(s *trace.Span, t *thing) *Step {
	st := &Step{
		Name: s.Name, Component: s.Get(trace.ComponentKey), Summary: describe(s), Error: s.Error,
		Offset: ms(s.Start.Sub(a.start)), Duration: ms(s.End.Sub(s.Start)), Attrs: s.Attrs,
	}
	for _, e := range s.Events {
		st.Events = append(st.Events, StepEvent{Name: e.Name, Offset: ms(e.Time.Sub(a.start)), Attrs: e.Attrs})
	}
	for _, c := range a.children[idOf(s)] {
		if a.home[c] == t && c != s {
			below := a.step(c, t)
			if c.Name == trace.Authenticate && below.Summary == "" {
				below.Summary = s.Get(trace.UserKey)
			}
			st.Steps = append(st.Steps, below)
		}
	}
	return st
}

// when is the moment at which a step has its place among others: its beginning,
// but for Running, which is the end of a wait.
func (s *Step) when() float64 {
	if s.Name == trace.Running {
		return s.Offset + s.Duration
	}
	return s.Offset
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// outcome says how the journey ended.
func (a *assembly) outcome(j *Journey, apply *trace.Span) string {
	if apply != nil && failed(apply) {
		if by := a.refusal(apply); by != "" {
			return "refused " + by
		}
		return fmt.Sprintf("refused: %s (status %s)", cmp.Or(apply.Error, "failed"), apply.Get(trace.StatusKey))
	}
	pods, running, latest := 0, 0, 0.0
	j.Root.each(func(t *Traveller) {
		if t.Kind != "Pod" && t.Kind != "pods" || t.gone() {
			return
		}
		pods++
		for _, s := range t.Steps {
			if s.Name == trace.Running && s.Error == "" {
				running++
				latest = max(latest, s.Offset+s.Duration)
				break
			}
		}
	})
	switch {
	case pods == 0:
		return ""
	case running == 0:
		return fmt.Sprintf("none of %d pods running yet", pods)
	}
	return fmt.Sprintf("%d of %d pods running, the last after %s", running, pods, duration(latest))
}

func (t *Traveller) each(visit func(*Traveller)) {
	visit(t)
	for _, o := range t.Owned {
		o.each(visit)
	}
}

// gone: the object was deleted.
func (t *Traveller) gone() bool {
	return slices.ContainsFunc(t.Steps, func(s *Step) bool {
		return s.Name == trace.Request && s.Attrs[string(trace.VerbKey)] == "delete" && s.Error == "" &&
			!strings.Contains(s.Attrs[string(trace.ResourceKey)], "/")
	})
}

// refusal finds who below a request said no.
func (a *assembly) refusal(s *trace.Span) string {
	for _, c := range a.children[idOf(s)] {
		if by := a.refusal(c); by != "" {
			return by
		}
		if c.Get(trace.DecisionKey) == "deny" || c.Error != "" {
			who := cmp.Or(c.Get(trace.PluginKey), c.Name)
			return fmt.Sprintf("by %s: %s", who, cmp.Or(c.Get(trace.MessageKey), c.Error))
		}
	}
	return ""
}

// unknown says what the journey may lack.
func (a *assembly) unknown(j *Journey, root *thing, apply *trace.Span) []string {
	var out []string
	if apply == nil {
		out = append(out, fmt.Sprintf("The request that made %s as it is now is not known: recording began at %s (steps are kept in memory, and do not outlive the server).",
			nameOf(j.Kind, root.namespace, root.name), clock(a.known.Since)))
	}
	if a.known.Forgotten > 0 && !a.known.ForgottenUpTo.Before(j.Start) {
		out = append(out, fmt.Sprintf("%d steps had to make room for newer ones, some of them younger than the beginning of this journey: steps may be missing.", a.known.Forgotten))
	}
	for _, c := range slices.Sorted(maps.Keys(a.known.Lost)) {
		out = append(out, fmt.Sprintf("%d steps of %s were lost before they got here: its steps may be missing.", a.known.Lost[c], c))
	}
	return out
}

func nameOf(kind, namespace, name string) string {
	text := strings.ToLower(kind) + "/" + name
	if namespace != "" {
		text += " in namespace " + namespace
	}
	return text
}

func clock(t time.Time) string { return t.Format("2006-01-02 15:04:05") }
