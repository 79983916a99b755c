// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/codes"
	oteltrace "go.opentelemetry.io/otel/trace"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/wasmplane/wasmplane/core/trace"
)

// Chain asks its plugins in the order in which they were listed. It is safe for
// concurrent use, also while Replace gives it another list.
type Chain struct {
	list    atomic.Pointer[list]
	metrics *metrics
	differ  differ
}

// list is the plugins in their order, each with what its spans always say.
type list struct {
	plugins            []Plugin
	mutates, validates []oteltrace.SpanStartEventOption
}

func newList(plugins []Plugin) *list {
	l := &list{plugins: plugins}
	for _, p := range plugins {
		l.mutates = append(l.mutates, says(p, trace.AdmissionMutate))
		l.validates = append(l.validates, says(p, trace.AdmissionValidate))
	}
	return l
}

func says(p Plugin, point string) oteltrace.SpanStartEventOption {
	return oteltrace.WithAttributes(trace.PluginKey.String(p.Name()), trace.PointKey.String(point))
}

// NewChain makes a chain of plugins. Two plugins of one name would be told apart
// nowhere, in no error, trace or metric: that is refused.
func NewChain(plugins ...Plugin) (*Chain, error) {
	c := &Chain{metrics: newMetrics()}
	return c, c.Replace(plugins...)
}

// Replace swaps the list. Calls that are under way finish with the list that
// they began with.
func (c *Chain) Replace(plugins ...Plugin) error {
	seen := map[string]bool{}
	for _, p := range plugins {
		if p.Name() == "" {
			return errors.New("an admission plugin has no name")
		}
		if seen[p.Name()] {
			return fmt.Errorf("two admission plugins are named %q: rename or remove one", p.Name())
		}
		seen[p.Name()] = true
		_, mutates := p.(Mutator)
		_, validates := p.(Validator)
		if !mutates && !validates {
			return fmt.Errorf("admission plugin %q neither mutates nor validates", p.Name())
		}
	}
	c.list.Store(newList(slices.Clone(plugins)))
	return nil
}

// Plugins is the list in force. The caller must not change it.
func (c *Chain) Plugins() []Plugin { return c.list.Load().plugins }

// Order names who is asked, in the order in which they are.
func (c *Chain) Order() (mutators, validators []string) {
	for _, p := range c.Plugins() {
		if _, ok := p.(Mutator); ok {
			mutators = append(mutators, p.Name())
		}
		if _, ok := p.(Validator); ok {
			validators = append(validators, p.Name())
		}
	}
	return mutators, validators
}

// Handles says whether any plugin wants to see the request, so that a server can
// spare itself reading an old object that nobody looks at.
func (c *Chain) Handles(r *Request) bool {
	return slices.ContainsFunc(c.Plugins(), func(p Plugin) bool { return p.Handles(r) })
}

// Mutate asks every mutator, in order, then asks again, once, those that have
// not seen the last change. After each change the object's defaults are filled in.
func (c *Chain) Mutate(ctx context.Context, r *Request) (err error) {
	defer func(began time.Time) { c.metrics.observeStep("admit", r.Operation, err, began) }(time.Now())
	l := c.list.Load()
	seen := make([]int, len(l.plugins)) // the object's changes when the plugin last looked; -1: it did not
	for again := range 2 {
		for i, p := range l.plugins {
			m, ok := p.(Mutator)
			if !ok || again == 1 && (seen[i] < 0 || seen[i] == r.changes() && !wantsAgain(p, r)) {
				continue
			}
			if seen[i] = -1; !p.Handles(r) {
				continue
			}
			if err := c.mutate(ctx, m, r, l.mutates[i]); err != nil {
				return err
			}
			seen[i] = r.changes()
		}
	}
	return nil
}

func wantsAgain(p Plugin, r *Request) bool {
	a, ok := p.(Again)
	return ok && a.Again(r)
}

// changes counts what happened to the object; a delete has none.
func (r *Request) changes() int {
	if r.Object == nil {
		return 0
	}
	return r.Object.Changes()
}

func (c *Chain) mutate(ctx context.Context, m Mutator, r *Request, says oteltrace.SpanStartEventOption) error {
	ctx, call := c.begin(ctx, trace.AdmissionMutate, m, r, says)
	before := r.changes()
	err := m.Mutate(ctx, r)
	if err == nil && r.changes() != before {
		err = applyDefaults(r)
		call.patched(r)
	}
	return call.end(err)
}

// applyDefaults fills in what the changed object leaves open: a sidecar that a plugin
// added needs a pull policy like any other container.
func applyDefaults(r *Request) error {
	v, err := r.Object.Versioned()
	if err != nil {
		return fmt.Errorf("the plugin's object cannot be read: %w", err)
	}
	r.Object.Codec().Default(v)
	r.Object.SetVersioned(v)
	return nil
}

