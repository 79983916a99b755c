// SPDX-License-Identifier: Apache-2.0

// Package point is what the adapters at the decision points share: a plugin that
// keeps its name while its module is swapped, the call from a Go value to an
// answer, and the record that every call leaves in metrics and trace.
//
// The adapters are in folders of their own, one for each contract of core. To
// core, a plugin is just another implementation.
package point

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	oteltrace "go.opentelemetry.io/otel/trace"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/trace"
	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/host"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/rights"
)

// Hook is one operation of a loaded module, ready to be called.
type Hook struct {
	*abi.Hook
	Projection *abi.Projection
}

// Version is one loaded version of a plugin: module, entry and manifest. It does not change.
type Version struct {
	Entry    manifest.Entry
	Digest   string
	Manifest *abi.Manifest
	// Module is nil where the policy is in expressions, and where nothing could be loaded.
	Module *host.Module
	// Guest answers the hooks: the module itself, or an adapter over one that
	// speaks another ABI.
	Guest Guest
	// Err is why the entry could not be loaded. Such a version stands where none
	// could be loaded before: it fails at every point that the entry names.
	Err error

	hooks   map[abi.Point]*Hook
	pending bool

	once sync.Once
	kept any
}

// Once keeps with a version what admission makes of its rules, which it makes once.
func (v *Version) Once(makes func() any) any {
	v.once.Do(func() { v.kept = makes() })
	return v.kept
}

// Guest answers calls of hooks, in the words of the plugin ABI.
type Guest interface {
	Call(ctx context.Context, op int32, input []byte) ([]byte, host.Usage, error)
}

// Foreign says whether the module speaks another ABI than ours.
func (v *Version) Foreign() bool {
	_, own := v.Guest.(*host.Module)
	return v.Guest != nil && !own
}

// Loaded says that the version has something that answers calls.
func (v *Version) Loaded() bool { return v != nil && v.Err == nil && v.Guest != nil }

// NotLoaded is the kind of fault of an entry that could not be loaded.
const NotLoaded host.Kind = "not loaded"

// NewBroken makes a version of an entry that could not be loaded. What was meant to
// protect something fails by its failure policy, for all that it would have been asked: at the
// points of the entry, else at those of the module, as far as it could be read (m, which may be
// nil), by its rules. Where neither is known it validates, and its entry's rules alone,
// or nothing, narrow what.
func NewBroken(e manifest.Entry, m *abi.Manifest, err error) *Version {
	v := &Version{Entry: e, Err: err, Manifest: &abi.Manifest{Name: e.Name}, hooks: map[abi.Point]*Hook{}}
	known := m != nil && len(m.Hooks) > 0
	if known {
		v.Manifest = m
	}
	points := e.Points
	if len(points) == 0 && !known {
		points = e.LikelyPoints()
	}
	for _, p := range points {
		v.hooks[abi.Point(p)] = &Hook{Hook: &abi.Hook{Point: abi.Point(p)}}
	}
	for i := range v.Manifest.Hooks {
		if h := v.Manifest.Hooks[i]; e.Wants(h.Point) {
			v.hooks[h.Point] = &Hook{Hook: &abi.Hook{Point: h.Point, Match: h.Match}}
		}
	}
	return v
}

// NewPending makes a version of an entry that is being loaded for the first time: what it
// guards is refused meanwhile, with Err, which tells clients when to try again.
func NewPending(e manifest.Entry) *Version {
	v := &Version{
		Entry: e, Manifest: &abi.Manifest{Name: e.Name}, hooks: map[abi.Point]*Hook{}, pending: true,
		Err: loading(e.Name),
	}
	for _, p := range []abi.Point{
		abi.Authorization, abi.AdmissionMutate, abi.AdmissionValidate, abi.CustomResourceValidate,
		abi.NodeAdmission,
	} {
		if slices.Contains(e.Guards, string(p)) {
			v.hooks[p] = &Hook{Hook: &abi.Hook{Point: p}}
		}
	}
	return v
}

// NewUnused makes the version of a plugin that takes no part in this process.
func NewUnused(e manifest.Entry) *Version {
	return &Version{Entry: e, Manifest: &abi.Manifest{Name: e.Name}}
}

// retryAfter is when a client may ask again, in seconds.
const retryAfter = 1

func loading(plugin string) error {
	err := apierrors.NewServiceUnavailable(fmt.Sprintf("plugin %q guards this request, and is being loaded; try again", plugin))
	err.ErrStatus.Details = &metav1.StatusDetails{Name: plugin, Group: manifest.APIGroup, Kind: "plugins", RetryAfterSeconds: retryAfter}
	return err
}

// Pending says that the version stands for one that is being loaded.
func (v *Version) Pending() bool { return v != nil && v.pending }

