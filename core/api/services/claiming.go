// SPDX-License-Identifier: Apache-2.0

package services

import (
	"context"
	"errors"
	"fmt"
	"slices"

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
	dryPorts  []int32 // claimed by this dry run
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

func (c *claiming) port(wanted int32) (int32, error) {
	var port int32
	var err error
	switch {
	case c.dryRun && wanted != 0:
		port, err = wanted, c.allocator.ports.free(c.ctx, wanted, c.dryPorts)
		c.dryPorts = append(c.dryPorts, wanted)
	case c.dryRun:
		port = c.allocator.ports.guess(c.dryPorts)
		c.dryPorts = append(c.dryPorts, port)
	case wanted != 0:
		port, err = wanted, c.allocator.ports.claim(c.ctx, wanted)
	default:
		port, err = c.allocator.ports.next(c.ctx)
	}
	if err != nil {
		return 0, err
	}
	if !c.dryRun {
		c.out.revert = append(c.out.revert, func(ctx context.Context) error { return c.allocator.ports.release(ctx, port) })
	}
	return port, nil
}

func (c *claiming) releasePorts(ports ...int32) {
	for _, p := range ports {
		if !c.dryRun {
			c.out.commit = append(c.out.commit, func(ctx context.Context) error { return c.allocator.ports.release(ctx, p) })
		}
	}
}

// nodePorts claims the ports of a new Service. Ports of the same number (a TCP
// and a UDP one) share a node port unless they ask for different ones.
func (c *claiming) nodePorts(svc *core.Service) error {
	shared := map[int32]int32{}
	for i := range svc.Spec.Ports {
		p := &svc.Spec.Ports[i]
		if p.NodePort == 0 && !allocatesNodePorts(svc) {
			continue
		}
		switch have := shared[p.Port]; {
		case have == 0:
			port, err := c.nodePort(svc, i, requestedFor(p.Port, svc.Spec.Ports))
			if err != nil {
				return err
			}
			p.NodePort, shared[p.Port] = port, port
		case p.NodePort == 0:
			p.NodePort = have
		case p.NodePort != have:
			if _, err := c.nodePort(svc, i, p.NodePort); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *claiming) nodePort(svc *core.Service, i int, wanted int32) (int32, error) {
	port, err := c.port(wanted)
	switch {
	case err == nil:
		return port, nil
	case wanted != 0:
		return 0, invalid(svc, field.Invalid(field.NewPath("spec", "ports").Index(i).Child("nodePort"), wanted, err.Error()))
	}
	return 0, apierrors.NewInternalError(fmt.Errorf("failed to allocate a nodePort: %w", err))
}

func (c *claiming) changeNodePorts(svc, old *core.Service) error {
	if exposesNodePorts(old) && !exposesNodePorts(svc) {
		c.releasePorts(usedNodePorts(old)...)
	}
	if exposesNodePorts(svc) {
		if err := c.updateNodePorts(svc, old); err != nil {
			return err
		}
	}
	switch needed, needs := apiservice.NeedsHealthCheck(old), apiservice.NeedsHealthCheck(svc); {
	case !needed && needs:
		return c.healthCheckPort(svc)
	case needed && !needs:
		c.releasePorts(old.Spec.HealthCheckNodePort)
	}
	return nil
}

func (c *claiming) updateNodePorts(svc, old *core.Service) error {
	had := usedNodePorts(old)
	type key struct {
		protocol core.Protocol
		port     int32
	}
	seen := map[key]bool{}
	var claimed []int32
	for i := range svc.Spec.Ports {
		p := &svc.Spec.Ports[i]
		if p.NodePort == 0 && !allocatesNodePorts(svc) {
			continue
		}
		if p.NodePort == 0 || !slices.Contains(had, p.NodePort) && !slices.Contains(claimed, p.NodePort) {
			port, err := c.nodePort(svc, i, p.NodePort)
			if err != nil {
				return err
			}
			p.NodePort = port
			claimed = append(claimed, port)
		}
		k := key{p.Protocol, p.NodePort}
		if seen[k] {
			return fmt.Errorf("duplicate nodePort: %v", k)
		}
		seen[k] = true
	}
	for _, port := range had {
		if !slices.Contains(usedNodePorts(svc), port) {
			c.releasePorts(port)
		}
	}
	return nil
}

func (c *claiming) healthCheckPort(svc *core.Service) error {
	wanted := svc.Spec.HealthCheckNodePort
	port, err := c.port(wanted)
	if err != nil && wanted != 0 {
		return apierrors.NewInternalError(fmt.Errorf("failed to allocate requested HealthCheck NodePort %v: %w", wanted, err))
	}
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("failed to allocate a HealthCheck NodePort %v: %w", port, err))
	}
	svc.Spec.HealthCheckNodePort = port
	return nil
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

func requestedFor(port int32, ports []core.ServicePort) int32 {
	for _, p := range ports {
		if p.Port == port && p.NodePort != 0 {
			return p.NodePort
		}
	}
	return 0
}
