// SPDX-License-Identifier: Apache-2.0

package kubewarden

import (
	"context"
	"fmt"
	"sync"

	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/host"
)

// Config is what a policy runs with.
type Config struct {
	// Settings as JSON.
	Settings []byte
	// Points at which the hooks stand, by their number.
	Points map[int32]abi.Point
}

// Protocol is how the modules of one ABI are asked.
type Protocol struct {
	// Ask makes one call of the guest. It keeps nothing of the payload.
	Ask func(in *host.Instance, operation string, payload []byte) ([]byte, error)
	// Greet is called once before anything else; nil = nothing has to be agreed on.
	Greet func(in *host.Instance) error
	// Settings is the operation that checks settings.
	Settings string
}

// Guest is a loaded policy.
type Guest struct {
	cfg      Config
	module   *host.Module
	protocol Protocol
}

// NewGuest greets the policy and has it check its settings.
func NewGuest(ctx context.Context, m *host.Module, cfg Config, p Protocol) (*Guest, error) {
	g := &Guest{cfg: cfg, module: m, protocol: p}
	return g, m.With(ctx, func(in *host.Instance) error {
		_, err := in.StartAccount(ctx, func() error {
			if p.Greet != nil {
				if err := p.Greet(in); err != nil {
					return err
				}
			}
			answer, err := p.Ask(in, p.Settings, cfg.Settings)
			if err != nil {
				return fmt.Errorf("have the settings checked: %w", err)
			}
			return CheckSettings(answer)
		})
		return err
	})
}

// payloads keep the memory of what policies are asked between calls.
var payloads = sync.Pool{New: func() any { return new([]byte) }}

// Call implements point.Guest: input is the admission request.
func (g *Guest) Call(ctx context.Context, op int32, input []byte) (out []byte, u host.Usage, err error) {
	payload := payloads.Get().(*[]byte)
	defer payloads.Put(payload)
	*payload = appendRequest((*payload)[:0], input, g.cfg.Settings)
	var answer []byte
	err = g.module.With(ctx, func(in *host.Instance) error {
		var err error
		u, err = in.Account(ctx, func() error {
			answer, err = g.protocol.Ask(in, "validate", *payload)
			return err
		})
		return err
	})
	if err != nil {
		return nil, u, err
	}
	out, err = Reply(g.module.Name(), answer, input, g.cfg.Points[op])
	return out, u, err
}
