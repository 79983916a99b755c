// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/abi/settingschema"
	"github.com/wasmplane/wasmplane/plugins/foreign"
	"github.com/wasmplane/wasmplane/plugins/foreign/celguest"
	"github.com/wasmplane/wasmplane/plugins/host"
	"github.com/wasmplane/wasmplane/plugins/hostfn"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/point"
	pointadmission "github.com/wasmplane/wasmplane/plugins/point/admission"
	"github.com/wasmplane/wasmplane/plugins/point/customresource"
	"github.com/wasmplane/wasmplane/plugins/rego"
	"github.com/wasmplane/wasmplane/plugins/source"
)

// What a tenant's entry may ask of fetching, whatever is written there.
const (
	tenantTimeout = time.Minute
	tenantMaxSize = 32 << 20
)

// bounded is an entry that asks of fetching what its origin may.
func bounded(from Origin, e manifest.Entry) manifest.Entry {
	if from == Tenant {
		e.Fetch.Timeout = min(e.Fetch.Timeout, manifest.Duration(tenantTimeout))
		e.Fetch.MaxSize = min(e.Fetch.MaxSize, tenantMaxSize)
	}
	return e
}

// fetchModule fetches an entry's module, and compiles a policy's text.
func (l *Loader) fetchModule(ctx context.Context, j *load, e manifest.Entry) (*source.Module, error) {
	m, err := l.fetchSource(ctx, j, e)
	if err != nil || m.Bundle == nil {
		return m, err
	}
	j.fetched = fetched{m.Digest, m.Tag}
	if m.Wasm = m.Bundle.Wasm; m.Wasm == nil {
		m.Wasm, err = l.host.Rego(ctx, m.Bundle.Policy, host.Options{Tenant: e.Namespace, Progress: j.progress})
	}
	return m, err
}

// fetchSource fetches what an entry's source holds: a local file at once, any other in its turn.
func (l *Loader) fetchSource(ctx context.Context, j *load, e manifest.Entry) (*source.Module, error) {
	e = bounded(j.origin, e)
	if e.Kind() == manifest.KindRego {
		wasm, err := l.host.Rego(ctx, e.Policy(), host.Options{Tenant: e.Namespace, Progress: j.progress})
		if err != nil {
			return nil, err
		}
		return &source.Module{Wasm: wasm, Digest: source.Digest(wasm)}, nil
	}
	if e.Kind() == "file" {
		return l.fetch.Fetch(ctx, &e)
	}
	j.progress("waiting for its turn to be fetched")
	leave, err := l.fetching.Enter(ctx, e.Namespace)
	if err != nil {
		return nil, fmt.Errorf("waiting for its turn to be fetched: %w", err)
	}
	defer leave()
	j.progress("being fetched")
	return l.fetch.Fetch(ctx, &e)
}

// Rego compiles a policy's text within an operator's limits, and returns the module.
func (l *Loader) Rego(ctx context.Context, p rego.Policy) ([]byte, error) {
	return l.host.Rego(ctx, p, host.Options{})
}

// version reads, checks, compiles and starts a module, without touching what is in force.
func (l *Loader) version(ctx context.Context, j *load, e manifest.Entry) (*point.Version, error) {
	if e.Kind() == manifest.KindCEL {
		return l.inCEL(ctx, e)
	}
	got, err := l.fetchModule(ctx, j, e)
	if err != nil {
		return nil, err
	}
	wasm, digest := got.Wasm, got.Digest
	speaks, err := foreign.Recognise(wasm, &e)
	if err != nil {
		return nil, err
	}
	if speaks != manifest.Wasmplane {
		v, err := l.foreignVersion(ctx, j, speaks, got, e)
		if err == nil {
			err = l.permitted(ctx, v)
		}
		if err != nil {
			return nil, knowing(foreign.Describe(speaks, wasm, &e), err)
		}
		return v, nil
	}
	settings, err := e.SettingsJSON()
	if err != nil {
		return nil, err
	}
	setup := &setup{settings: settings}
	mod, err := l.host.Compile(ctx, wasm, host.Options{
		Name: e.Name, Tenant: e.Namespace, Progress: j.progress,
		Limits: e.HostLimits(), PerCall: e.Isolation == manifest.PerCall,
		Clock: e.Grants.Clock, Random: e.Grants.Random,
		Funcs: l.cfg.Functions.Set(&e), Setup: setup.run,
	})
	if err != nil {
		return nil, err
	}
	v, err := l.started(ctx, j, e, digest, mod, setup)
	if err != nil {
		return nil, errors.Join(err, mod.Close())
	}
	return v, nil
}

// inCEL compiles a policy in expressions, which has no module.
func (l *Loader) inCEL(ctx context.Context, e manifest.Entry) (*point.Version, error) {
	m := celguest.Manifest(&e)
	g, err := celguest.New(&e)
	if err != nil {
		return nil, knowing(m, err)
	}
	text, err := json.Marshal(e.CEL)
	if err != nil {
		return nil, knowing(m, err)
	}
	v := point.NewForeign(e, source.Digest(text), m, nil, g)
	if err := errors.Join(pointadmission.Check(v), l.rights(ctx, v)); err != nil {
		return nil, knowing(m, err)
	}
	return v, nil
}

