// SPDX-License-Identifier: Apache-2.0

// Package scan asks policies about what is stored already, and keeps what they have against it: in reports of
// the open formats, and wherever else a policy's users look.
//
// A pass costs what has changed since the one before. Of each object it is remembered in which revision it was
// judged, and by which versions of the policies about its kind: a changed object is judged by all of them, an
// unchanged one by those alone that are new or have changed. What is remembered survives a restart, in a file.
//
// Passes have a low priority: between short turns of work the scanner waits for as long as it has worked. Which policies
// and objects there are, and where results go, is the caller's.
package scan

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/run"
)

// Resource is one of those that are served.
type Resource struct {
	schema.GroupVersionResource
	Kind string
}

// Item is a stored object, not read yet.
type Item struct {
	Key       string // unique among those of its resource
	Revision  int64
	Namespace string
	Of        any // the caller's own
}

// Policy is one that wants to be asked about what is stored.
type Policy interface {
	// Info names it; its Key is unique among the policies.
	Info() Info
	// Version changes whenever it may judge otherwise than before; "" = it cannot be asked now, and what it
	// has against objects stays as long as they do not change.
	Version() string
	// About is the operation by which the policy may be about objects of a resource; "" = it is not.
	About(Resource) admission.Operation
	// Judge says what the policy has against an object, and whether it is about it at all.
	Judge(context.Context, *admission.Request) (asked bool, against []Objection, err error)
}

// Info is what reports say of a policy.
type Info struct {
	Key                string
	Source             string // the project whose policy it is
	Policy             string
	Category, Severity string
	// Warns: what it has against an object is a warning.
	Warns bool
	// Space is the namespace to which the policy belongs, whose policies share their time; "" = it has its own.
	Space string
	// About is the object that the policy is, where it shows totals itself, and Action what it does.
	About  *Reference
	Action string
}

// budget is the name by which a policy's time is counted. Keys have a slash.
func (i *Info) budget() string { return cmp.Or(i.Space, i.Key) }

// Objection is something that a policy has against an object.
type Objection struct {
	Message string
	Failed  bool // the policy could not be evaluated
}

// Reference names an object.
type Reference struct {
	APIVersion, Kind, Namespace, Name, UID string
}

// World is what a scanner sees.
type World interface {
	// Judges are the policies that there are now, each with another key.
	Judges(context.Context) ([]Policy, error)
	// Resources are those whose objects are judged.
	Resources(context.Context) ([]Resource, error)
	// Items are the objects of a resource.
	Items(context.Context, Resource) ([]Item, error)
	// Request is as if an object were made, or written as it is, now.
	Request(context.Context, Resource, *Item, admission.Operation) (*admission.Request, error)
	// Labels answers a number that changes with the labels of a namespace.
	Labels(namespace string) uint64
	// Known are the reports that there are, by Report.ID; it may lag behind.
	Known(context.Context) (map[string]bool, error)
}

// Sink is where results go.
type Sink interface {
	// Write makes a report, or brings it up to date.
	Write(context.Context, *Report) error
	// Remove removes the report about an object.
	Remove(ctx context.Context, id string) error
	// Totals are what a policy has against objects, which it shows itself (Info.About).
	Totals(ctx context.Context, policy Info, total int, first []Violation) error
}

// Violation is what a policy has against one object.
type Violation struct {
	Object  Reference
	Message string
}

// Bounds.
const (
	mostMessage    = 1 << 10 // bytes
	mostObjections = 20      // of one policy against one object
	mostViolations = 20      // that a policy shows itself
	failuresInARow = 3       // of a policy, after which a pass leaves it alone

	// longest is how long a policy, or those of a namespace together, may work in one pass. What is left the
	// next pass asks: no policy keeps the others' results back.
	longest = 10 * time.Second

	// askAgain is when a policy that failed is asked about the object again.
	askAgain = 10 * time.Minute
)

// Config configures a Scanner.
type Config struct {
	World World
	Sink  Sink
	// Reports is how many objects have reports at most; 0 = none have.
	Reports int
	// Share is how many of them may be about the objects of one namespace; 0 = all.
	Share int
	// File keeps what is remembered; "" = nothing is kept.
	File string
	// Every is how often a pass begins; 0 = 15 s.
	Every time.Duration
	// Turn is how long a pass works before it waits as long; 0 = 5 ms.
	Turn   time.Duration
	Logger *slog.Logger
}

// Scanner makes passes.
type Scanner struct {
	cfg     Config
	memory  memory
	changed bool // since the file was written
	saved   time.Time
	shown   map[string]uint64 // sums of totals, by policy
	full    map[string]bool   // that there are too many reports was logged, by namespace; "" = in all
	turn    time.Time         // when the turn of work began

	// Of the pass that goes on.
	failures map[string]int           // in a row, by policy
	worked   map[string]time.Duration // by policy, or by the namespace of policies
	known    map[string]bool
	reports  int
	of       map[string]int // reports, by namespace
	judged   int            // objects
}