// Held is why a request has to wait that a pending version guards; nil where its mode or its
// failure policy let it pass.
func (v *Version) Held() error {
	if v.Entry.Mode != manifest.Enforce || v.Entry.FailurePolicy == manifest.Ignore {
		return nil
	}
	return v.Err
}

// NewVersion puts a version together.
func NewVersion(e manifest.Entry, digest string, m *abi.Manifest, mod *host.Module) *Version {
	return NewForeign(e, digest, m, mod, mod)
}

// NewForeign puts a version together whose module is called through an adapter.
func NewForeign(e manifest.Entry, digest string, m *abi.Manifest, mod *host.Module, g Guest) *Version {
	v := &Version{Entry: e, Digest: digest, Manifest: m, Module: mod, Guest: g, hooks: map[abi.Point]*Hook{}}
	for i := range m.Hooks {
		h := &m.Hooks[i]
		if e.Wants(h.Point) {
			v.hooks[h.Point] = &Hook{Hook: h, Projection: abi.NewProjection(h)}
		}
	}
	return v
}

// NewGroup makes the version of a group: it has no module of its own, its adapter
// asks the members.
func NewGroup(e manifest.Entry) *Version {
	v := &Version{Entry: e, Manifest: &abi.Manifest{Name: e.Name}, hooks: map[abi.Point]*Hook{}}
	v.hooks[abi.AdmissionValidate] = &Hook{Hook: &abi.Hook{Point: abi.AdmissionValidate}}
	return v
}

// Hook returns the hook at a point, nil where the plugin takes no part.
func (v *Version) Hook(p abi.Point) *Hook { return v.hooks[p] }

// Plugin is a plugin by its name. Which version answers is decided at each call,
// so that a swap is between two calls, and a call ends with the version that it began with.
type Plugin struct {
	name    string
	current atomic.Pointer[Version]
	removed atomic.Bool
	metrics *Metrics

	candidate atomic.Pointer[Candidate]

	series sync.Map // abi.Point -> *series
	Stats  Stats
}

// Stats are counts since the plugin was first loaded.
type Stats struct {
	Calls, Failures, Denials atomic.Int64
	Nanoseconds, Fuel        atomic.Int64
	lastError                atomic.Pointer[string]
}

// LastError is the last failure's message.
func (s *Stats) LastError() string {
	if p := s.lastError.Load(); p != nil {
		return *p
	}
	return ""
}

// NewPlugin makes a plugin without a version.
func NewPlugin(name string, m *Metrics) *Plugin {
	p := &Plugin{name: name, metrics: m}
	m.plugins.Store(name, p)
	return p
}

// Name is the plugin's name.
func (p *Plugin) Name() string { return p.name }

// Current is the version in force; nil where none is loaded.
func (p *Plugin) Current() *Version { return p.current.Load() }

// Swap puts a version in force and returns the one before it, which the caller closes.
func (p *Plugin) Swap(v *Version) *Version { return p.current.Swap(v) }

// Remove says that the plugin's entry is gone: a request that began before takes it for
// one that has no part, and does not fail because there is no version.
func (p *Plugin) Remove() { p.removed.Store(true) }

// ErrNotLoaded is what a plugin without a version fails with.
var ErrNotLoaded = errors.New("no version of the plugin is loaded")

// writers keep the memory of inputs between calls.
var writers = sync.Pool{New: func() any { return new(abi.Writer) }}

// Call is one finished call, to be recorded once it is known what was decided.
type Call struct {
	Plugin  *Plugin
	Version *Version
	Hook    *Hook
	Answer  []byte
	Usage   host.Usage
	Err     error // a *host.Fault, a *host.GuestError, or ErrNotLoaded
	// Remembered: the answer is one that was given to the same question before.
	Remembered bool
	start      time.Time
}

// Ask projects doc onto what the hook at pt declared, and calls it. kind chooses
// among the alternatives of paths. It returns nil where the plugin takes no part at pt.
func (p *Plugin) Ask(ctx context.Context, pt abi.Point, kind string, doc any) *Call {
	return p.AskOnce(ctx, pt, kind, doc, nil)
}

// AskOnce is Ask with a cache: a hook that declares itself pure is called once for
// what it reads, and not again while its answer is remembered. cache may be nil.
func (p *Plugin) AskOnce(ctx context.Context, pt abi.Point, kind string, doc any, cache *Cache) *Call {
	for {
		v := p.current.Load()
		if v == nil {
			if p.removed.Load() {
				return nil
			}
			return &Call{Plugin: p, Err: ErrNotLoaded, start: time.Now()}
		}
		h := v.hooks[pt]
		if h == nil {
			return nil
		}
		c := &Call{Plugin: p, Version: v, Hook: h, start: time.Now()}
		if v.Err != nil {
			c.Err = &host.Fault{Plugin: p.name, Kind: NotLoaded, Detail: v.Err.Error(), Err: v.Err}
			return c
		}
		w := writers.Get().(*abi.Writer)
		h.Projection.Write(w, doc, kind)
		if !h.Pure || !cache.find(c, w.Bytes()) {
			c.Answer, c.Usage, c.Err = v.Guest.Call(ctx, h.Op, w.Bytes())
			if h.Pure && c.Err == nil {
				cache.keep(c, w.Bytes())
			}
		}
		writers.Put(w)
		if errors.Is(c.Err, host.ErrClosed) && p.current.Load() != v {
			continue // swapped in between: the new version answers
		}
		p.compare(ctx, pt, kind, doc, c)
		return c
	}
}

