// SPDX-License-Identifier: Apache-2.0

// Package attempts keeps account of what somebody tried and was refused because it would have been
// more than he may: connections to forbidden addresses, plugins that want more than their writers
// have, modules beyond limits. Whoever tried is told by the part that refuses, and no more than
// before; a Ledger tells the operator, by a counter, an annotation of the request in the audit log,
// a line of the log, and an event of the object on whose behalf it was tried.
//
// The counter's labels are bounded: no user chooses one. Lines and events are told once in ten
// minutes for each thing that was tried by one object, with the number of repetitions, and not
// more than so many a minute of all together: a flood is counted, and fills nothing.
package attempts

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/audit"
)

// Kind is what was attempted.
type Kind string

// Kinds of attempts. Reasons are what is written to the right of each.
const (
	Dial     Kind = "dial"     // the policy that refused: operators, tenants, grant
	Grant    Kind = "grant"    // the field that asks for more than the writer has: read, http, secret, ...
	Act      Kind = "act"      // the verb that the writer of what acts may not: get, update, grant, ...
	Module   Kind = "module"   // the limit that a module is beyond: types, fetch.maxSize, ...
	HostPort Kind = "hostPort" // why a port of the node is refused: reserved, taken
)

// Metric is the counter's name, and Help what it says of itself: each process that refuses something has one.
const (
	Metric = "wasmplane_refused_attempts_total"
	Help   = "What was attempted beyond somebody's rights or limits and refused, by kind and reason."
)

// Other is the reason of what has none of the usual.
const Other = "other"

// AnnotationPrefix begins the audit annotations; the kind follows.
const AnnotationPrefix = "attempts.wasmplane.dev/"

// EventReason is the reason of the events.
const EventReason = "AttemptRefused"

// Bounds of what is remembered and told.
const (
	toldEvery     = 10 * time.Minute // the same again
	toldInAMinute = 60               // of all together
	shareOfMinute = 15               // of one namespace, or of one user where there is none
	mostToldOf    = 1024             // things that are remembered as told
	mostReasons   = 64               // of a kind
	longest       = 512              // bytes of a detail
)

// Subject is on whose behalf something is attempted.
type Subject struct {
	// User whose rights count; "" = nobody is known.
	User string
	// Object that asks for it, such as a plugin; its Name is empty where there is none.
	Object corev1.ObjectReference
}

type subjectKey struct{}

// With says on whose behalf things are attempted in ctx, unless that has been said.
func With(ctx context.Context, s Subject) context.Context {
	if From(ctx) != (Subject{}) {
		return ctx
	}
	return context.WithValue(ctx, subjectKey{}, s)
}

// From is what With said, or the zero value.
func From(ctx context.Context) Subject {
	s, _ := ctx.Value(subjectKey{}).(Subject)
	return s
}

// Attempt is one that was refused.
type Attempt struct {
	Kind Kind
	// Reason is one of a bounded set, which no user chooses; "" = Other.
	Reason string
	// Subject on whose behalf; the zero value = what ctx says.
	Subject Subject
	// Detail is for operators: it stands in the log and the audit log.
	Detail string
	// Event is for whoever may read events of the object; "" = there is no event, because the
	// object tells already or must not tell.
	Event string
}

// Config configures a Ledger.
type Config struct {
	Logger *slog.Logger
	// Now is the clock; nil = the usual one.
	Now func() time.Time
}

// Ledger keeps account. Its methods are safe for concurrent use; a nil Ledger keeps none.
type Ledger struct {
	cfg   Config
	count *prometheus.CounterVec

	mu      sync.Mutex
	event   func(about corev1.ObjectReference, kind, reason, message string)
	reasons map[Kind]map[string]bool
	told    map[key]*telling
	minute  time.Time      // in which
	spoken  int            // so many were told
	shares  map[string]int // and so many of each namespace or user
}

type key struct {
	kind    Kind
	reason  string
	subject Subject
}

type telling struct {
	last  time.Time
	since int // attempts that were not told, from then on
}

// New makes a ledger, which is to be registered (it is a prometheus.Collector).
func New(cfg Config) *Ledger {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Ledger{
		cfg: cfg, reasons: map[Kind]map[string]bool{}, told: map[key]*telling{},
		count: prometheus.NewCounterVec(prometheus.CounterOpts{Name: Metric, Help: Help}, []string{"kind", "reason"}),
	}
}

