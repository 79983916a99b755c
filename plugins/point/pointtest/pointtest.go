// SPDX-License-Identifier: Apache-2.0

// Package pointtest gives tests of the adapters a plugin that answers as they say. What
// modules answer through a host is tested with real ones, in plugins/loader.
package pointtest

import (
	"context"
	"errors"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/host"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/point"
)

// ErrGuest is how a guest fails that has no answer.
var ErrGuest = errors.New("the guest fails")

// Answers is a guest that answers each call with what stands here for its input, and
// fails where nothing does. The entry "" is for all other inputs.
type Answers map[string]string

// Call implements point.Guest.
func (a Answers) Call(_ context.Context, _ int32, input []byte) ([]byte, host.Usage, error) {
	answer, ok := a[string(input)]
	if !ok {
		answer, ok = a[""]
	}
	if !ok {
		return nil, host.Usage{}, &host.Fault{Plugin: "p", Kind: point.BadAnswer, Detail: ErrGuest.Error(), Err: ErrGuest}
	}
	return []byte(answer), host.Usage{}, nil
}

// Plugin is a plugin named p with one hook, whose version has an entry and a guest.
func Plugin(tb testing.TB, e manifest.Entry, h abi.Hook, g point.Guest) *point.Plugin {
	tb.Helper()
	m, err := point.NewMetrics(prometheus.NewRegistry())
	if err != nil {
		tb.Fatal(err)
	}
	e.Name = "p"
	p := point.NewPlugin(e.Name, m)
	p.Swap(point.NewForeign(e, "sha256:0", &abi.Manifest{Name: e.Name, Hooks: []abi.Hook{h}}, nil, g))
	return p
}
