// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// StoreConfig bounds what the store remembers.
type StoreConfig struct {
	MaxSpans int // 0 = 50,000
	MaxBytes int // 0 = 64 MiB
	// MaxPerObject keeps a busy object from pushing out all others; 0 = 500 spans.
	MaxPerObject int
	// Now is the clock; nil = time.Now.
	Now func() time.Time
}

// Store remembers recent spans in memory and finds them by the identity of
// their object. When it is full the oldest go. Safe for concurrent use.
type Store struct {
	cfg   StoreConfig
	began time.Time

	mu      sync.Mutex
	queue   []*entry // oldest first; forgotten ones in it are marked
	live    int
	bytes   int
	byID    map[spanID]*entry
	indexes map[string]*index // by the keys that keysOf gives
	packer  *packer

	forgotten time.Time        // the latest start of a span that is forgotten
	dropped   int64            // how many are
	lost      map[string]int64 // spans that components' exporters dropped, by component
}

type spanID struct{ trace, id string }

// entry is a span as it is remembered, with the steps that ended below it.
type entry struct {
	spanID
	parent string
	start  time.Time
	packed []byte // the rest
	spans  int    // itself and its steps
	in     []*index
	size   int
	gone   bool
}

// index is what is found under a key, oldest first.
type index struct {
	key     string
	entries []*entry
}

// entryBytes is what an entry takes beside what it packs.
const entryBytes = 350

func (s *Store) spanOf(e *entry) Span {
	out := Span{Trace: e.trace, ID: e.id, Parent: e.parent, Start: e.start}
	s.packer.unpack(e.packed, &out)
	return out
}

// spansOf are the entry's span and its steps.
func (s *Store) spansOf(e *entry) []Span {
	out := make([]Span, 1, e.spans)
	out[0] = Span{Trace: e.trace, ID: e.id, Parent: e.parent, Start: e.start}
	rest := s.packer.unpack(e.packed, &out[0])
	return append(out, s.packer.unpackSteps(rest, &out[0])...)
}

// under are the entries with a key.
func (s *Store) under(key string) []*entry {
	if x := s.indexes[key]; x != nil {
		return x.entries
	}
	return nil
}

// NewStore makes an empty store.
func NewStore(cfg StoreConfig) (*Store, error) {
	if cfg.MaxSpans < 0 || cfg.MaxBytes < 0 || cfg.MaxPerObject < 0 {
		return nil, errors.New("trace store: bounds must not be negative")
	}
	for _, d := range []struct {
		field *int
		value int
	}{{&cfg.MaxSpans, 50_000}, {&cfg.MaxBytes, 64 << 20}, {&cfg.MaxPerObject, 500}} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Store{
		cfg: cfg, began: cfg.Now(), byID: map[spanID]*entry{}, indexes: map[string]*index{}, packer: newPacker(),
		lost: map[string]int64{},
	}, nil
}

// Add remembers spans. One that is known already is ignored, for exporters repeat themselves.
func (s *Store) Add(spans ...Span) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range spans {
		id := spanID{x.Trace, x.ID}
		if s.byID[id] != nil {
			continue
		}
		e := &entry{spanID: id, parent: x.Parent, start: x.Start, packed: s.packer.pack(&x), spans: 1}
		s.byID[id] = e
		s.remember(e, keysOf(&x))
	}
	s.bound()
}

