// SPDX-License-Identifier: Apache-2.0

package services

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/registry/core/service/ipallocator"
	"k8s.io/kubernetes/pkg/registry/core/service/portallocator"
)

// passesUnused is in how many passes in a row nobody uses a claim before it is
// taken back: a claim is made before its Service is written. It is upstream's.
const passesUnused = 3

// Repair puts right what claims and Services don't agree on: claims whose server
// ended before it wrote the Service or took them back, Services that came with a
// backup or from another cluster's store without claims, a range of node ports that
// was configured anew. Any number of servers may repair one store.
type Repair struct {
	allocator *Allocator
	// unused counts passes, by port and by address, in which nobody used a claim.
	ports     map[int32]int
	addresses map[string]int
}

// NewRepair makes one that has seen nothing yet.
func NewRepair(a *Allocator) *Repair { return &Repair{allocator: a} }

// Cluster is what a pass compares claims with. Both lists are consistent: they have
// what was written before they were asked for.
type Cluster interface {
	Services(ctx context.Context) ([]corev1.Service, error)
	IPAddresses(ctx context.Context) ([]networkingv1.IPAddress, error)
}

// Repaired is what a pass changed, for the log.
type Repaired struct {
	// FreedPorts and FreedAddresses were claimed by nobody; ClaimedPorts and
	// ClaimedAddresses are those of Services that had no claim.
	FreedPorts, ClaimedPorts         []int32
	FreedAddresses, ClaimedAddresses []string
	// Shared are addresses of Services that belong to other Services, which a person
	// has to decide on: "namespace/name 10.96.0.1, of namespace/name".
	Shared []string
}

// Empty tells whether everything was in order.
func (r Repaired) Empty() bool {
	return len(r.FreedPorts)+len(r.ClaimedPorts)+len(r.FreedAddresses)+len(r.ClaimedAddresses)+len(r.Shared) == 0
}

// Pass compares once. What it has done before an error is in the answer.
func (r *Repair) Pass(ctx context.Context, c Cluster) (Repaired, error) {
	var out Repaired
	svcs, err := r.repairPorts(ctx, c, &out)
	if err != nil {
		return out, fmt.Errorf("repair the claims of node ports: %w", err)
	}
	if err := r.repairAddresses(ctx, c, svcs, &out); err != nil {
		return out, fmt.Errorf("repair the claims of cluster IPs: %w", err)
	}
	return out, nil
}

// errNothing ends an update that would write what is there.
var errNothing = errors.New("nothing to change")

// repairPorts answers the Services that it saw.
func (r *Repair) repairPorts(ctx context.Context, c Cluster, out *Repaired) (svcs []corev1.Service, err error) {
	var next map[int32]int
	err = r.allocator.ports.ranges.Update(ctx, func(claims *corev1.RangeAllocation) error {
		// Read after the claims: a Service of theirs that is written meanwhile is seen
		// in a later pass, and one that claims meanwhile makes this begin again.
		if svcs, err = c.Services(ctx); err != nil {
			return err
		}
		next, out.FreedPorts, out.ClaimedPorts = map[int32]int{}, nil, nil
		return r.allocator.ports.reclaim(claims, portsOf(svcs), func(unused int32) bool {
			next[unused] = r.ports[unused] + 1
			return next[unused] < passesUnused
		}, out)
	})
	if err != nil && !errors.Is(err, errNothing) {
		return nil, err
	}
	r.ports = next
	return svcs, nil
}

