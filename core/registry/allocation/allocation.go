// SPDX-License-Identifier: Apache-2.0

// Package allocation gives Services their addresses and node ports. What is in use
// is in the store, as upstream keeps it: addresses as IPAddress objects, node ports
// as one allocation.
//
// It guarantees that two Services never get the same address or port, that what a
// write claimed and did not need is given back, and that a repair finds whatever a
// crash in between has left behind. It refuses what is outside of the ranges that give
// addresses at the moment, which are those of the ServiceCIDRs that are ready. It
// knows no requests: core/registry says which writes claim.
package allocation

import (
	"context"
	"log/slog"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/wasmplane/wasmplane/core/api/services"
	"github.com/wasmplane/wasmplane/core/store"
)

// Ranges say which addresses and ports Services get.
type Ranges struct {
	// CIDRs of cluster IPs, the primary family's first; empty = 10.96.0.0/12.
	CIDRs []string
	// FirstNodePort and LastNodePort; 0 = 30000 and 32767.
	FirstNodePort, LastNodePort int
}

// Complete has the defaults in the place of what is empty.
func (r Ranges) Complete() Ranges {
	if len(r.CIDRs) == 0 {
		r.CIDRs = []string{"10.96.0.0/12"}
	}
	if r.FirstNodePort == 0 && r.LastNodePort == 0 {
		r.FirstNodePort, r.LastNodePort = 30000, 32767
	}
	return r
}

// Config is what an allocator is made of.
type Config struct {
	// Ranges that are configured; their families are those that Services may have.
	Ranges Ranges
	// Networks are the ranges that addresses are taken from; nil: those of Ranges.
	Networks  services.Networks
	Addresses services.Addresses // claims one as an IPAddress object
	Store     store.Store
	Logger    *slog.Logger
}

// Allocator claims addresses and ports for Services. It is safe for concurrent use.
type Allocator struct {
	allocator *services.Allocator
	logger    *slog.Logger
}

// New makes an allocator. The error names the range that is wrong.
func New(cfg Config) (*Allocator, error) {
	ranges := cfg.Ranges.Complete()
	var pools []*services.AddressPool
	for _, cidr := range ranges.CIDRs {
		p, err := services.NewAddressPool(cidr, cfg.Addresses)
		if err != nil {
			return nil, err
		}
		pools = append(pools, p)
	}
	ports, err := services.NewPortRange(ranges.FirstNodePort, ranges.LastNodePort, nodePorts{cfg.Store})
	if err != nil {
		return nil, err
	}
	allocator, err := services.New(services.Config{Pools: pools, Networks: cfg.Networks, Ports: ports, Failed: func(err error) {
		cfg.Logger.Warn("a claim of a Service could not be taken back; a repair will find it", "error", err)
	}})
	if err != nil {
		return nil, err
	}
	return &Allocator{allocator: allocator, logger: cfg.Logger}, nil
}

// Claims are those of one write. End must be called; nil claims are those of a
// write that needs none.
type Claims struct {
	claims *services.Claims
	kept   bool
}

// Claim makes the claims of one write of a Service, both in the internal form;
// existing is nil for a create.
func (a *Allocator) Claim(ctx context.Context, service, existing runtime.Object, dryRun bool) (*Claims, error) {
	var claims *services.Claims
	var err error
	if existing == nil {
		claims, err = a.allocator.Create(ctx, service, dryRun)
	} else {
		claims, err = a.allocator.Update(ctx, service, existing, dryRun)
	}
	if claims == nil {
		return nil, err
	}
	return &Claims{claims: claims}, err
}

// Keep has End keep the claims: the write was stored.
func (c *Claims) Keep() {
	if c != nil {
		c.kept = true
	}
}

// End gives the claims back that were not kept, and the others their effect, also
// where the client has gone in between.
func (c *Claims) End(ctx context.Context) {
	if c == nil {
		return
	}
	ctx = context.WithoutCancel(ctx)
	if c.kept {
		c.claims.Commit(ctx)
		return
	}
	c.claims.Revert(ctx)
}

// Release releases what a deleted Service, in the internal form, had.
func (a *Allocator) Release(ctx context.Context, service runtime.Object) {
	a.allocator.Released(context.WithoutCancel(ctx), service)
}
