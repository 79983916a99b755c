// SPDX-License-Identifier: Apache-2.0

package services

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	apiservice "k8s.io/kubernetes/pkg/api/service"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/registry/core/service/ipallocator"
)

// claiming is one write's claims in the making.
type claiming struct {
	allocator *Allocator
	ctx       context.Context //nolint:containedctx // lives for one call
	dryRun    bool
	out       *Claims
}

func invalid(svc *core.Service, errs ...*field.Error) error {
	return apierrors.NewInvalid(core.Kind("Service"), svc.Name, errs)
}

// clusterIPs claims an address for each family of a Service.
func (c *claiming) clusterIPs(svc *core.Service) error {
	if !needsClusterIP(svc) || headless(svc) {
		return nil
	}
	for i := range svc.Spec.IPFamilies {
		if err := c.clusterIP(svc, i); err != nil {
			return err
		}
	}
	return nil
}

// clusterIP claims the i-th address, the one that is asked for or any.
func (c *claiming) clusterIP(svc *core.Service, i int) error {
	for len(svc.Spec.ClusterIPs) <= i {
		svc.Spec.ClusterIPs = append(svc.Spec.ClusterIPs, "")
	}
	ip, err := c.address(svc, svc.Spec.IPFamilies[i], svc.Spec.ClusterIPs[i])
	if err != nil {
		return err
	}
	svc.Spec.ClusterIPs[i] = ip
	if i == 0 {
		svc.Spec.ClusterIP = ip
	}
	return nil
}

func (c *claiming) address(svc *core.Service, f core.IPFamily, wanted string) (string, error) {
	path := field.NewPath("spec", "clusterIPs")
	if wanted == "" {
		ip, err := c.allocator.anyAddress(c.ctx, svc, f, c.dryRun)
		switch {
		case errors.Is(err, ipallocator.ErrFull):
			return "", apierrors.NewInternalError(fmt.Errorf("failed to allocate a serviceIP for Service %q: %w", svc.Name, err))
		case err != nil:
			return "", invalid(svc, field.Invalid(path, svc.Spec.ClusterIPs, fmt.Sprintf("failed to allocate IP: %v", err)))
		}
		c.claimed(ip)
		return ip, nil
	}
	if err := c.allocator.wanted(c.ctx, svc, f, wanted, c.dryRun); err != nil {
		return "", invalid(svc, field.Invalid(path, svc.Spec.ClusterIPs, fmt.Sprintf("failed to allocate IP %v: %v", wanted, err)))
	}
	c.claimed(wanted)
	return wanted, nil
}

func (c *claiming) claimed(ip string) {
	if !c.dryRun {
		c.out.revert = append(c.out.revert, c.release(ip))
	}
}

// releaseIPs gives addresses back on Commit, whatever became of their ranges.
func (c *claiming) releaseIPs(ips ...string) {
	for _, ip := range ips {
		if !c.dryRun {
			c.out.commit = append(c.out.commit, c.release(ip))
		}
	}
}

func (c *claiming) release(ip string) func(context.Context) error {
	return func(ctx context.Context) error { return release(ctx, c.allocator.addresses, ip) }
}

func (c *claiming) changeClusterIPs(svc, old *core.Service) error {
	if keepsPreferredDualStack(svc, old) {
		return nil
	}
	was, is := needsClusterIP(old), needsClusterIP(svc)
	switch {
	case !was && is:
		return c.clusterIPs(svc)
	case headless(old):
		return nil
	case was && !is:
		c.releaseIPs(old.Spec.ClusterIPs...)
	case len(old.Spec.IPFamilies) == 1 && len(svc.Spec.IPFamilies) == 2:
		return c.clusterIP(svc, 1)
	case len(old.Spec.IPFamilies) == 2 && len(svc.Spec.IPFamilies) == 1 && len(old.Spec.ClusterIPs) == 2:
		c.releaseIPs(old.Spec.ClusterIPs[1])
	}
	return nil
}

// want is a node port that a write needs.
type want struct {
	port int32 // 0: any
	// given is told the port, once all of the write's wishes are granted.
	given func(port int32)
	// refused is what a failure means to whoever writes.
	refused func(error) error
}

// claimPorts claims what is wanted by one write to the store: a Service may have
// thousands of ports, each of which would be a write that others wait for.
func (c *claiming) claimPorts(svc *core.Service, wants []want) error {
	if len(wants) == 0 {
		return nil
	}
	p := c.allocator.ports
	if len(wants) > p.ports.Size {
		return invalid(svc, field.Invalid(field.NewPath("spec", "ports"), len(svc.Spec.Ports),
			fmt.Sprintf("need %d node ports, and the cluster has %d (%s)", len(wants), p.ports.Size, p.ports.String())))
	}
	wanted := make([]int32, len(wants))
	for i, w := range wants {
		wanted[i] = w.port
	}
	claim := p.claim
	if c.dryRun {
		claim = p.guess
	}
	ports, at, err := claim(c.ctx, wanted)
	if err != nil {
		return wants[at].refused(err)
	}
	if !c.dryRun {
		c.out.revert = append(c.out.revert, func(ctx context.Context) error { return p.release(ctx, ports) })
	}
	for i, w := range wants {
		w.given(ports[i])
	}
	return nil
}

// releasePorts gives ports back on Commit.
func (c *claiming) releasePorts(ports ...int32) {
	if !c.dryRun && len(ports) > 0 {
		c.out.commit = append(c.out.commit, func(ctx context.Context) error { return c.allocator.ports.release(ctx, ports) })
	}
}

