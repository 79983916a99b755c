// SPDX-License-Identifier: Apache-2.0

package services

import (
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/core/validation"
	netutils "k8s.io/utils/net"
	"k8s.io/utils/ptr"
)

func needsClusterIP(svc *core.Service) bool { return svc.Spec.Type != core.ServiceTypeExternalName }

func headless(svc *core.Service) bool {
	return len(svc.Spec.ClusterIPs) > 0 && svc.Spec.ClusterIPs[0] == core.ClusterIPNone
}

// selectorless headless Services name endpoints that somebody else fills in, of
// any family.
func selectorlessHeadless(svc *core.Service) bool {
	return svc.Spec.ClusterIP == core.ClusterIPNone && len(svc.Spec.Selector) == 0
}

func familyOf(ip string) core.IPFamily {
	if netutils.IsIPv6String(ip) {
		return core.IPv6Protocol
	}
	return core.IPv4Protocol
}

func otherFamily(f core.IPFamily) core.IPFamily {
	if f == core.IPv4Protocol {
		return core.IPv6Protocol
	}
	return core.IPv4Protocol
}

func policyOf(svc *core.Service) core.IPFamilyPolicy { return ptr.Deref(svc.Spec.IPFamilyPolicy, "") }

func sameClusterIPs(a, b *core.Service) bool {
	return slices.Equal(a.Spec.ClusterIPs, b.Spec.ClusterIPs)
}

func sameFamilies(a, b *core.Service) bool { return slices.Equal(a.Spec.IPFamilies, b.Spec.IPFamilies) }

// keepsPreferredDualStack: a Service that only prefers two families is neither
// up- nor downgraded because the cluster's families changed.
func keepsPreferredDualStack(svc, old *core.Service) bool {
	if old == nil || svc.Spec.IPFamilyPolicy == nil || old.Spec.Type != svc.Spec.Type || !needsClusterIP(svc) {
		return false
	}
	if policyOf(svc) != core.IPFamilyPolicyPreferDualStack {
		return false
	}
	if old.Spec.IPFamilyPolicy != nil && policyOf(old) != core.IPFamilyPolicyPreferDualStack {
		return false
	}
	return sameClusterIPs(old, svc) && sameFamilies(old, svc)
}

// families fills in, and checks against the cluster, the families of a Service.
func (a *Allocator) families(svc, old *core.Service) error {
	if !needsClusterIP(svc) || keepsPreferredDualStack(svc, old) {
		return nil
	}
	defaultPolicy(svc, old)
	if errs := validation.ValidateServiceClusterIPsRelatedFields(svc, old); len(errs) > 0 {
		return apierrors.NewInvalid(core.Kind("Service"), svc.Name, errs)
	}
	errs := reduced(svc, old)
	errs = append(errs, tooManyForSingleStack(svc)...)
	errs = append(errs, a.inferFamilies(svc)...)
	if len(errs) > 0 {
		return invalid(svc, errs...)
	}
	if selectorlessHeadless(svc) {
		a.completeSelectorless(svc)
		return nil
	}
	if errs := a.configured(svc); len(errs) > 0 {
		return invalid(svc, errs...)
	}
	if len(svc.Spec.IPFamilies) == 0 {
		svc.Spec.IPFamilies = []core.IPFamily{a.primary}
	}
	if policyOf(svc) != core.IPFamilyPolicySingleStack && len(svc.Spec.IPFamilies) == 1 && len(a.pools) == 2 {
		svc.Spec.IPFamilies = append(svc.Spec.IPFamilies, otherFamily(svc.Spec.IPFamilies[0]))
	}
	return nil
}

// defaultPolicy: an update keeps the policy from before, so that leaving it out
// never moves a Service between one family and two.
func defaultPolicy(svc, old *core.Service) {
	switch {
	case svc.Spec.IPFamilyPolicy != nil:
	case old != nil && old.Spec.IPFamilyPolicy != nil:
		svc.Spec.IPFamilyPolicy = old.Spec.IPFamilyPolicy
	case selectorlessHeadless(svc):
		svc.Spec.IPFamilyPolicy = ptr.To(core.IPFamilyPolicyRequireDualStack)
	default:
		svc.Spec.IPFamilyPolicy = ptr.To(core.IPFamilyPolicySingleStack)
	}
}