// Describe implements prometheus.Collector.
func (l *Ledger) Describe(out chan<- *prometheus.Desc) { l.count.Describe(out) }

// Collect implements prometheus.Collector.
func (l *Ledger) Collect(out chan<- prometheus.Metric) { l.count.Collect(out) }

// EventsTo has events recorded by f, which must not wait.
func (l *Ledger) EventsTo(f func(about corev1.ObjectReference, kind, reason, message string)) {
	if l == nil {
		return
	}
	l.mu.Lock()
	l.event = f
	l.mu.Unlock()
}

// Refused writes an attempt down.
func (l *Ledger) Refused(ctx context.Context, a Attempt) {
	if l == nil {
		return
	}
	if a.Subject == (Subject{}) {
		a.Subject = From(ctx)
	}
	a.Detail = cut(a.Detail)
	reason := l.bounded(a.Kind, a.Reason)
	l.count.WithLabelValues(string(a.Kind), reason).Inc()
	annotate(ctx, a)
	repeated, event, due := l.due(key{a.Kind, reason, a.Subject})
	if !due {
		return
	}
	again := ""
	if repeated > 0 {
		again = fmt.Sprintf(" (%d more since this was told last)", repeated)
	}
	o := a.Subject.Object
	l.cfg.Logger.WarnContext(ctx, "an attempt was refused",
		"attempt", string(a.Kind), "reason", reason, "user", a.Subject.User, "kind", o.Kind,
		"namespace", o.Namespace, "name", o.Name, "detail", a.Detail+again)
	if event != nil && a.Event != "" && o.Name != "" {
		event(o, corev1.EventTypeWarning, EventReason, cut(a.Event)+again)
	}
}

// bounded is a reason that may become a label.
func (l *Ledger) bounded(k Kind, reason string) string {
	if reason == "" {
		return Other
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	known := l.reasons[k]
	if known == nil {
		known = map[string]bool{}
		l.reasons[k] = known
	}
	if !known[reason] && len(known) >= mostReasons {
		return Other
	}
	known[reason] = true
	return reason
}

// due says whether an attempt is to be logged now, and how many like it were not.
func (l *Ledger) due(k key) (repeated int, event func(corev1.ObjectReference, string, string, string), due bool) {
	now := l.cfg.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.told[k]
	if t != nil && now.Sub(t.last) < toldEvery {
		t.since++
		return 0, nil, false
	}
	if now.Sub(l.minute) >= time.Minute {
		l.minute, l.spoken, l.shares = now, 0, map[string]int{}
	}
	whose := "namespace " + k.subject.Object.Namespace
	if k.subject.Object.Namespace == "" {
		whose = "user " + k.subject.User
	}
	if l.spoken >= toldInAMinute || l.shares[whose] >= shareOfMinute {
		if t != nil {
			t.since++
		}
		return 0, nil, false
	}
	if t == nil {
		if len(l.told) >= mostToldOf && !l.forget(now) {
			return 0, nil, false
		}
		t = &telling{}
		l.told[k] = t
	}
	l.spoken++
	l.shares[whose]++
	repeated, t.since, t.last = t.since, 0, now
	return repeated, l.event, true
}

// forget makes room by what would be told again anyway. Lock held.
func (l *Ledger) forget(now time.Time) bool {
	for k, t := range l.told {
		if now.Sub(t.last) >= toldEvery {
			delete(l.told, k)
		}
	}
	return len(l.told) < mostToldOf
}

// annotate writes the attempt to the request's record, if ctx is of a request. Of several of a kind
// the first stands there, as an annotation is written once.
func annotate(ctx context.Context, a Attempt) {
	record := audit.AuditContextFrom(ctx)
	if record == nil {
		return
	}
	name := AnnotationPrefix + string(a.Kind)
	if _, there := record.GetEventAnnotation(name); there {
		return
	}
	text := a.Detail
	if o := a.Subject.Object; o.Name != "" {
		text += " (for " + o.Kind + " " + path(o) + ")"
	}
	audit.AddAuditAnnotation(ctx, name, text)
}

func path(o corev1.ObjectReference) string {
	if o.Namespace != "" {
		return o.Namespace + "/" + o.Name
	}
	return o.Name
}

func cut(s string) string {
	if len(s) > longest {
		return s[:longest-3] + "..."
	}
	return s
}
