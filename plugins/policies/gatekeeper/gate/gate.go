// SPDX-License-Identifier: Apache-2.0

// Package gate has Gatekeeper's mutators and expansion templates take part in admission: it reads them from the API as
// they are when a request comes, so that what was written a moment ago counts.
//
// What a mutator changes it changes on behalf of whoever wrote it: he must be allowed to write such an object himself,
// and what comes of it is validated as his write too. Requests that are out of the reach of plugins are out of its own.
package gate

import (
	"context"
	"errors"
	"fmt"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/matching"
	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/plugins/apiobject"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/point"
	pointadmission "github.com/wasmplane/wasmplane/plugins/point/admission"
	"github.com/wasmplane/wasmplane/plugins/policies/gatekeeper"
	"github.com/wasmplane/wasmplane/plugins/policies/gatekeeper/expansion"
	"github.com/wasmplane/wasmplane/plugins/policies/gatekeeper/externaldata"
	"github.com/wasmplane/wasmplane/plugins/policies/gatekeeper/mutation"
	"github.com/wasmplane/wasmplane/plugins/policies/latest"
	"github.com/wasmplane/wasmplane/plugins/rights"
)

// Names of the admission plugins.
const (
	MutationName  = "GatekeeperMutation"
	ExpansionName = "GatekeeperExpansion"
)

// Objects reads the objects of the API.
type Objects interface {
	latest.Objects
	// ResourceOf finds the resource that serves a kind.
	ResourceOf(kind schema.GroupVersionKind) (schema.GroupVersionResource, error)
}

// External asks a provider of external data about keys. What it answers says of each key its value, or why it has none.
type External interface {
	Values(ctx context.Context, provider string, keys []string) func(key string) (string, error)
}

// Config is what a gate needs.
type Config struct {
	Objects Objects
	// Namespaces answers the labels of a namespace.
	Namespaces pointadmission.Namespaces
	// Rights holds mutators against the rights of their writers.
	Rights *rights.Checker
	// External asks providers of external data; nil = there are none.
	External External
	// Plugins are asked about what objects are going to make: those of constraints.
	Plugins func() []admission.Plugin
}

// Gate is what mutators and expansion templates do in admission.
type Gate struct {
	cfg     Config
	current *latest.Latest[*state]
}

// New makes a gate.
func New(cfg Config) *Gate { return &Gate{cfg: cfg, current: latest.New(cfg.Objects, kinds(), read)} }

// Mutation applies mutators.
func (g *Gate) Mutation() admission.Plugin { return mutating{g} }

// Expansion asks constraints about what objects are going to make.
func (g *Gate) Expansion() admission.Plugin { return expanding{g} }

// state is all that the gate goes by, as it was read.
type state struct {
	version   string // changes with what it was read of
	mutators  *mutation.Set
	writers   map[*mutation.Mutator]*manifest.Entry
	templates *expansion.Set
	settings  gatekeeper.Settings
}

// kinds are those that the gate reads.
func kinds() (out []schema.GroupVersionKind) {
	for _, kind := range mutation.Kinds() {
		out = append(out, schema.GroupVersionKind{Group: mutation.Group, Version: mutation.Versions(kind)[0], Kind: kind})
	}
	return append(out, schema.GroupVersionKind{Group: expansion.Group, Version: expansion.Versions()[0], Kind: expansion.Kind},
		schema.GroupVersionKind{Group: gatekeeper.ConfigGroup, Version: gatekeeper.SettingsVersion, Kind: gatekeeper.ConfigKind})
}

type stateKey struct{}

// stateFor is what a request goes by in all of its turns: what there was at the first.
func (g *Gate) stateFor(ctx context.Context, r *admission.Request) (*state, error) {
	type answer struct {
		s   *state
		err error
	}
	a, _ := r.Memo(stateKey{}, func() any {
		s, err := g.current.Get(ctx)
		return answer{s, err}
	}).(answer)
	return a.s, a.err
}

