// SPDX-License-Identifier: Apache-2.0

// Package foreign loads modules that were written for other projects, as they
// are: policies of Kubewarden, policies compiled from Rego, plugins of
// kube-scheduler-wasm-extension. Each becomes a plugin like any other: the same entry,
// match rules, modes, failure policy, limits and grants.
//
// What a module is shows in what it exports and in its metadata; where that leaves
// a doubt, the entry says it (abi, entrypoint). The adapters are in folders of their own.
package foreign

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/component/binary"
	"github.com/wasmplane/wasmplane/plugins/foreign/kubewarden"
	"github.com/wasmplane/wasmplane/plugins/foreign/opa"
	"github.com/wasmplane/wasmplane/plugins/foreign/schedwasm"
	"github.com/wasmplane/wasmplane/plugins/foreign/wapc"
	"github.com/wasmplane/wasmplane/plugins/foreign/wasicmd"
	"github.com/wasmplane/wasmplane/plugins/fuel"
	"github.com/wasmplane/wasmplane/plugins/host"
	"github.com/wasmplane/wasmplane/plugins/hostfn"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/point"
	"github.com/wasmplane/wasmplane/plugins/rego/bundle"
)

// Config is what modules are loaded with.
type Config struct {
	Host      *host.Host
	Functions *hostfn.Functions
	Logger    *slog.Logger
	// Digest of what the module came in.
	Digest string
	// Bundle that the module came in; nil = none.
	Bundle *bundle.Bundle
	// Progress is told what the module waits for; nil = nobody is.
	Progress func(what string)
}

// schedulerExports are what a plugin of kube-scheduler-wasm-extension exports, one of them at least.
var schedulerExports = []string{
	"enqueue", "prefilter", "filter", "postfilter", "prescore", "score", "normalizescore", "reserve", "unreserve",
	"permit", "prebind", "bind", "postbind", "addpod", "removepod",
}

// Recognise says what a module speaks.
func Recognise(wasm []byte, e *manifest.Entry) (manifest.ABI, error) {
	if binary.Is(wasm) { // the host knows what to do with a component
		if e.ABI != "" && e.ABI != manifest.Wasmplane {
			return "", fmt.Errorf("abi: the entry says %s, and the module is a component, which speaks that of sdk/wit: leave abi out", e.ABI)
		}
		return manifest.Wasmplane, nil
	}
	shape, err := fuel.Inspect(wasm)
	if err != nil {
		return "", fmt.Errorf("not a valid WebAssembly module: %w", err)
	}
	metadata, err := kubewarden.ParseMetadata(shape.Custom(kubewarden.Section))
	if err != nil {
		return "", err
	}
	said, err := metadata.ABI()
	if err != nil && e.ABI == "" {
		return "", err
	}
	if e.ABI != "" && said != "" && e.ABI != said {
		return "", fmt.Errorf("abi: the entry says %s, and the module's metadata say %s: leave abi out", e.ABI, said)
	}
	if e.ABI != "" {
		return e.ABI, nil
	}
	if said != "" {
		return said, nil
	}
	return byShape(shape)
}

func byShape(s *fuel.Shape) (manifest.ABI, error) {
	exports := func(name string) bool { return slices.Contains(s.Exports, name) }
	imports := func(prefix string) bool {
		return slices.ContainsFunc(s.Imports, func(i fuel.Import) bool { return strings.HasPrefix(i.Module, prefix) })
	}
	switch {
	case exports("describe") && exports("call") && exports("alloc"):
		return manifest.Wasmplane, nil
	case exports("__guest_call"):
		return manifest.KubewardenWaPC, nil
	case exports("opa_eval_ctx_new") || exports("opa_json_parse") && exports("builtins"):
		return "", errors.New("the module was compiled from Rego, and does not tell whether for Open Policy Agent or for Gatekeeper: say abi: opa or abi: gatekeeper")
	case imports("k8s.io/") || slices.ContainsFunc(schedulerExports, exports) && !exports("alloc"):
		return manifest.KubeSchedulerWasm, nil
	case exports("_start") && (imports("host") || imports("kubewarden:javy/")):
		return manifest.KubewardenWASI, nil
	case exports("_start"):
		return "", errors.New("the module is a command of WASI: say abi: kubewarden-wasi if it is a policy of Kubewarden; a plugin is a reactor, in Go built with -buildmode=c-shared")
	}
	return manifest.Wasmplane, nil // whose loader says what it lacks
}