// addLocal remembers a span that has ended in this process, and its steps. It comes once.
func (s *Store) addLocal(x *localSpan) {
	var room [6]string
	keys := x.keys(room[:0])
	e := &entry{spanID: spanID{strings.TrimPrefix(x.traceKey, traceKeyPrefix), x.context.SpanID().String()}, start: x.start}
	if x.parent.IsValid() {
		e.parent = x.parent.String()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e.packed, e.spans = s.packer.packLocal(x)
	s.remember(e, keys)
	s.bound()
}

func (s *Store) remember(e *entry, keys []string) {
	e.size = len(e.packed) + entryBytes
	e.in = make([]*index, 0, len(keys))
	s.queue = append(s.queue, e)
	s.live += e.spans
	s.bytes += e.size
	for _, k := range keys {
		if !e.gone { // putting it under the key before may have made room by removing it
			s.put(e, k)
		}
	}
}

// bound forgets what is too much.
func (s *Store) bound() {
	for s.live > s.cfg.MaxSpans || s.bytes > s.cfg.MaxBytes {
		s.forget(s.queue[0])
	}
	s.compact()
}

// put adds an entry to an index; where that has too many, the oldest with the steps below it goes.
func (s *Store) put(e *entry, key string) {
	x := s.indexes[key]
	if x == nil {
		x = &index{key: key}
		s.indexes[key] = x
	}
	x.entries = append(x.entries, e)
	e.in = append(e.in, x)
	if bound := s.boundOf(key); bound > 0 && len(x.entries) > bound {
		s.forgetTree(x.entries[0])
	}
}

// forget takes a span out of everything but the queue, where it is only marked
// unless it is the first.
func (s *Store) forget(e *entry) {
	if !e.gone {
		e.gone = true
		s.live -= e.spans
		s.bytes -= e.size
		s.dropped += int64(e.spans)
		if e.start.After(s.forgotten) {
			s.forgotten = e.start
		}
		delete(s.byID, e.spanID)
		for _, x := range e.in {
			i := slices.Index(x.entries, e)
			switch {
			case len(x.entries) == 1:
				delete(s.indexes, x.key)
			case i == 0: // the usual case: what is oldest goes first
				x.entries[0] = nil
				x.entries = x.entries[1:]
			default:
				x.entries = slices.Delete(x.entries, i, i+1)
			}
		}
		e.packed, e.in = nil, nil
	}
	for len(s.queue) > 0 && s.queue[0].gone {
		s.queue[0] = nil
		s.queue = s.queue[1:]
	}
}

// compact drops marked spans from the queue when they are many.
func (s *Store) compact() {
	if len(s.queue) > 2*s.live+1000 {
		s.queue = slices.DeleteFunc(s.queue, func(e *entry) bool { return e.gone })
	}
}

// chatty are resources that are written all the time and tell little.
const chatty = 20

// boundOf is how many spans may be kept under an index key; 0 = any number.
func (s *Store) boundOf(key string) int {
	switch {
	case strings.HasPrefix(key, "name leases "), strings.HasPrefix(key, "name nodes "), strings.HasPrefix(key, "name events "):
		return min(chatty, s.cfg.MaxPerObject)
	case strings.HasPrefix(key, "name "), strings.HasPrefix(key, "uid "):
		return s.cfg.MaxPerObject
	}
	return 0
}

// forgetTree forgets a span with the steps below it.
func (s *Store) forgetTree(e *entry) {
	var below []*entry
	if all := s.under(traceKeyPrefix + e.trace); len(all) > 1 {
		ids := map[string]bool{}
		for _, span := range s.spansOf(e) {
			ids[span.ID] = true
		}
		for _, x := range all {
			if x != e && ids[x.parent] {
				below = append(below, x)
			}
		}
	}
	s.forget(e)
	for _, x := range below {
		s.forgetTree(x)
	}
}

// RecordLost takes what a component's exporter says it has dropped so far.
func (s *Store) RecordLost(lost map[string]int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for component, n := range lost {
		if len(s.lost) < 100 || s.lost[component] > 0 {
			s.lost[component] = max(s.lost[component], n)
		}
	}
}

// keysOf are the keys by which a span is found: its trace, its object, and its owner.
func keysOf(s *Span) []string {
	keys := []string{traceKeyPrefix + s.Trace}
	for _, m := range attrSets(s) {
		keys = append(keys, objectKeys(func(k attribute.Key) string { return m[string(k)] })...)
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// objectKeys are the keys of the object that attributes name.
func objectKeys(get func(attribute.Key) string) []string {
	var keys []string
	if uid := get(UIDKey); uid != "" {
		keys = append(keys, "uid "+uid)
	}
	if uid := get(OwnerUIDKey); uid != "" {
		keys = append(keys, "owner "+uid)
	}
	if get(NameKey) == "" {
		return keys
	}
	return append(keys, nameKeys(get)...)
}

func nameKey(resource, namespace, name string) string {
	if resource == "" || name == "" {
		return ""
	}
	return "name " + resource + " " + namespace + " " + name
}

// NamesOf are the keys of the name of a span's object: by the plural of its kind
// in lower case, as requests know it and as one guesses it of the kind; the two can differ.
func NamesOf(m map[string]string) []string {
	return nameKeys(func(k attribute.Key) string { return m[string(k)] })
}

func nameKeys(get func(attribute.Key) string) []string {
	var keys []string
	for _, r := range []string{Requested(get(ResourceKey)), pluralOf(KindOf(get(ResourceKey), get(KindKey)))} {
		if k := nameKey(r, get(NamespaceKey), get(NameKey)); k != "" && !slices.Contains(keys, k) {
			keys = append(keys, k)
		}
	}
	return keys
}

// Requested is the resource that a request names, without its group: "deployments".
func Requested(resource string) string {
	r, _, _ := strings.Cut(resource, "/")
	r, _, _ = strings.Cut(r, ".")
	return r
}

// KindOf is the kind of a span's object. What a subresource reads and writes
// (a Scale, a Binding) is another kind than the object's.
func KindOf(resource, kind string) string {
	if strings.Contains(resource, "/") {
		return ""
	}
	return kind
}

func pluralOf(kind string) string {
	if kind == "" {
		return ""
	}
	plural, _ := meta.UnsafeGuessKindToResource(schema.GroupVersionKind{Kind: kind})
	return plural.Resource
}

// Exporter feeds the store with spans of this process, at once and without a queue.
func (s *Store) Exporter() sdktrace.SpanExporter { return direct{s} }

type direct struct{ store *Store }

// ExportSpans implements sdktrace.SpanExporter.
func (d direct) ExportSpans(_ context.Context, spans []sdktrace.ReadOnlySpan) error {
	out := make([]Span, len(spans))
	for i, s := range spans {
		out[i] = SpanOf(s)
	}
	d.store.Add(out...)
	return nil
}

// Shutdown implements sdktrace.SpanExporter.
func (d direct) Shutdown(context.Context) error { return nil }

// Query names the object whose journey is asked for.
type Query struct {
	Kind      string // "Deployment"; its plural in lower case will do
	Namespace string
	Name      string
	UID       string // "" = the latest object of that name
	// All shows earlier generations and incarnations, too, and every status update.
	All bool
}

// Names are the keys that the object may be known by: Kind may be a kind or a plural.
func (q Query) Names() []string {
	return []string{nameKey(pluralOf(q.Kind), q.Namespace, q.Name), nameKey(strings.ToLower(q.Kind), q.Namespace, q.Name)}
}

// maxObjects bounds how far a journey follows owners.
const maxObjects = 2000

// Collect finds the spans about an object, about what it owns, and about what
// that owns, and so on, with everything else in their traces. The journey of the
// object is made of them.
func (s *Store) Collect(q Query) ([]Span, Known) {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := map[*entry]bool{}
	uids := map[string]bool{}
	var toVisit []string
	take := func(entries []*entry, meant func(m map[string]string) bool) {
		for _, e := range entries {
			found[e] = true
			span := s.spanOf(e)
			for _, m := range attrSets(&span) {
				if uid := m[string(UIDKey)]; uid != "" && !uids[uid] && meant(m) && len(uids) < maxObjects {
					uids[uid] = true
					toVisit = append(toVisit, uid)
				}
			}
		}
	}
	for _, key := range q.Names() {
		take(s.under(key), func(m map[string]string) bool { return slices.Contains(NamesOf(m), key) })
	}
	if q.UID != "" {
		take(s.under("uid "+q.UID), func(m map[string]string) bool { return m[string(UIDKey)] == q.UID })
	}
	for len(toVisit) > 0 {
		uid := toVisit[0]
		toVisit = toVisit[1:]
		take(s.under("uid "+uid), func(map[string]string) bool { return false })
		take(s.under("owner "+uid), func(m map[string]string) bool { return m[string(OwnerUIDKey)] == uid })
	}
	return s.withTraces(found), s.known()
}

// withTraces adds the descendants of spans: steps that name no object of their own.
func (s *Store) withTraces(found map[*entry]bool) []Span {
	traces := map[string]bool{}
	for e := range found {
		traces[e.trace] = true
	}
	var out []Span
	for t := range traces {
		children := map[string][]*entry{}
		var todo []*entry
		for _, e := range s.under(traceKeyPrefix + t) {
			children[e.parent] = append(children[e.parent], e)
			if found[e] {
				todo = append(todo, e)
			}
		}
		seen := map[*entry]bool{}
		for len(todo) > 0 {
			e := todo[0]
			todo = todo[1:]
			if !seen[e] {
				seen[e] = true
				for _, span := range s.spansOf(e) {
					out = append(out, span)
					todo = append(todo, children[span.ID]...)
				}
			}
		}
	}
	return out
}

func attrSets(s *Span) []map[string]string {
	sets := []map[string]string{s.Attrs}
	for _, e := range s.Events {
		sets = append(sets, e.Attrs)
	}
	return sets
}

func (s *Store) known() Known {
	k := Known{Since: s.began, Forgotten: s.dropped, ForgottenUpTo: s.forgotten, Lost: map[string]int64{}}
	for c, n := range s.lost {
		k.Lost[c] = n
	}
	return k
}

// Known tells what a store cannot know.
type Known struct {
	Since         time.Time        `json:"since"`                   // nothing older was recorded
	Forgotten     int64            `json:"forgotten,omitempty"`     // spans that had to make room
	ForgottenUpTo time.Time        `json:"forgottenUpTo,omitempty"` // the latest start among them
	Lost          map[string]int64 `json:"lost,omitempty"`          // spans that never arrived, by component
}
