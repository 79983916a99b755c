package plugintest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/wasmplane/wasmplane/plugins/abi"
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

// Case is a document with the answer that is expected to it.
type Case struct {
	Name     string    `yaml:"name"`
	Point    abi.Point `yaml:"point"`
	Kind     string    `yaml:"kind"`
	Settings yaml.Node `yaml:"settings"`
	Document yaml.Node `yaml:"document"`
	// Answer: null is the empty one.
	Answer any    `yaml:"answer"`
	Error  string `yaml:"error"`
}

// ReadCases reads a file of cases.
func ReadCases(path string) ([]Case, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the cases: %w", err)
	}
	var cases []Case
	d := yaml.NewDecoder(bytes.NewReader(b))
	d.KnownFields(true)
	if err := d.Decode(&cases); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return cases, nil
}

// Run asks a module every case, compiled and interpreted: both have to answer as
// expected, and to use the same fuel.
func Run(t *testing.T, wasm []byte, e manifest.Entry, cases []Case) {
	t.Helper()
	var hosts []*host.Host
	for _, interpreted := range []bool{false, true} {
		h, err := host.New(t.Context(), host.Config{InProcess: true, Interpreter: interpreted})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := h.Close(); err != nil {
				t.Error(err)
			}
		}()
		hosts = append(hosts, h)
	}
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			var used []int64
			for _, h := range hosts {
				used = append(used, c.run(t, h, wasm, e))
			}
			if used[0] != used[1] {
				t.Errorf("the compiled module used %d units of fuel, the interpreted one %d", used[0], used[1])
			}
		})
	}
}

func (c *Case) run(t *testing.T, h *host.Host, wasm []byte, e manifest.Entry) int64 {
	t.Helper()
	if c.Settings.Kind != 0 {
		e.Settings = c.Settings
	}
	g, err := NewGuest(t.Context(), h, wasm, &e)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	}()
	var document map[string]any
	if err := c.Document.Decode(&document); err != nil {
		t.Fatal(err)
	}
	answer, usage, err := g.Ask(t.Context(), c.Point, c.Kind, abi.Integers(document))
	if c.Error != "" {
		var said *host.GuestError
		if !errors.As(err, &said) || said.Message != c.Error {
			t.Errorf("error %v, want %q", err, c.Error)
		}
		return usage.Fuel
	}
	if err != nil {
		t.Fatal(err)
	}
	if is, want := plain(t, answer), plain(t, c.Answer); !reflect.DeepEqual(is, want) {
		t.Errorf("answer %s, want %v", answer, want)
	}
	return usage.Fuel
}

// plain is v as JSON has it; bytes are JSON already, none of them are null.
func plain(t *testing.T, v any) (out any) {
	t.Helper()
	b, raw := v.([]byte)
	if !raw {
		var err error
		if b, err = json.Marshal(v); err != nil {
			t.Fatal(err)
		}
	}
	if len(b) == 0 {
		return nil
	}
	if err := json.Unmarshal(b, &out); err != nil {
		t.Fatalf("%q is no JSON: %v", b, err)
	}
	return out
}