// Load compiles a module of another ABI, has its settings checked, and makes a version of it.
func Load(ctx context.Context, cfg Config, a manifest.ABI, wasm []byte, e manifest.Entry) (*point.Version, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	l := &load{Config: cfg, wasm: wasm, entry: &e}
	settings, err := e.SettingsJSON()
	if err != nil {
		return nil, err
	}
	if l.settings = settings; settings == nil {
		l.settings = []byte("{}")
	}
	shape, err := fuel.Inspect(wasm)
	if err != nil {
		return nil, err
	}
	if l.metadata, err = kubewarden.ParseMetadata(shape.Custom(kubewarden.Section)); err != nil {
		return nil, err
	}
	if err := errors.Join(l.metadata.Check(), l.metadata.CheckGrants(&e)); err != nil {
		return nil, err
	}
	if e.Entrypoint != "" && a != manifest.OPA && a != manifest.Gatekeeper {
		return nil, fmt.Errorf("entrypoint: modules of ABI %s have none", a)
	}
	loaders := map[manifest.ABI]func(context.Context) (*point.Version, error){
		manifest.KubewardenWaPC: l.wapc,
		manifest.KubewardenWASI: l.wasi,
		manifest.OPA:            l.rego,
		manifest.Gatekeeper:     l.rego,

		manifest.KubeSchedulerWasm: l.scheduler,
	}
	l.abi = a
	one, ok := loaders[a]
	if !ok {
		return nil, fmt.Errorf("abi: %s is not known here", a)
	}
	return one(ctx)
}

// load is one module that is being loaded.
type load struct {
	Config
	wasm     []byte
	entry    *manifest.Entry
	settings []byte
	metadata *kubewarden.Metadata
	abi      manifest.ABI
}

func (l *load) compile(ctx context.Context, a *host.ABI) (*host.Module, error) {
	e := l.entry
	limits := e.HostLimits()
	switch {
	case l.abi == manifest.KubeSchedulerWasm && limits.Instances == 0:
		limits.Instances = schedwasm.Instances
	case l.abi != manifest.KubeSchedulerWasm && e.Namespace == "": // a tenant's have no more than all others
		limits = forPolicies(limits)
	}
	return l.Host.Compile(ctx, l.wasm, host.Options{
		Tenant: e.Namespace, Progress: l.Progress,
		Name: e.Name, Limits: limits, PerCall: e.Isolation == manifest.PerCall && !a.Command,
		Clock: e.Grants.Clock, Random: e.Grants.Random, ABI: a,
	})
}

// forPolicies fills in what is zero as policies of other projects need it: those of the
// public libraries take 60 to 250 million units for a call, and up to 660 million for an instance's first.
func forPolicies(l host.Limits) host.Limits {
	l.Fuel = cmp.Or(l.Fuel, 400_000_000)
	l.StartFuel = cmp.Or(l.StartFuel, 1_000_000_000)
	l.Deadline = cmp.Or(l.Deadline, 2*time.Second)
	l.StartDeadline = cmp.Or(l.StartDeadline, 10*time.Second)
	return l
}

// version ends a load: what failed after the compilation frees the module.
func (l *load) version(m *abi.Manifest, mod *host.Module, g point.Guest, err error) (*point.Version, error) {
	if err != nil {
		return nil, errors.Join(err, mod.Close())
	}
	return point.NewForeign(*l.entry, l.Digest, m, mod, g), nil
}

// Needs is what a module says that it will ask of its host, whether it can be loaded or not.
func Needs(wasm []byte, e *manifest.Entry) []kubewarden.Need {
	shape, err := fuel.Inspect(wasm)
	if err != nil {
		return nil
	}
	metadata, err := kubewarden.ParseMetadata(shape.Custom(kubewarden.Section))
	if err != nil {
		return nil
	}
	return metadata.Needs(e)
}