// read reads what can be. The rest has no effect, and its status says why.
func read(all []*unstructured.Unstructured, version string) *state {
	s := &state{version: version, writers: map[*mutation.Mutator]*manifest.Entry{}}
	var mutators []*mutation.Mutator
	var templates []*expansion.Template
	for _, o := range all {
		switch o.GroupVersionKind().Group {
		case mutation.Group:
			if m, err := mutation.Read(o.Object); err == nil {
				mutators = append(mutators, m)
				s.writers[m] = apiobject.Bare(o)
			}
		case expansion.Group:
			if t, err := expansion.Read(o.Object); err == nil {
				templates = append(templates, t)
			}
		case gatekeeper.ConfigGroup:
			if more, err := gatekeeper.ReadSettings(o.Object); err == nil {
				s.settings.Add(more)
			}
		}
	}
	s.mutators, s.templates = mutation.NewSet(mutators), expansion.NewSet(templates)
	return s
}

// asked says whether a request is one that the gate is about at all.
func asked(r *admission.Request) bool {
	return (r.Operation == admission.Create || r.Operation == admission.Update) && r.Object != nil &&
		gatekeeper.Asked(r.Resource.Resource, r.Subresource) &&
		!strings.HasSuffix(r.Resource.Group, ".gatekeeper.sh") && r.Resource.Group != manifest.APIGroup &&
		!matching.IsReview(r) && !pointadmission.OutOfReach(r)
}

// target is a request's object, a copy.
func (g *Gate) target(ctx context.Context, r *admission.Request) (*gatekeeper.Target, error) {
	tree, err := r.Object.Tree()
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	t := &gatekeeper.Target{
		Object: runtime.DeepCopyJSON(tree), Kind: r.Object.Kind(), Namespace: r.Namespace, Source: gatekeeper.Original,
		Labels: func(namespace string) (map[string]string, error) {
			set, ok := g.cfg.Namespaces(ctx, namespace)
			if !ok {
				return nil, fmt.Errorf("the labels of namespace %s are not known", namespace)
			}
			return set, nil
		},
	}
	if t.Kind.Group == "" && t.Kind.Kind == "Namespace" {
		t.Namespace = "" // it counts as being in itself, which the match knows
	}
	if r.User != nil {
		t.User = r.User.GetName()
	}
	return t, nil
}

type mutating struct{ *Gate }

// Name implements admission.Plugin.
func (mutating) Name() string { return MutationName }

// Handles implements admission.Plugin.
func (mutating) Handles(r *admission.Request) bool { return asked(r) }

// Mutate implements admission.Mutator.
func (g mutating) Mutate(ctx context.Context, r *admission.Request) error {
	s, err := g.stateFor(ctx, r)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	if !s.mutators.Changes(r.Object.Kind()) || !s.settings.Changes(matching.Namespace(r)) {
		return nil
	}
	t, err := g.target(ctx, r)
	if err != nil {
		return err
	}
	t.External = g.external(ctx, s, func(m *mutation.Mutator) error {
		return pointadmission.MayChange(ctx, g.cfg.Rights, s.writers[m], r)
	})
	applied, err := s.mutators.Mutate(t)
	if err != nil {
		return admission.Forbidden(r, fmt.Errorf("mutation: %w", err))
	}
	if len(applied) == 0 {
		return nil
	}
	for _, m := range applied {
		if err := pointadmission.MayChange(ctx, g.cfg.Rights, s.writers[m], r); err != nil {
			return admission.Forbidden(r, fmt.Errorf("mutation by %s: %w", m.ID(), err))
		}
	}
	after, err := r.Object.Codec().FromTree(t.Object)
	if err != nil {
		return admission.Forbidden(r, fmt.Errorf("mutation by %s: what they make of it is no %s: %w", ids(applied), t.Kind.Kind, err))
	}
	r.Object.SetVersioned(after)
	for _, m := range applied {
		r.ChangedFor(s.writers[m].Writer)
	}
	r.Annotate(MutationName+"/applied", ids(applied))
	return nil
}

// external asks for a mutator whose writer may get the Provider: what it is asked about leaves the cluster.
func (g *Gate) external(ctx context.Context, s *state, may func(*mutation.Mutator) error) func(mutator, provider string,
	keys []string) gatekeeper.Answers {
	return func(id, provider string, keys []string) gatekeeper.Answers {
		none := func(err error) gatekeeper.Answers { return func(string) (string, error) { return "", err } }
		for m, writer := range s.writers {
			if m.ID() != id {
				continue
			}
			err := g.cfg.Rights.Act(ctx, writer, authorizationv1.ResourceAttributes{
				Verb: "get", Group: externaldata.Group, Resource: "providers", Name: provider,
			})
			if err == nil && may != nil {
				err = may(m)
			}
			switch {
			case err != nil:
				return none(err)
			case g.cfg.External == nil:
				return none(fmt.Errorf("there is no Provider %q", provider))
			}
			return g.cfg.External.Values(ctx, provider, keys)
		}
		return none(fmt.Errorf("there is no mutator %s", id))
	}
}