// reduced: going back to one family takes the policy that says so; with it the
// second address and family go by themselves.
func reduced(svc, old *core.Service) (errs field.ErrorList) {
	if old == nil {
		return nil
	}
	if policyOf(svc) == core.IPFamilyPolicySingleStack {
		if sameClusterIPs(old, svc) && len(svc.Spec.ClusterIPs) > 1 {
			svc.Spec.ClusterIPs = svc.Spec.ClusterIPs[:1]
		}
		if sameFamilies(old, svc) && len(svc.Spec.IPFamilies) > 1 {
			svc.Spec.IPFamilies = svc.Spec.IPFamilies[:1]
		}
		return nil
	}
	path := field.NewPath("spec", "ipFamilyPolicy")
	if n := len(svc.Spec.ClusterIPs); n > 0 && n < len(old.Spec.ClusterIPs) {
		errs = append(errs, field.Invalid(path, svc.Spec.IPFamilyPolicy, "must be 'SingleStack' to release the secondary cluster IP"))
	}
	if n := len(svc.Spec.IPFamilies); n > 0 && n < len(old.Spec.IPFamilies) {
		errs = append(errs, field.Invalid(path, svc.Spec.IPFamilyPolicy, "must be 'SingleStack' to release the secondary IP family"))
	}
	return errs
}

func tooManyForSingleStack(svc *core.Service) (errs field.ErrorList) {
	if policyOf(svc) != core.IPFamilyPolicySingleStack {
		return nil
	}
	path := field.NewPath("spec", "ipFamilyPolicy")
	if len(svc.Spec.ClusterIPs) == 2 {
		errs = append(errs, field.Invalid(path, svc.Spec.IPFamilyPolicy,
			"must be 'RequireDualStack' or 'PreferDualStack' when multiple cluster IPs are specified"))
	}
	if len(svc.Spec.IPFamilies) == 2 {
		errs = append(errs, field.Invalid(path, svc.Spec.IPFamilyPolicy,
			"must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified"))
	}
	return errs
}

// inferFamilies reads families off the addresses that are asked for.
func (a *Allocator) inferFamilies(svc *core.Service) (errs field.ErrorList) {
	for i, ip := range svc.Spec.ClusterIPs {
		if ip == core.ClusterIPNone {
			break
		}
		if i < len(svc.Spec.IPFamilies) {
			continue
		}
		family := familyOf(ip)
		if a.pools[family] == nil {
			errs = append(errs, field.Invalid(field.NewPath("spec", "clusterIPs").Index(i), svc.Spec.ClusterIPs,
				fmt.Sprintf("%s is not configured on this cluster", family)))
			continue
		}
		svc.Spec.IPFamilies = append(svc.Spec.IPFamilies, family)
	}
	return errs
}

// completeSelectorless allows what others may not: both families on a cluster of one.
func (a *Allocator) completeSelectorless(svc *core.Service) {
	if len(svc.Spec.IPFamilies) == 0 {
		svc.Spec.IPFamilies = []core.IPFamily{a.primary}
	}
	if len(svc.Spec.IPFamilies) < 2 && policyOf(svc) != core.IPFamilyPolicySingleStack {
		svc.Spec.IPFamilies = append(svc.Spec.IPFamilies, otherFamily(svc.Spec.IPFamilies[0]))
	}
}

func (a *Allocator) configured(svc *core.Service) (errs field.ErrorList) {
	if policyOf(svc) == core.IPFamilyPolicyRequireDualStack && len(a.pools) < 2 {
		errs = append(errs, field.Invalid(field.NewPath("spec", "ipFamilyPolicy"), svc.Spec.IPFamilyPolicy,
			"this cluster is not configured for dual-stack services"))
	}
	for i, f := range svc.Spec.IPFamilies {
		if a.pools[f] == nil {
			errs = append(errs, field.Invalid(field.NewPath("spec", "ipFamilies").Index(i), f, "not configured on this cluster"))
		}
	}
	return errs
}