// New makes a scanner. Run runs it.
func New(cfg Config) *Scanner {
	cfg.Every, cfg.Turn = cmp.Or(cfg.Every, 15*time.Second), cmp.Or(cfg.Turn, 5*time.Millisecond)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Scanner{cfg: cfg, shown: map[string]uint64{}, full: map[string]bool{}}
	s.load()
	return s
}

// Run makes passes until ctx ends.
func (s *Scanner) Run(ctx context.Context) error {
	for {
		if _, err := s.Pass(ctx); err != nil && ctx.Err() == nil {
			s.cfg.Logger.WarnContext(ctx, "stored objects could not all be judged by the policies; they will be", "error", err)
		}
		if !run.Sleep(ctx, s.cfg.Every) {
			s.save(ctx)
			return nil
		}
	}
}

// Pass judges what has changed since the one before, and says how many objects were judged.
func (s *Scanner) Pass(ctx context.Context) (judged int, err error) {
	policies, err := s.cfg.World.Judges(ctx)
	if err != nil {
		return 0, err
	}
	resources, err := s.cfg.World.Resources(ctx)
	if err != nil {
		return 0, err
	}
	if s.cfg.Reports > 0 {
		if s.known, err = s.cfg.World.Known(ctx); err != nil {
			return 0, err
		}
	}
	slices.SortFunc(policies, func(a, b Policy) int { return cmp.Compare(a.Info().Key, b.Info().Key) })
	s.failures, s.worked, s.judged, s.turn = map[string]int{}, map[string]time.Duration{}, 0, time.Now()
	s.reports, s.of = s.memory.reports()
	there := map[string]bool{}
	var failed []error
	for _, r := range resources {
		there[r.String()] = true
		if err := s.resource(ctx, r, policies); err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", r.GroupResource(), err))
		}
		if ctx.Err() != nil {
			return s.judged, ctx.Err()
		}
	}
	for name, objects := range s.memory.Objects {
		if !there[name] {
			for key := range objects {
				s.forget(ctx, name, key, false)
			}
			delete(s.memory.Objects, name)
		}
	}
	s.totals(ctx, policies)
	if s.changed && time.Since(s.saved) >= time.Minute {
		s.save(ctx)
	}
	return s.judged, errors.Join(failed...)
}

// resource judges the objects of a resource.
func (s *Scanner) resource(ctx context.Context, r Resource, all []Policy) error {
	about := slices.DeleteFunc(slices.Clone(all), func(p Policy) bool { return p.About(r) == "" })
	objects := s.memory.Objects[r.String()]
	if len(about) == 0 {
		for key := range objects {
			s.forget(ctx, r.String(), key, true)
		}
		delete(s.memory.Objects, r.String())
		return nil
	}
	items, err := s.cfg.World.Items(ctx, r)
	if err != nil {
		return err
	}
	if objects == nil {
		objects = make(map[string]*object, len(items))
		s.memory.Objects[r.String()] = objects
	}
	sum, now := s.memory.set(about), time.Now()
	s.memory.Pass++
	for i := range items {
		item := &items[i]
		labels := s.cfg.World.Labels(item.Namespace)
		o := objects[item.Key]
		if o == nil {
			o = &object{}
			objects[item.Key] = o
		}
		o.seen = s.memory.Pass
		if o.Revision != item.Revision || o.Set != sum || o.Labels != labels || o.again(now) {
			if err := s.judge(ctx, r, item, o, about, sum, labels); err != nil {
				return err
			}
			if !s.pace(ctx) {
				return ctx.Err()
			}
		}
		s.report(ctx, o)
	}
	for key, o := range objects {
		if o.seen != s.memory.Pass {
			s.forget(ctx, r.String(), key, false) // the collector of garbage removes the report with the object
		}
	}
	return nil
}

// judge asks the policies that have to be asked again.
func (s *Scanner) judge(ctx context.Context, r Resource, item *Item, o *object, about []Policy, sum uint64, labels uint64) error {
	before := &set{}
	if o.Revision == item.Revision && o.Labels == labels {
		before = s.memory.Sets[o.Set]
	}
	again := o.again(time.Now())
	s.changed = true
	s.judged++
	fresh := &object{
		Revision: item.Revision, Labels: labels, Set: sum, Asked: make([]byte, (len(about)+7)/8),
		About: o.About, Written: o.Written, seen: o.seen,
	}
	requests := map[admission.Operation]*admission.Request{}
	var left []string
	for i, p := range about {
		info := p.Info()
		at, ok := before.find(info.Key, p.Version())
		if p.Version() == "" {
			if before.has(info.Key) {
				fresh.keep(i, o, at, info.Key)
			}
			continue
		}
		if ok && (!again || !o.failed(info.Key)) {
			fresh.keep(i, o, at, info.Key)
			continue
		}
		if s.failures[info.Key] >= failuresInARow || s.worked[info.budget()] >= longest {
			left = append(left, info.Key) // the next pass asks it
			continue
		}
		asked, against, err := s.ask(ctx, r, p, item, requests)
		if err != nil {
			return err
		}
		fresh.take(i, info, asked, against)
	}
	if len(left) > 0 {
		fresh.Set = s.memory.setWithout(about, left)
	}
	for _, request := range requests {
		s.refer(fresh, request)
		break
	}
	if len(fresh.Findings) == 0 && fresh.Written == 0 {
		fresh.About = nil
	}
	*o = *fresh
	return nil
}

