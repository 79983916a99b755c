// SPDX-License-Identifier: Apache-2.0

// Package services gives Services their cluster IPs and node ports, by
// upstream's rules: which families a Service has, what an update keeps, what it
// releases, and in which words it is refused.
//
// It works on internal Services, handed over as opaque objects between a
// strategy's calls, and keeps nothing itself: a claim is an IPAddress object or
// a bit of a RangeAllocation, made in the store before the Service is written
// and taken back where the write fails. So any number of servers share them.
package services

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiservice "k8s.io/kubernetes/pkg/api/service"
	"k8s.io/kubernetes/pkg/apis/core"
)

// Config of an Allocator.
type Config struct {
	// Pools by family, the cluster's primary family first: one or two. They say which
	// families Services may have.
	Pools []*AddressPool
	// Networks are the ranges that addresses come from; nil: those of Pools, for ever.
	Networks Networks
	Ports    *PortRange
	// Failed is told of claims that could not be taken back; a Repair frees them. nil drops it.
	Failed func(error)
}

// Allocator claims addresses and ports for Services.
type Allocator struct {
	pools     map[core.IPFamily]*AddressPool // of the configuration
	primary   core.IPFamily
	networks  Networks
	addresses Addresses
	ports     *PortRange
	failed    func(error)
}

// New checks the configuration.
func New(cfg Config) (*Allocator, error) {
	if len(cfg.Pools) < 1 || len(cfg.Pools) > 2 {
		return nil, fmt.Errorf("service addresses: one or two ranges are needed, got %d", len(cfg.Pools))
	}
	if cfg.Ports == nil {
		return nil, errors.New("service addresses: no range of node ports given")
	}
	a := &Allocator{
		pools: map[core.IPFamily]*AddressPool{}, primary: cfg.Pools[0].family, networks: cfg.Networks,
		addresses: cfg.Pools[0].addresses, ports: cfg.Ports, failed: cfg.Failed,
	}
	var configured fixed
	for _, p := range cfg.Pools {
		if a.pools[p.family] != nil {
			return nil, fmt.Errorf("service addresses: two ranges of family %s", p.family)
		}
		a.pools[p.family] = p
		configured = append(configured, p.prefix)
	}
	if a.networks == nil {
		a.networks = configured
	}
	if a.failed == nil {
		a.failed = func(error) {}
	}
	return a, nil
}

// Primary is the family of Services that name none.
func (a *Allocator) Primary() corev1.IPFamily { return corev1.IPFamily(a.primary) }

// Claims are what one write claimed, and what it will release. Exactly one of
// Commit and Revert is to be called.
type Claims struct {
	commit, revert []func(context.Context) error
	failed         func(error)
}

// Commit releases what the written Service no longer uses.
func (c *Claims) Commit(ctx context.Context) { c.run(ctx, c.commit) }

// Revert gives back what was claimed for a Service that was not written.
func (c *Claims) Revert(ctx context.Context) { c.run(ctx, c.revert) }

// run goes on with the rest where one fails: an address too many in use is
// found by Repair, one too few would be given twice.
func (c *Claims) run(ctx context.Context, steps []func(context.Context) error) {
	if c == nil {
		return
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			c.failed(err)
		}
	}
}

// Create claims what a new internal Service needs and writes it into the object.
// With dryRun nothing is claimed. Errors are API statuses.
func (a *Allocator) Create(ctx context.Context, internal runtime.Object, dryRun bool) (*Claims, error) {
	svc, ok := internal.(*core.Service)
	if !ok {
		return nil, fmt.Errorf("allocate for a Service: got a %T", internal)
	}
	syncClusterIPs(svc, nil)
	dropInternalTrafficPolicy(svc)
	return a.claim(ctx, dryRun, func(c *claiming) error {
		if err := a.families(svc, nil); err != nil {
			return err
		}
		if err := c.clusterIPs(svc); err != nil {
			return err
		}
		return c.newPorts(svc)
	})
}

// Update claims what a changed Service needs in addition, keeps what it leaves
// out, and releases on Commit what it no longer uses. Both objects are internal
// and are changed: old gets the defaults of Services that older servers wrote.
func (a *Allocator) Update(ctx context.Context, internal, old runtime.Object, dryRun bool) (*Claims, error) {
	svc, ok := internal.(*core.Service)
	before, okOld := old.(*core.Service)
	if !ok || !okOld {
		return nil, fmt.Errorf("allocate for a Service: got %T and %T", internal, old)
	}
	a.OnRead(before)
	keepAllocated(svc, before)
	syncClusterIPs(svc, before)
	dropInternalTrafficPolicy(svc)
	return a.claim(ctx, dryRun, func(c *claiming) error {
		if err := a.families(svc, before); err != nil {
			return err
		}
		if err := c.changeClusterIPs(svc, before); err != nil {
			return err
		}
		return c.changePorts(svc, before)
	})
}

// Released gives back all that a deleted internal Service had.
func (a *Allocator) Released(ctx context.Context, internal runtime.Object) {
	svc, ok := internal.(*core.Service)
	if !ok {
		return
	}
	a.OnRead(svc)
	c := &claiming{allocator: a, ctx: ctx, out: &Claims{failed: a.failed}}
	if needsClusterIP(svc) && !headless(svc) {
		c.releaseIPs(svc.Spec.ClusterIPs...)
	}
	c.releasePorts(usedNodePorts(svc)...)
	if apiservice.NeedsHealthCheck(svc) && svc.Spec.HealthCheckNodePort > 0 {
		c.releasePorts(svc.Spec.HealthCheckNodePort)
	}
	c.out.Commit(ctx)
}

// claim runs do, and takes everything back if it fails.
func (a *Allocator) claim(ctx context.Context, dryRun bool, do func(*claiming) error) (*Claims, error) {
	c := &claiming{allocator: a, ctx: ctx, dryRun: dryRun, out: &Claims{failed: a.failed}}
	if err := do(c); err != nil {
		c.out.Revert(ctx)
		return nil, err
	}
	return c.out, nil
}
