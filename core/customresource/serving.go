// SPDX-License-Identifier: Apache-2.0

package customresource

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/util/webhook"

	"github.com/wasmplane/wasmplane/core/api"
	"github.com/wasmplane/wasmplane/core/customresource/conversion"
	"github.com/wasmplane/wasmplane/core/customresource/extension"
	"github.com/wasmplane/wasmplane/core/dial"
	"github.com/wasmplane/wasmplane/core/registry"
	"github.com/wasmplane/wasmplane/core/run"
	"github.com/wasmplane/wasmplane/core/watchcache"
)

// Config is what serving needs.
type Config struct {
	// Registries get a row for each definition whose names were accepted.
	Registries *registry.Set
	// Contract says what is built in, which no definition replaces.
	Contract *api.Contract
	// Services says where conversion webhooks of services are; nil = by DNS.
	Services webhook.ServiceResolver
	// Dial says where conversion webhooks may be; nil: an operator's policy.
	Dial *dial.Policy
	// Extension converts and validates beside the definitions; nil = nobody does.
	Extension extension.Extension
	Logger    *slog.Logger // nil = discard
}

// Serving follows the definitions in the store and serves what they define.
type Serving struct {
	cfg      Config
	env      *environment
	registry *registry.Registry // of the definitions themselves
	ready    chan struct{}
	readied  sync.Once

	mu     sync.Mutex
	served map[string]*served // by the definition's name
}

// served is a definition as it was when it was looked at last.
type served struct {
	revision int64
	def      *definition // nil = it is not served: its names are not accepted
	resource schema.GroupResource
	builtin  bool
	// state of the row that is served.
	established, terminating bool
}

// definitions is the resource that everything here follows.
func definitions() schema.GroupResource {
	return schema.GroupResource{Group: apiextensionsv1.GroupName, Resource: "customresourcedefinitions"}
}

// New checks cfg.
func New(cfg Config) (*Serving, error) {
	switch {
	case cfg.Registries == nil:
		return nil, errors.New("customresource: Config.Registries is missing")
	case cfg.Contract == nil:
		return nil, errors.New("customresource: Config.Contract is missing")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Extension == nil {
		cfg.Extension = extension.None{}
	}
	own, ok := cfg.Registries.For(definitions())
	if !ok {
		return nil, fmt.Errorf("customresource: the registries do not serve %s", definitions())
	}
	hooks, err := conversion.NewWebhooks(cfg.Services, cfg.Dial.Or())
	if err != nil {
		return nil, err
	}
	return &Serving{
		cfg: cfg, registry: own, env: &environment{webhooks: hooks, extension: cfg.Extension, log: cfg.Logger},
		ready: make(chan struct{}), served: map[string]*served{},
	}, nil
}

// Ready is closed once everything that was defined before Run is served.
func (s *Serving) Ready() <-chan struct{} { return s.ready }

// retry is the pause after a failure of following the definitions.
const retry = time.Second

// Run follows the definitions until ctx ends.
func (s *Serving) Run(ctx context.Context) error {
	for {
		err := s.follow(ctx)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // whatever it was, the end was asked for
		}
		s.cfg.Logger.WarnContext(ctx, "the watch of the definitions of custom resources broke off; beginning again", "error", err)
		run.Sleep(ctx, retry)
	}
}

func (s *Serving) request() *registry.Request {
	return &registry.Request{Version: "v1", User: &user.DefaultInfo{Name: user.APIServerUser}}
}

// follow looks at the definitions whenever one of them changes. What changed is
// found by looking at all of them, so that no event can be missed.
func (s *Serving) follow(ctx context.Context) error {
	w, err := s.registry.Watch(ctx, s.request(), registry.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return err
	}
	defer w.Stop()
	for {
		if err := s.sync(ctx, "0"); err != nil {
			return err
		}
		s.readied.Do(func() { close(s.ready) })
		if _, err := w.Next(ctx); err != nil {
			return err
		}
	}
}

// CatchUp returns once everything is served that was defined before it was called.
func (s *Serving) CatchUp(ctx context.Context) error { return s.sync(ctx, "") }

// sync serves what is defined, as of the newest state for resourceVersion "" and
// of what the watch cache has for "0".
func (s *Serving) sync(ctx context.Context, resourceVersion string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	list, err := s.registry.List(ctx, s.request(), registry.ListOptions{ResourceVersion: resourceVersion})
	if err != nil {
		return fmt.Errorf("list the definitions: %w", err)
	}
	present := make(map[string]bool, len(list.Items))
	for _, item := range list.Items {
		name := item.Fields.Get("metadata.name")
		present[name] = true
		if was := s.served[name]; was != nil && was.revision == item.Revision {
			continue
		}
		if err := s.take(ctx, name, item); err != nil {
			s.cfg.Logger.ErrorContext(ctx, "a definition cannot be served", "definition", name, "error", err)
		}
	}
	for name, was := range s.served {
		if !present[name] {
			s.drop(was)
			delete(s.served, name)
		}
	}
	return nil
}