func ids(list []*mutation.Mutator) string {
	var out []string
	for _, m := range list {
		out = append(out, m.ID())
	}
	return strings.Join(out, ", ")
}

type expanding struct{ *Gate }

// Name implements admission.Plugin.
func (expanding) Name() string { return ExpansionName }

// Handles implements admission.Plugin.
func (expanding) Handles(r *admission.Request) bool { return asked(r) && r.Subresource == "" }

// Validate implements admission.Validator.
func (g expanding) Validate(ctx context.Context, r *admission.Request) error {
	s, err := g.stateFor(ctx, r)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	if !s.templates.Expands(r.Object.Kind()) {
		return nil
	}
	implied, err := (&Expansions{g.Gate, s}).implied(ctx, r, true)
	if err != nil {
		return admission.Forbidden(r, fmt.Errorf("expansion: %w", err))
	}
	var against []string
	for i := range implied {
		found, err := g.judge(ctx, r, &implied[i])
		if err != nil {
			return err
		}
		against = append(against, found...)
	}
	if len(against) == 0 {
		return nil
	}
	return admission.Forbidden(r, errors.New(strings.Join(against, "; ")))
}

// judge asks all constraints about an object that another one is going to make.
func (g expanding) judge(ctx context.Context, r *admission.Request, i *expansion.Implied) (against []string, err error) {
	about, err := g.request(r, i)
	if err != nil {
		return nil, err
	}
	for _, p := range g.cfg.Plugins() {
		s, ok := p.(pointadmission.Standing)
		if !ok {
			continue
		}
		v := s.Current()
		if v == nil || v.Entry.ABI != manifest.Gatekeeper || !s.Handles(about) {
			continue
		}
		found, err := g.ask(ctx, s, v, about)
		if err != nil {
			return nil, err
		}
		for _, text := range found {
			text = fmt.Sprintf("plugin %q denied the request: %s", s.Name(), i.Message(text))
			switch action(i.Template.Action, v.Entry.Mode) {
			case manifest.Enforce:
				against = append(against, text)
			case manifest.Warn:
				r.Warn(text)
			case manifest.Audit:
				r.Annotate(s.Name()+"/would-refuse", text)
			case manifest.Shadow:
			}
		}
	}
	return against, nil
}

// ask asks one constraint. What cannot be asked is decided by its failure policy.
func (expanding) ask(ctx context.Context, s pointadmission.Standing, v *point.Version, about *admission.Request) ([]string, error) {
	if v.Pending() {
		return nil, v.Held()
	}
	err := v.Err
	if err == nil {
		var found []string
		if _, found, err = s.Judge(ctx, about); err == nil {
			return found, nil
		}
	}
	if v.Entry.Mode != manifest.Enforce || v.Entry.FailurePolicy == manifest.Ignore {
		return nil, nil
	}
	return nil, apierrors.NewInternalError(fmt.Errorf("plugin %q failed at the %s %s that the object implies, and its failurePolicy is Fail: %w",
		s.Name(), about.Kind.Kind, about.Name, err))
}

// action is what a violation does: what the template says, else what the constraint does.
func action(template string, mode manifest.Mode) manifest.Mode {
	switch template {
	case "deny":
		return manifest.Enforce
	case "warn":
		return manifest.Warn
	case "dryrun":
		return manifest.Audit
	}
	return mode
}

// request stands for the one by which an implied object is going to be created.
func (g expanding) request(r *admission.Request, i *expansion.Implied) (*admission.Request, error) {
	resource, err := g.cfg.Objects.ResourceOf(i.Kind)
	if err != nil { // templates may make what nobody serves
		resource, _ = meta.UnsafeGuessKindToResource(i.Kind)
	}
	out := &admission.Request{
		UID: r.UID, Operation: admission.Create, Kind: i.Kind, Resource: resource, Namespace: i.Namespace, User: r.User, DryRun: true,
		Name:   (&unstructured.Unstructured{Object: i.Object}).GetName(),
		Object: object.FromTree(object.Unstructured{GVK: i.Kind}, i.Object),
	}
	pointadmission.Imply(out)
	return out, nil
}