// Validate asks every validator, in order, until one refuses. Where the object was
// changed on behalf of others, each is asked as these, too.
func (c *Chain) Validate(ctx context.Context, r *Request) (err error) {
	defer func(began time.Time) { c.metrics.observeStep("validate", r.Operation, err, began) }(time.Now())
	l := c.list.Load()
	for i, p := range l.plugins {
		v, ok := p.(Validator)
		if !ok || !p.Handles(r) {
			continue
		}
		if err := c.validate(ctx, v, r, l.validates[i]); err != nil {
			return err
		}
		if _, charges := p.(Charger); charges {
			continue
		}
		if err := c.validateAsAuthors(ctx, v, r, l.validates[i]); err != nil {
			return err
		}
	}
	return nil
}

func (c *Chain) validateAsAuthors(ctx context.Context, v Validator, r *Request, says oteltrace.SpanStartEventOption) error {
	for _, as := range r.asAuthors() {
		if !v.Handles(as) {
			continue
		}
		if err := c.validate(ctx, v, as, says); err != nil {
			return apierrors.NewForbidden(r.Resource.GroupResource(), r.displayName(),
				fmt.Errorf("a plugin changed the object on behalf of its writer, %q, who may not do so: %w", as.User.GetName(), err))
		}
	}
	return nil
}

func (c *Chain) validate(ctx context.Context, v Validator, r *Request, says oteltrace.SpanStartEventOption) error {
	ctx, call := c.begin(ctx, trace.AdmissionValidate, v, r, says)
	before := r.changes()
	err := v.Validate(ctx, r)
	if err == nil && r.changes() != before {
		// What was validated before would not be what is stored.
		err = apierrors.NewInternalError(fmt.Errorf("admission plugin %q changed the object while validating it", v.Name()))
	}
	return call.end(err)
}

// call is one plugin's turn, with what is recorded of it.
type call struct {
	chain   *Chain
	span    oteltrace.Span
	point   string
	plugin  Plugin
	request *Request
	before  runtime.Object // the versioned object before the call, only while recording
	began   time.Time
	changed bool
}

// begin starts a span if the request is recorded. Spans come from the tracer of
// the request's own span.
func (c *Chain) begin(ctx context.Context, point string, p Plugin, r *Request,
	says oteltrace.SpanStartEventOption,
) (context.Context, *call) {
	k := &call{chain: c, point: point, plugin: p, request: r, began: time.Now()}
	parent := oteltrace.SpanFromContext(ctx)
	if !parent.IsRecording() {
		return ctx, k
	}
	ctx, k.span = parent.TracerProvider().Tracer("admission").Start(ctx, point, says)
	if point == trace.AdmissionMutate && r.Object != nil {
		if o, err := r.Object.Versioned(); err == nil {
			k.before = o
		}
	}
	return ctx, k
}

func (k *call) patched(r *Request) {
	k.changed = true
	if k.span == nil || k.before == nil {
		return
	}
	after, err := r.Object.Versioned()
	if err != nil {
		return
	}
	k.span.SetAttributes(trace.PatchKey.String(patchText(k.chain.differ.changes(k.before, after))))
}

// end records the outcome and words the refusal.
func (k *call) end(err error) error {
	err = refusal(k.plugin, k.request, err)
	k.chain.metrics.observe(k.plugin.Name(), k.point, k.request.Operation, err != nil, time.Since(k.began))
	if k.span == nil {
		return err
	}
	switch {
	case err != nil:
		k.span.SetAttributes(trace.DecisionKey.String("deny"), trace.MessageKey.String(err.Error()))
		k.span.SetStatus(codes.Error, err.Error())
	case k.changed:
		k.span.SetAttributes(trace.DecisionKey.String("patch"))
	default:
		k.span.SetAttributes(trace.DecisionKey.String("allow"))
	}
	k.span.End()
	return err
}

// refusal turns a plugin's error into what the client sees. API status errors
// stay as they are; native plugins and webhooks have words of their own.
func refusal(p Plugin, r *Request, err error) error {
	if err == nil {
		return nil
	}
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return err
	}
	return Forbidden(r, fmt.Errorf("admission plugin %q denied the request: %w", p.Name(), err))
}

// Forbidden words a refusal as upstream does: `pods "web" is forbidden: why`.
func Forbidden(r *Request, why error) error {
	if apierrors.IsForbidden(why) {
		return why
	}
	return apierrors.NewForbidden(r.Resource.GroupResource(), r.displayName(), why)
}

// displayName is the request's name, or what is known before a name is generated.
func (r *Request) displayName() string {
	if r.Name != "" {
		return r.Name
	}
	if r.Object != nil {
		m, err := r.Object.Meta()
		switch {
		case err != nil:
			return "Unknown/errorGettingName"
		case m.GetName() != "":
			return m.GetName()
		case m.GetGenerateName() != "":
			return m.GetGenerateName()
		}
	}
	return "Unknown"
}