// ask asks one policy. A failure of the policy is something that it has against the object.
func (s *Scanner) ask(ctx context.Context, r Resource, p Policy, item *Item,
	requests map[admission.Operation]*admission.Request,
) (asked bool, against []Objection, err error) {
	info := p.Info()
	op, key := p.About(r), info.Key
	request := requests[op]
	if request == nil {
		if request, err = s.cfg.World.Request(ctx, r, item, op); err != nil {
			return false, nil, err
		}
		requests[op] = request
	}
	began := time.Now()
	asked, against, err = p.Judge(ctx, request)
	s.worked[info.budget()] += time.Since(began)
	if ctx.Err() != nil {
		return false, nil, ctx.Err()
	}
	if err != nil {
		s.failures[key]++
		return true, []Objection{{err.Error(), true}}, nil //nolint:nilerr // it is said in the report
	}
	delete(s.failures, key)
	return asked, against, nil
}

// refer notes what an object is called. One that was made anew under its name has another report.
func (s *Scanner) refer(o *object, request *admission.Request) {
	now := reference(request)
	if o.About != nil && o.About.UID != now.UID {
		o.Written = 0
	}
	if o.About = now; o.Written == 0 && s.known[id(now)] {
		o.Written = unknownSum // by a process that has not left what it knew
	}
}

// unknownSum is that of a report of which nobody knows what it says.
const unknownSum = 1

// pace waits where the turn of work is over. It is false when ctx has ended.
func (s *Scanner) pace(ctx context.Context) bool {
	worked := time.Since(s.turn)
	if worked < s.cfg.Turn {
		return ctx.Err() == nil
	}
	defer func() { s.turn = time.Now() }()
	return run.Sleep(ctx, worked)
}

// reference names what a request is about.
func reference(r *admission.Request) *Reference {
	out := &Reference{Kind: r.Kind.Kind, Namespace: r.Namespace, Name: r.Name}
	out.APIVersion, _ = r.Kind.ToAPIVersionAndKind()
	if m, err := r.Object.Meta(); err == nil {
		out.UID, out.Name, out.Namespace = string(m.GetUID()), m.GetName(), m.GetNamespace()
	}
	return out
}

// forget forgets an object. Its report is removed where it stays itself.
func (s *Scanner) forget(ctx context.Context, resource, key string, remove bool) {
	o := s.memory.Objects[resource][key]
	delete(s.memory.Objects[resource], key)
	s.changed = true
	if o != nil && o.Written != 0 && o.About != nil && remove {
		if err := s.cfg.Sink.Remove(ctx, id(o.About)); err != nil && ctx.Err() == nil {
			s.cfg.Logger.WarnContext(ctx, "a policy report could not be removed", "namespace", o.About.Namespace, "name", o.About.Name, "error", err)
		}
	}
}

// totals shows policies' totals where they show them.
func (s *Scanner) totals(ctx context.Context, policies []Policy) {
	by := map[string][]Violation{}
	count := map[string]int{}
	for _, p := range policies {
		if p.Info().About != nil {
			by[p.Info().Key] = nil
		}
	}
	if len(by) == 0 {
		return
	}
	for _, objects := range s.memory.Objects {
		for _, o := range objects {
			for _, f := range o.Findings {
				if _, wanted := by[f.Key]; wanted && o.About != nil {
					count[f.Key]++
					by[f.Key] = append(by[f.Key], Violation{*o.About, f.Message})
				}
			}
		}
	}
	for _, p := range policies {
		info := p.Info()
		if info.About == nil || p.Version() == "" {
			continue // what is shown stays, with the time at which it was found
		}
		list := by[info.Key]
		slices.SortFunc(list, func(a, b Violation) int {
			return cmp.Or(cmp.Compare(a.Object.Namespace, b.Object.Namespace), cmp.Compare(a.Object.Kind, b.Object.Kind),
				cmp.Compare(a.Object.Name, b.Object.Name), cmp.Compare(a.Message, b.Message))
		})
		list = list[:min(len(list), mostViolations)]
		sum := sumOf(count[info.Key], list, p.Version())
		if s.shown[info.Key] == sum {
			continue
		}
		if err := s.cfg.Sink.Totals(ctx, info, count[info.Key], list); err != nil {
			if ctx.Err() == nil {
				s.cfg.Logger.WarnContext(ctx, "a policy does not show what it has against stored objects", "kind", info.About.Kind,
					"name", info.About.Name, "error", err)
			}
			continue
		}
		s.shown[info.Key] = sum
	}
}

func sumOf(parts ...any) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%q", parts)
	return h.Sum64()
}