// Fail marks a call as failed whose answer could not be understood, or whose plugin
// did what its writer may not do.
func (c *Call) Fail(err error) {
	kind := BadAnswer
	var lacking *rights.LackingError
	var unknown *rights.UnknownWriterError
	if errors.As(err, &lacking) || errors.As(err, &unknown) {
		kind = LacksRights
	}
	c.Err = &host.Fault{Plugin: c.Plugin.name, Kind: kind, Detail: err.Error(), Err: err}
}

// LacksRights is the kind of fault of a plugin whose writer may not do what it is about to do.
const LacksRights host.Kind = "lacks rights"

// BadAnswer is the kind of fault of an answer that makes no sense at its point.
const BadAnswer host.Kind = "bad answer"

// Policy is the failure policy in force, or fallback where the entry says nothing.
func (c *Call) Policy(fallback manifest.FailurePolicy) manifest.FailurePolicy {
	if c.Version == nil || c.Version.Entry.FailurePolicy == "" {
		return fallback
	}
	return c.Version.Entry.FailurePolicy
}

// Mode is the mode of the entry; Enforce where none is loaded.
func (c *Call) Mode() manifest.Mode {
	if c.Version == nil {
		return manifest.Enforce
	}
	return c.Version.Entry.Mode
}

// Outcome is what a call came to, for the record.
type Outcome struct {
	Decision string // "allow", "deny", "patch", "no opinion", ...
	Message  string
	Patch    string
	// Span is the name of a span to record; empty: the attributes go onto the
	// span that is current, which is then the plugin's own.
	Span string
}

// Record counts a call and writes it into the trace.
func (c *Call) Record(ctx context.Context, pt abi.Point, o Outcome) {
	s := &c.Plugin.Stats
	s.Calls.Add(1)
	s.Nanoseconds.Add(int64(c.Usage.Duration))
	s.Fuel.Add(c.Usage.Fuel)
	if c.Err != nil {
		o.Decision = "failed"
		if o.Message == "" {
			o.Message = c.Err.Error()
		}
		s.Failures.Add(1)
		text := c.Err.Error()
		s.lastError.Store(&text)
	}
	if o.Decision == "deny" {
		s.Denials.Add(1)
	}
	c.Plugin.observe(c, pt, o.Decision)
	parent := oteltrace.SpanFromContext(ctx)
	if !parent.IsRecording() {
		return
	}
	if o.Span == "" {
		parent.SetAttributes(c.attributes(pt, o, false)...)
		return
	}
	_, span := parent.TracerProvider().Tracer("plugins").Start(ctx, o.Span,
		oteltrace.WithTimestamp(c.start), oteltrace.WithAttributes(c.attributes(pt, o, true)...))
	if c.Err != nil {
		span.SetStatus(codes.Error, c.Err.Error())
	}
	span.End()
}

// attributes describe the call; all of them where the span is ours alone.
func (c *Call) attributes(pt abi.Point, o Outcome, all bool) []attribute.KeyValue {
	attrs := []attribute.KeyValue{trace.FuelKey.Int64(c.Usage.Fuel)}
	if c.Version != nil {
		attrs = append(attrs, trace.DigestKey.String(c.Version.Digest))
		if m := c.Version.Entry.Mode; m != manifest.Enforce {
			attrs = append(attrs, trace.ModeKey.String(string(m)))
			all = true // the caller's own record says nothing of it
		}
	}
	if !all && c.Err == nil {
		return attrs
	}
	attrs = append(attrs, trace.PluginKey.String(c.Plugin.name), trace.PointKey.String(string(pt)), trace.DecisionKey.String(o.Decision))
	if o.Message != "" {
		attrs = append(attrs, trace.MessageKey.String(o.Message))
	}
	if o.Patch != "" {
		attrs = append(attrs, trace.PatchKey.String(o.Patch))
	}
	return attrs
}

// Stack is the guest's stack of a failed call, for the log; "" where there is none.
func (c *Call) Stack() string {
	var f *host.Fault
	if errors.As(c.Err, &f) {
		return f.Stack
	}
	return ""
}