// reclaim makes claims those of the ports in use, and of unused ones that keep says
// to keep. Of claims for another range than this server's none is kept.
func (p *PortRange) reclaim(claims *corev1.RangeAllocation, inUse []int32, keep func(int32) bool, out *Repaired) error {
	had := map[int32]bool{}
	if before, err := p.allocator(claims); err == nil {
		before.ForEach(func(port int) { had[int32(port)] = true }) //nolint:gosec // a port
		before.Destroy()
	} else if !errors.Is(err, portallocator.ErrMismatchedNetwork) {
		return err
	}
	same := claims.Range == p.ports.String()
	claims.Range, claims.Data = "", nil
	err := p.change(claims, func(a *portallocator.PortAllocator) error {
		for _, port := range inUse {
			// Two Services may share a port over different protocols, and ports
			// outside of the range stay with those who have them.
			switch err := a.Allocate(int(port)); {
			case errors.Is(err, portallocator.ErrAllocated) || outside(err):
			case err != nil:
				return err
			case !had[port]:
				out.ClaimedPorts = append(out.ClaimedPorts, port)
			}
		}
		for port := range had {
			switch {
			case a.Has(int(port)):
			case !keep(port):
				out.FreedPorts = append(out.FreedPorts, port)
			default:
				if err := a.Allocate(int(port)); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err == nil && same && len(out.FreedPorts)+len(out.ClaimedPorts) == 0 {
		return errNothing
	}
	slices.Sort(out.FreedPorts)
	slices.Sort(out.ClaimedPorts)
	return err
}

func outside(err error) bool {
	var not *portallocator.ErrNotInRange
	return errors.As(err, &not)
}

func portsOf(svcs []corev1.Service) []int32 {
	var out []int32
	for i := range svcs {
		for _, p := range svcs[i].Spec.Ports {
			if p.NodePort != 0 {
				out = append(out, p.NodePort)
			}
		}
		if p := svcs[i].Spec.HealthCheckNodePort; p != 0 {
			out = append(out, p)
		}
	}
	return out
}

// repairAddresses reads the claims after the Services: that of each was made before it.
func (r *Repair) repairAddresses(ctx context.Context, c Cluster, svcs []corev1.Service, out *Repaired) error {
	claims, err := c.IPAddresses(ctx)
	if err != nil {
		return err
	}
	holders := map[string]string{} // by address: the Service that its claim names
	for i := range claims {
		holders[claims[i].Name] = holder(&claims[i])
	}
	var errs []error
	held := map[string]bool{}
	for i := range svcs {
		errs = append(errs, r.claimMissing(ctx, &svcs[i], holders, held, out))
	}
	next := map[string]int{}
	for i := range claims {
		name := claims[i].Name
		if held[name] || claims[i].Labels[networkingv1.LabelManagedBy] != ipallocator.ControllerName {
			continue
		}
		if next[name] = r.addresses[name] + 1; next[name] < passesUnused {
			continue
		}
		if err := release(ctx, r.allocator.addresses, name); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(next, name)
		out.FreedAddresses = append(out.FreedAddresses, name)
	}
	r.addresses = next
	return errors.Join(errs...)
}

// claimMissing claims what a Service has without a claim, and notes in held the
// claims that are its own.
func (r *Repair) claimMissing(ctx context.Context, svc *corev1.Service, holders map[string]string, held map[string]bool,
	out *Repaired,
) error {
	if svc.Spec.Type == corev1.ServiceTypeExternalName {
		return nil
	}
	for _, ip := range svc.Spec.ClusterIPs {
		addr, err := netip.ParseAddr(ip)
		if err != nil || !r.allocator.isKnown(addr) { // headless, or of a range that is no more
			continue
		}
		own := svc.Namespace + "/" + svc.Name
		switch other, claimed := holders[addr.String()]; {
		case claimed && other == own:
			held[addr.String()] = true
		case claimed:
			out.Shared = append(out.Shared, fmt.Sprintf("%s %s, of %s", own, ip, other))
		default:
			internal := &core.Service{}
			internal.Namespace, internal.Name = svc.Namespace, svc.Name
			if err := create(ctx, r.allocator.addresses, internal, addr); errors.Is(err, ipallocator.ErrAllocated) {
				continue // by another server's pass
			} else if err != nil {
				return fmt.Errorf("claim %s for Service %s: %w", ip, own, err)
			}
			out.ClaimedAddresses = append(out.ClaimedAddresses, ip)
		}
	}
	return nil
}

// holder is the Service that a claim names, as namespace/name; "" = none.
func holder(a *networkingv1.IPAddress) string {
	ref := a.Spec.ParentRef
	if ref == nil || ref.Group != "" || ref.Resource != "services" {
		return ""
	}
	return ref.Namespace + "/" + ref.Name
}