// Describe is what a module that could not be loaded says of itself, as far as its
// metadata and exports go; nil where they say nothing.
func Describe(a manifest.ABI, wasm []byte, e *manifest.Entry) *abi.Manifest {
	shape, err := fuel.Inspect(wasm)
	if err != nil {
		return nil
	}
	if a == manifest.KubeSchedulerWasm {
		return schedwasm.Manifest(e, shape.Exports)
	}
	metadata, err := kubewarden.ParseMetadata(shape.Custom(kubewarden.Section))
	if err != nil {
		return nil
	}
	if m, err := metadata.Manifest(e); err == nil {
		return m
	}
	return nil
}

func pointsOf(m *abi.Manifest) map[int32]abi.Point {
	out := map[int32]abi.Point{}
	for _, h := range m.Hooks {
		out[h.Op] = h.Point
	}
	return out
}

func (l *load) calls() *kubewarden.Calls {
	return kubewarden.NewCalls(l.Functions, l.entry, l.Logger)
}

func (l *load) wapc(ctx context.Context) (*point.Version, error) {
	m, err := l.metadata.Manifest(l.entry)
	if err != nil {
		return nil, err
	}
	mod, err := l.compile(ctx, wapc.ABI(l.calls()))
	if err != nil {
		return nil, err
	}
	g, err := wapc.New(ctx, mod, kubewarden.Config{Settings: l.settings, Points: pointsOf(m)})
	return l.version(m, mod, g, err)
}

func (l *load) wasi(ctx context.Context) (*point.Version, error) {
	m, err := l.metadata.Manifest(l.entry)
	if err != nil {
		return nil, err
	}
	mod, err := l.compile(ctx, wasicmd.ABI(l.calls()))
	if err != nil {
		return nil, err
	}
	g, err := wasicmd.New(ctx, mod, kubewarden.Config{Settings: l.settings, Points: pointsOf(m)})
	return l.version(m, mod, g, err)
}

func (l *load) rego(ctx context.Context) (*point.Version, error) {
	var also []abi.Point
	if l.abi == manifest.OPA {
		also = append(also, abi.Authorization)
	}
	m, err := l.metadata.Manifest(l.entry, also...)
	if err != nil {
		return nil, err
	}
	data, entrypoint := l.settings, l.entry.Entrypoint
	if b := l.Bundle; b != nil {
		if data, err = b.Document(l.settings); err != nil {
			return nil, err
		}
		entrypoint = cmp.Or(entrypoint, b.Entrypoint)
	}
	cfg := opa.Config{
		Settings: data, Gatekeeper: l.abi == manifest.Gatekeeper, Entrypoint: entrypoint,
		Points: pointsOf(m), Grants: l.entry.Grants,
	}
	if cfg.Gatekeeper && len(l.entry.Grants.Read) > 0 {
		cfg.Inventory = newInventory(l.Functions, l.entry, l.metadata).read
	}
	if cfg.Gatekeeper && l.Functions != nil && l.Functions.HasExternal() {
		caller := l.Functions.For(l.entry)
		cfg.External = func(ctx context.Context, provider string, keys []string) (any, error) {
			return caller.ExternalData(ctx, provider, keys)
		}
	}
	p := opa.New(cfg)
	mod, err := l.compile(ctx, p.ABI())
	if err != nil {
		return nil, err
	}
	return l.version(m, mod, p, p.Load(ctx, mod))
}

func (l *load) scheduler(ctx context.Context) (*point.Version, error) {
	for _, p := range l.entry.Points {
		if !strings.HasPrefix(p, "scheduling.") {
			return nil, fmt.Errorf("points: %s: a plugin of kube-scheduler-wasm-extension takes part in scheduling", p)
		}
	}
	shape, err := fuel.Inspect(l.wasm)
	if err != nil {
		return nil, err
	}
	g := schedwasm.New(schedwasm.Config{Config: schedwasm.Settings(l.settings), Caller: l.Functions.For(l.entry)})
	mod, err := l.compile(ctx, g.ABI())
	if err != nil {
		return nil, err
	}
	return l.version(schedwasm.Manifest(l.entry, shape.Exports), mod, g, g.Load(ctx, mod, l.entry))
}
