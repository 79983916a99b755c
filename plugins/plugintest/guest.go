// SPDX-License-Identifier: Apache-2.0

package plugintest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/abi/settingschema"
	"github.com/wasmplane/wasmplane/plugins/host"
	"github.com/wasmplane/wasmplane/plugins/hostfn"
	"github.com/wasmplane/wasmplane/plugins/manifest"
)

// Guest is a module with its settings, loaded on one engine, outside of any cluster.
type Guest struct {
	Manifest *abi.Manifest
	module   *host.Module
}

// NewGuest loads a module as its entry says.
func NewGuest(ctx context.Context, h *host.Host, wasm []byte, e *manifest.Entry) (*Guest, error) {
	settings, err := e.SettingsJSON()
	if err != nil {
		return nil, err
	}
	if settings == nil {
		settings = []byte("{}")
	}
	m, err := h.Compile(ctx, wasm, host.Options{
		Name: e.Name, Limits: e.HostLimits(), PerCall: e.Isolation == manifest.PerCall, Clock: e.Grants.Clock, Random: e.Grants.Random,
		Funcs: hostfn.Set(e, slog.New(slog.DiscardHandler)),
		Setup: func(ctx context.Context, in *host.Instance) error {
			about, err := describe(ctx, in)
			if err == nil && about.SettingsSchema != nil {
				err = settingschema.Check(about.SettingsSchema, settings)
			}
			if err == nil && about.Settings {
				_, _, err = in.StartCall(ctx, abi.OpSettings, settings)
			}
			return err
		},
	})
	if err != nil {
		return nil, err
	}
	g := &Guest{module: m}
	err = m.With(ctx, func(in *host.Instance) error {
		g.Manifest, err = describe(ctx, in)
		return err
	})
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return g, nil
}

func describe(ctx context.Context, in *host.Instance) (*abi.Manifest, error) {
	b, err := in.Describe(ctx)
	if err != nil {
		return nil, err
	}
	return abi.ParseManifest(b)
}

// Ask passes a document to the hook at a point, projected as the hook declared.
func (g *Guest) Ask(ctx context.Context, p abi.Point, kind string, document any) ([]byte, host.Usage, error) {
	h := g.Manifest.Hook(p)
	if h == nil {
		return nil, host.Usage{}, fmt.Errorf("the module has no hook at %s; it has %v", p, g.Manifest.Points())
	}
	w := &abi.Writer{}
	abi.NewProjection(h).Write(w, document, kind)
	return g.module.Call(ctx, h.Op, w.Bytes())
}

// Close frees the module.
func (g *Guest) Close() error { return g.module.Close() }