func (s *Serving) drop(was *served) {
	if was.def != nil && !was.builtin {
		s.cfg.Registries.Remove(was.resource)
	}
}

// take serves one definition that is new or has changed.
func (s *Serving) take(ctx context.Context, name string, item *watchcache.Item) error {
	crd, err := s.read(ctx, item)
	if err != nil {
		return err
	}
	was := s.served[name]
	now := &served{revision: item.Revision}
	s.served[name] = now
	established := apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established)
	if !established && !apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.NamesAccepted) {
		if was != nil {
			s.drop(was)
		}
		return nil
	}
	if now.def, err = s.definition(ctx, crd, was); err != nil {
		if was != nil {
			s.drop(was)
		}
		return err
	}
	now.resource = now.def.gr
	if _, now.builtin = s.cfg.Contract.Resource(now.resource); now.builtin {
		return nil // what is built in is served as such, whatever anybody defines
	}
	now.established = established
	now.terminating = crd.DeletionTimestamp != nil || apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Terminating)
	if was != nil && was.def == now.def && was.established == now.established && was.terminating == now.terminating {
		return nil // a label, or a condition that nobody here reads: discovery need not be made anew
	}
	return s.cfg.Registries.Add(now.def.row(now.established, now.terminating))
}

// Renew has objects read anew, for an Extension that converts them in another
// way than before: what was converted is remembered otherwise. affected picks the
// converters by the name that definitions give them; the watches of their
// resources end, and clients list again.
func (s *Serving) Renew(ctx context.Context, affected func(converter string) bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var failures []error
	for name, is := range s.served {
		if is.def == nil || is.builtin {
			continue
		}
		if converter := converterOfCRD(is.def.crd); converter == "" || !affected(converter) {
			continue
		}
		def, err := define(ctx, s.env, is.def.crd)
		if err == nil {
			is.def = def
			err = s.cfg.Registries.Add(def.row(is.established, is.terminating))
		}
		if err != nil {
			failures = append(failures, fmt.Errorf("renew %s: %w", name, err))
		}
	}
	return errors.Join(failures...)
}

// definition is the one that is served already, where neither spec nor names nor
// converter changed: what it has compiled, and the watches on it, go on.
func (s *Serving) definition(ctx context.Context, crd *apiextensionsv1.CustomResourceDefinition, was *served) (*definition, error) {
	if was != nil && was.def != nil && was.def.crd.UID == crd.UID && converterOfCRD(was.def.crd) == converterOfCRD(crd) &&
		apiequality.Semantic.DeepEqual(was.def.crd.Spec, crd.Spec) &&
		apiequality.Semantic.DeepEqual(was.def.crd.Status.AcceptedNames, crd.Status.AcceptedNames) {
		return was.def, nil
	}
	return define(ctx, s.env, crd)
}

func (s *Serving) read(ctx context.Context, item *watchcache.Item) (*apiextensionsv1.CustomResourceDefinition, error) {
	o, err := s.registry.InVersion(ctx, item, "v1")
	if err != nil {
		return nil, err
	}
	versioned, err := o.Versioned()
	if err != nil {
		return nil, err
	}
	crd, ok := versioned.(*apiextensionsv1.CustomResourceDefinition)
	if !ok {
		return nil, fmt.Errorf("read a %T where a CustomResourceDefinition was expected", versioned)
	}
	return crd, nil
}

// Serves says whether this server serves the resource that a definition defines,
// as it is defined now.
func (s *Serving) Serves(name string, uid string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	is := s.served[name]
	return is != nil && is.def != nil && string(is.def.crd.UID) == uid
}

// errNotServed is the answer about a definition that is not served.
var errNotServed = errors.New("the definition is not served")

// Purge deletes all objects of a definition, and answers how many are left.
// Built-in resources are not touched, whoever defines them again.
func (s *Serving) Purge(ctx context.Context, name string) (left int, err error) {
	s.mu.Lock()
	is := s.served[name]
	s.mu.Unlock()
	switch {
	case is == nil || is.def == nil:
		return 0, fmt.Errorf("%s: %w", name, errNotServed)
	case is.builtin:
		return 0, nil
	}
	reg, ok := s.cfg.Registries.For(is.resource)
	if !ok {
		return 0, fmt.Errorf("%s: %w", name, errNotServed)
	}
	return reg.Purge(ctx, s.request().User)
}

// BuiltIn says whether a definition defines what is built in.
func (s *Serving) BuiltIn(crd *apiextensionsv1.CustomResourceDefinition) bool {
	_, builtin := s.cfg.Contract.Resource(schema.GroupResource{Group: crd.Spec.Group, Resource: crd.Spec.Names.Plural})
	return builtin
}