// wantsOf are the node ports of a new Service. Ports of the same number (a TCP
// and a UDP one) share a node port unless they ask for different ones.
func wantsOf(svc *core.Service) []want {
	asked := map[int32]int32{} // the first node port that is asked for, by the port's number
	for _, p := range svc.Spec.Ports {
		if p.NodePort != 0 && asked[p.Port] == 0 {
			asked[p.Port] = p.NodePort
		}
	}
	var wants []want
	shared := map[int32]int{} // which of wants, by the port's number
	for i := range svc.Spec.Ports {
		p := &svc.Spec.Ports[i]
		if p.NodePort == 0 && !allocatesNodePorts(svc) {
			continue
		}
		switch first, ok := shared[p.Port]; {
		case !ok:
			shared[p.Port] = len(wants)
			wants = append(wants, wantOf(svc, i, asked[p.Port]))
		case p.NodePort == 0:
			given := wants[first].given
			wants[first].given = func(port int32) { given(port); p.NodePort = port }
		case p.NodePort != asked[p.Port]:
			wants = append(wants, wantOf(svc, i, p.NodePort))
		}
	}
	return wants
}

func wantOf(svc *core.Service, i int, wanted int32) want {
	return want{
		port:  wanted,
		given: func(port int32) { svc.Spec.Ports[i].NodePort = port },
		refused: func(err error) error {
			if wanted != 0 {
				return invalid(svc, field.Invalid(field.NewPath("spec", "ports").Index(i).Child("nodePort"), wanted, err.Error()))
			}
			return apierrors.NewInternalError(fmt.Errorf("failed to allocate a nodePort: %w", err))
		},
	}
}

// newPorts claims the ports of a new Service.
func (c *claiming) newPorts(svc *core.Service) error {
	var wants []want
	if exposesNodePorts(svc) {
		wants = wantsOf(svc)
	}
	if apiservice.NeedsHealthCheck(svc) {
		wants = append(wants, healthCheckWant(svc))
	}
	return c.claimPorts(svc, wants)
}

// changePorts claims what an update of a Service adds, and releases what it takes away.
func (c *claiming) changePorts(svc, old *core.Service) error {
	var wants []want
	exposed := exposesNodePorts(svc)
	switch {
	case exposed:
		wants = wantsOfUpdate(svc, old)
	case exposesNodePorts(old):
		c.releasePorts(usedNodePorts(old)...)
	}
	switch needed, needs := apiservice.NeedsHealthCheck(old), apiservice.NeedsHealthCheck(svc); {
	case !needed && needs:
		wants = append(wants, healthCheckWant(svc))
	case needed && !needs:
		c.releasePorts(old.Spec.HealthCheckNodePort)
	}
	if err := c.claimPorts(svc, wants); err != nil || !exposed {
		return err
	}
	return c.releaseUnused(svc, old)
}

func wantsOfUpdate(svc, old *core.Service) (wants []want) {
	has := map[int32]bool{}
	for _, port := range usedNodePorts(old) {
		has[port] = true
	}
	for i := range svc.Spec.Ports {
		p := &svc.Spec.Ports[i]
		switch {
		case p.NodePort == 0 && !allocatesNodePorts(svc):
		case p.NodePort == 0 || !has[p.NodePort]:
			wants = append(wants, wantOf(svc, i, p.NodePort))
			has[p.NodePort] = p.NodePort != 0
		}
	}
	return wants
}

// releaseUnused gives the node ports back that only old has.
func (c *claiming) releaseUnused(svc, old *core.Service) error {
	type key struct {
		protocol core.Protocol
		port     int32
	}
	seen, used := map[key]bool{}, map[int32]bool{}
	for _, p := range svc.Spec.Ports {
		if p.NodePort == 0 {
			continue
		}
		k := key{p.Protocol, p.NodePort}
		if seen[k] {
			return fmt.Errorf("duplicate nodePort: %v", k)
		}
		seen[k], used[p.NodePort] = true, true
	}
	var unused []int32
	for _, port := range usedNodePorts(old) {
		if !used[port] {
			unused = append(unused, port)
		}
	}
	c.releasePorts(unused...)
	return nil
}

func healthCheckWant(svc *core.Service) want {
	wanted := svc.Spec.HealthCheckNodePort
	return want{
		port:  wanted,
		given: func(port int32) { svc.Spec.HealthCheckNodePort = port },
		refused: func(err error) error {
			if wanted != 0 {
				return apierrors.NewInternalError(fmt.Errorf("failed to allocate requested HealthCheck NodePort %v: %w", wanted, err))
			}
			return apierrors.NewInternalError(fmt.Errorf("failed to allocate a HealthCheck NodePort %v: %w", wanted, err))
		},
	}
}

func exposesNodePorts(svc *core.Service) bool {
	return svc.Spec.Type == core.ServiceTypeNodePort || svc.Spec.Type == core.ServiceTypeLoadBalancer
}

// allocatesNodePorts: a load balancer may forgo node ports that it doesn't ask for.
func allocatesNodePorts(svc *core.Service) bool {
	switch svc.Spec.Type {
	case core.ServiceTypeNodePort:
		return true
	case core.ServiceTypeLoadBalancer:
		return svc.Spec.AllocateLoadBalancerNodePorts == nil || *svc.Spec.AllocateLoadBalancerNodePorts
	default:
		return false
	}
}

func usedNodePorts(svc *core.Service) []int32 {
	var out []int32
	for _, p := range svc.Spec.Ports {
		if p.NodePort != 0 {
			out = append(out, p.NodePort)
		}
	}
	return out
}
