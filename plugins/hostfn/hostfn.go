// SPDX-License-Identifier: Apache-2.0

// Package hostfn holds the host functions that an operator can grant to a plugin,
// and makes of an entry's grants the set that the plugin gets. What is not
// granted is not in the set: the host refuses it by name, and says which grant is missing.
//
// A Functions belongs to a process and knows what the process can offer (its
// Backend): the apiserver reads objects from its own watch cache, a component by itself
// through its client. A Caller is one plugin with its grants. Its methods are for
// adapters of other ABIs; the plugins' own ABI calls them by name, with the JSON that
// sdk/spec/hostcalls.md describes.
//
// Guarantees: a call outside of the grants is a *host.RefusedError that says what to
// grant; a plugin of a tenant's namespace reads, asks and writes about that
// namespace only; every reply is bounded; work is charged to the plugin's fuel, and
// everything ends with the call's deadline, which is the context's.
package hostfn

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/wasmplane/wasmplane/core/attempts"
	"github.com/wasmplane/wasmplane/plugins/host"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/rights"
)

// Grant is what an entry's grants have to say for a function ("log: true"); "" where there is no such function.
func Grant(name string) string { return grants[name] }

// Names lists every function.
func Names() []string {
	var out []string
	for name := range grants {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// Backend is what a process can offer to plugins. What is nil is not offered: a
// plugin that was granted it is told so when it calls.
type Backend struct {
	Objects Objects
	Access  Access
	Events  Events
	State   StateStore
	// Images answers look-ups of images; NewImages makes one.
	Images Images
	// Signers says who signed images without a key; package keyless has one.
	Signers Signers
	// External asks providers of external data.
	External External
	// Attempts that were refused are written down here; nil = they are not.
	Attempts *attempts.Ledger
	Logger   *slog.Logger
}

// Functions makes the host functions of a process's plugins.
type Functions struct {
	backend Backend
	masks   masks
	states  states
	egress  egress
	rates   rates
	rights  *rights.Checker
}

// New makes the functions that a backend offers. Run them, and Close them after the plugins.
func New(b Backend) *Functions {
	if b.Logger == nil {
		b.Logger = slog.New(slog.DiscardHandler)
	}
	return &Functions{backend: b, egress: egress{attempts: b.Attempts}, rights: rights.New(b.Access).Reporting(b.Attempts)}
}

// Rights holds plugins of the API against the rights of their writers.
func (f *Functions) Rights() *rights.Checker { return f.rights }

// may says whether the plugin's writer may do this; entries of the file have none, and may.
func (c *Caller) may(ctx context.Context, a authorizationv1.ResourceAttributes) error {
	err := c.f.rights.Act(ctx, c.e, a)
	var lacking *rights.LackingError
	if errors.As(err, &lacking) {
		return &host.RefusedError{Reason: err.Error()}
	}
	return err
}

// mayNetwork: what no rule of RBAC speaks of takes the right to give plugins more than one has.
func (c *Caller) mayNetwork(ctx context.Context, field string) error {
	err := c.f.rights.Grants(ctx, c.e, "grants."+field, "send from the control plane's machines")
	var lacking *rights.LackingError
	if errors.As(err, &lacking) {
		return &host.RefusedError{Reason: err.Error()}
	}
	return err
}

// Run writes what plugins keep until ctx ends.
func (f *Functions) Run(ctx context.Context) error {
	return f.states.run(ctx, f.backend.State, f.backend.Logger)
}

// Close ends idle connections.
func (f *Functions) Close() { f.egress.close() }

// Caller is a plugin with what it was granted.
type Caller struct {
	f *Functions
	e *manifest.Entry
}

// For makes the caller of an entry, which must not change afterwards.
func (f *Functions) For(e *manifest.Entry) *Caller { return &Caller{f, e} }

// Set makes the functions that an entry grants, by name.
func (f *Functions) Set(e *manifest.Entry) map[string]host.Func {
	c := f.For(e)
	set := map[string]host.Func{}
	g := &e.Grants
	add := func(granted bool, name string, fn host.Func) {
		if granted {
			set[name] = fn
		}
	}
	add(g.Log, Log, logTo(f.backend.Logger.With("plugin", e.Name)))
	add(g.Clock, Now, func(context.Context, []byte) ([]byte, error) {
		return strconv.AppendInt(nil, time.Now().UnixNano(), 10), nil
	})
	add(g.Random, Random, randomBytes)
	add(len(g.Read) > 0, Get, c.get)
	add(len(g.Read) > 0, List, c.list)
	add(g.AccessReview, Review, typed(c.Review))
	add(g.Events, Event, c.event)
	add(g.State.Size > 0, StateGet, typed(c.stateGet))
	add(g.State.Size > 0, StatePut, c.statePut)
	add(g.State.Size > 0, StateList, typed(c.stateList))
	images := len(g.Images.Registries) > 0 || len(g.Images.PlainHTTP) > 0
	add(images, ImageDigest, typed(c.imageDigest))
	add(images, ImageRead, typed(c.imageManifest))
	add(images, ImageConfig, typed(c.imageConfig))
	add(len(g.HTTP) > 0, Fetch, typed(c.Fetch))
	add(len(g.DNS) > 0, Lookup, typed(c.lookup))
	add(g.Certificates, Certificate, typed(c.CertificateTrusted))
	return set
}

// Set is Functions.Set where there is nothing behind the functions but this
// process: tools and tests of plugins.
func Set(e *manifest.Entry, logger *slog.Logger) map[string]host.Func {
	return New(Backend{Logger: logger}).Set(e)
}

// typed decodes a request strictly and encodes the reply.
func typed[In, Out any](fn func(ctx context.Context, in In) (Out, error)) host.Func {
	return func(ctx context.Context, input []byte) ([]byte, error) {
		var in In
		if err := decode(input, &in); err != nil {
			return nil, err
		}
		out, err := fn(ctx, in)
		if err != nil {
			return nil, err
		}
		return json.Marshal(out)
	}
}

// decode reads a request. Keys that it does not know are ignored, as everywhere in the ABI.
func decode(input []byte, in any) error {
	if err := json.Unmarshal(input, in); err != nil {
		return fmt.Errorf("the input is not the JSON that was expected: %w", err)
	}
	return nil
}

// refused is what a plugin gets for what its grants do not cover.
func (c *Caller) refused(what, grant string) error {
	return &host.RefusedError{Reason: fmt.Sprintf("plugin %q may not %s: grant it with grants.%s", c.e.Name, what, grant)}
}

// errNotHere is what a plugin gets from a process that has nothing to answer with.
func notHere(what string) error {
	return errors.New("this process has no " + what + "; it is there where the plugin runs in a cluster")
}

func randomBytes(_ context.Context, input []byte) ([]byte, error) {
	n, err := strconv.Atoi(string(input))
	if err != nil || n < 0 || n > 4096 {
		return nil, fmt.Errorf("%q is no number of bytes from 0 to 4096", input)
	}
	b := make([]byte, n)
	_, err = rand.Read(b)
	return b, err
}

const longestMessage = 4096

func logTo(logger *slog.Logger) host.Func {
	return func(ctx context.Context, input []byte) ([]byte, error) {
		var record struct {
			Level   slog.Level `json:"level"`
			Message string     `json:"message"`
		}
		if err := json.Unmarshal(input, &record); err != nil {
			return nil, fmt.Errorf("a log record was expected: %w", err)
		}
		logger.Log(ctx, record.Level, "a plugin says", "message", clip(record.Message, longestMessage))
		return nil, nil
	}
}

func clip(s string, n int) string {
	if len(s) > n {
		return s[:n] + "..."
	}
	return s
}