// syncClusterIPs brings the old singular and the plural field together; what
// contradicts is left for validation.
func syncClusterIPs(svc, old *core.Service) {
	if old == nil {
		if svc.Spec.ClusterIP != "" && len(svc.Spec.ClusterIPs) == 0 {
			svc.Spec.ClusterIPs = []string{svc.Spec.ClusterIP}
		}
		return
	}
	if len(old.Spec.ClusterIPs) > 0 && len(svc.Spec.ClusterIPs) == 0 && old.Spec.ClusterIP == svc.Spec.ClusterIP {
		svc.Spec.ClusterIPs = old.Spec.ClusterIPs
	}
	if old.Spec.ClusterIP == svc.Spec.ClusterIP || !sameClusterIPs(old, svc) {
		return
	}
	// A client that knows the singular field only changed or cleared it.
	svc.Spec.ClusterIPs = nil
	if svc.Spec.ClusterIP != "" {
		svc.Spec.ClusterIPs = []string{svc.Spec.ClusterIP}
	}
}

// keepAllocated puts what was allocated back into an update that leaves it out,
// so that applying the same manifest again succeeds.
func keepAllocated(svc, old *core.Service) {
	if needsClusterIP(old) && needsClusterIP(svc) {
		if svc.Spec.ClusterIP == "" {
			svc.Spec.ClusterIP = old.Spec.ClusterIP
		}
		if len(svc.Spec.ClusterIPs) == 0 && len(old.Spec.ClusterIPs) > 0 {
			svc.Spec.ClusterIPs = old.Spec.ClusterIPs
		}
	}
	if allocatesNodePorts(old) && allocatesNodePorts(svc) {
		keepNodePorts(svc, old)
	}
	if keepsHealthCheckPort(old) && keepsHealthCheckPort(svc) && svc.Spec.HealthCheckNodePort == 0 {
		svc.Spec.HealthCheckNodePort = old.Spec.HealthCheckNodePort
	}
}

func keepNodePorts(svc, old *core.Service) {
	asked := map[int32]bool{}
	for _, port := range usedNodePorts(svc) {
		asked[port] = true
	}
	had := map[string]int32{}
	for _, p := range old.Spec.Ports {
		had[p.Name] = p.NodePort
	}
	for i := range svc.Spec.Ports {
		p := &svc.Spec.Ports[i]
		if was := had[p.Name]; p.NodePort == 0 && !asked[was] {
			p.NodePort = was
		}
	}
}

func keepsHealthCheckPort(svc *core.Service) bool {
	return svc.Spec.Type == core.ServiceTypeLoadBalancer && svc.Spec.ExternalTrafficPolicy == core.ServiceExternalTrafficPolicyLocal
}

// dropInternalTrafficPolicy: an external name has none, though clients may send one, for
// old versions of Kubernetes gave it to all Services. Upstream stores it and never shows it.
func dropInternalTrafficPolicy(svc *core.Service) {
	if svc.Spec.Type == core.ServiceTypeExternalName {
		svc.Spec.InternalTrafficPolicy = nil
	}
}

// OnRead completes an internal Service that an older server wrote. Upstream does
// it to everything that is read; of a Service that this version wrote it changes nothing.
func (a *Allocator) OnRead(internal runtime.Object) {
	svc, ok := internal.(*core.Service)
	if !ok {
		return
	}
	syncClusterIPs(svc, nil)
	dropInternalTrafficPolicy(svc)
	if svc.Spec.Type == core.ServiceTypeExternalName {
		return
	}
	if len(svc.Spec.IPFamilies) > 0 {
		return
	}
	switch {
	case selectorlessHeadless(svc):
		svc.Spec.IPFamilyPolicy = ptr.To(core.IPFamilyPolicyRequireDualStack)
		svc.Spec.IPFamilies = []core.IPFamily{a.primary, otherFamily(a.primary)}
	case svc.Spec.ClusterIP == core.ClusterIPNone:
		svc.Spec.IPFamilyPolicy = ptr.To(core.IPFamilyPolicySingleStack)
		svc.Spec.IPFamilies = []core.IPFamily{a.primary}
	default:
		for _, ip := range svc.Spec.ClusterIPs {
			svc.Spec.IPFamilies = append(svc.Spec.IPFamilies, familyOf(ip))
		}
		switch len(svc.Spec.IPFamilies) {
		case 1:
			svc.Spec.IPFamilyPolicy = ptr.To(core.IPFamilyPolicySingleStack)
		case 2:
			svc.Spec.IPFamilyPolicy = ptr.To(core.IPFamilyPolicyRequireDualStack)
		}
	}
}