// started starts a module in its turn, and holds what it says of itself against its entry.
func (l *Loader) started(ctx context.Context, j *load, e manifest.Entry, digest string, mod *host.Module,
	s *setup,
) (*point.Version, error) {
	j.progress("waiting for its turn to be started")
	leave, err := l.starting.Enter(ctx, e.Namespace)
	if err != nil {
		return nil, fmt.Errorf("waiting for its turn to be started: %w", err)
	}
	defer leave()
	j.progress("being started")
	m, err := l.describe(ctx, &e, mod, s)
	if m != nil && m.SettingsSchema != nil {
		l.schemas.learn(e.Namespace, digest, m.SettingsSchema)
	}
	if err != nil {
		return nil, knowing(m, err)
	}
	if mod.IsComponent() && m.Hook(abi.SchedulingTable) != nil && !mod.Judges() {
		return nil, knowing(m, fmt.Errorf("a component takes part at %s by a function table, which it does not export (world table-plugin of sdk/wit): export it, or take part at %s and %s", abi.SchedulingTable, abi.SchedulingFilter, abi.SchedulingScore))
	}
	v := point.NewVersion(e, digest, m, mod)
	if err := errors.Join(pointadmission.Check(v), customresource.Check(v), l.rights(ctx, v)); err != nil {
		return nil, knowing(m, err)
	}
	return v, nil
}

// rights: what a plugin of the API asks for and where it takes part is within the
// rights of its writer.
func (l *Loader) rights(ctx context.Context, v *point.Version) error {
	return l.cfg.Functions.Rights().Check(ctx, &v.Entry, pointsOf(v))
}

// permitted is rights for a module that nobody else closes.
func (l *Loader) permitted(ctx context.Context, v *point.Version) error {
	err := l.rights(ctx, v)
	if err != nil {
		err = errors.Join(err, v.Module.Close())
	}
	return err
}

// knownError is why a module could not be loaded that has told what it is: its failure
// policy then decides for what it would have been asked, and for no more.
type knownError struct {
	error
	manifest *abi.Manifest
}

func (e *knownError) Unwrap() error { return e.error }

func knowing(m *abi.Manifest, err error) error {
	if m == nil {
		return err
	}
	return &knownError{err, m}
}

// foreignVersion loads a module that was written for another project.
func (l *Loader) foreignVersion(ctx context.Context, j *load, speaks manifest.ABI, m *source.Module,
	e manifest.Entry,
) (*point.Version, error) {
	cfg := foreign.Config{
		Host: l.host, Functions: l.cfg.Functions, Logger: l.cfg.Logger, Progress: j.progress, Digest: m.Digest, Bundle: m.Bundle,
	}
	v, err := foreign.Load(ctx, cfg, speaks, m.Wasm, e)
	if err != nil {
		return nil, err
	}
	if err := pointadmission.Check(v); err != nil {
		return nil, errors.Join(err, v.Module.Close())
	}
	return v, nil
}

// setup passes the settings to every instance, once it is known that the plugin takes any.
type setup struct {
	settings []byte
	takes    bool
}

func (s *setup) run(ctx context.Context, in *host.Instance) error {
	if !s.takes {
		return nil
	}
	settings := s.settings
	if settings == nil {
		settings = []byte("{}")
	}
	_, _, err := in.StartCall(ctx, abi.OpSettings, settings)
	var refused *host.GuestError
	if errors.As(err, &refused) {
		return fmt.Errorf("the plugin refuses its settings: %s", refused.Message)
	}
	return err
}

// describe asks the module what it is: once without and, where it takes settings,
// once with them, as the fields that it reads may depend on them.
func (l *Loader) describe(ctx context.Context, e *manifest.Entry, mod *host.Module, s *setup) (*abi.Manifest, error) {
	first, err := mod.Lease(ctx)
	if err != nil {
		return nil, err
	}
	m, err := parseManifest(ctx, first)
	if err == nil && !m.Settings && s.settings != nil && string(s.settings) != "{}" {
		err = errors.New("the entry has settings, but the plugin takes none")
	}
	mod.Discard(first)
	if err == nil && m.SettingsSchema != nil {
		err = settingschema.Check(m.SettingsSchema, s.settings)
	}
	if err != nil {
		return m, err
	}
	if m.Settings {
		s.takes = true
	}
	err = mod.With(ctx, func(in *host.Instance) error {
		if !m.Settings {
			return nil
		}
		again, err := parseManifest(ctx, in)
		if err == nil {
			m = again
		}
		return err
	})
	if err != nil {
		return m, err
	}
	return m, checkManifest(e, m)
}

func parseManifest(ctx context.Context, in *host.Instance) (*abi.Manifest, error) {
	b, err := in.Describe(ctx)
	if err != nil {
		return nil, err
	}
	return abi.ParseManifest(b)
}

// checkManifest holds what a module offers and needs against its entry.
func checkManifest(e *manifest.Entry, m *abi.Manifest) error {
	var errs []error
	for _, p := range e.Points {
		if m.Hook(abi.Point(p)) == nil {
			errs = append(errs, fmt.Errorf("points: the module has no hook for %s; it has %v", p, m.Points()))
		}
	}
	granted := hostfn.Set(e, slog.New(slog.DiscardHandler))
	for _, need := range m.Needs {
		if granted[need] != nil {
			continue
		}
		if grant := hostfn.Grant(need); grant != "" {
			errs = append(errs, fmt.Errorf("the plugin needs the host function %q: grant it with grants.%s", need, grant))
		} else {
			errs = append(errs, fmt.Errorf("the plugin needs the host function %q, which this host does not have", need))
		}
	}
	return errors.Join(errs...)
}
