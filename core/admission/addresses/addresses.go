// SPDX-License-Identifier: Apache-2.0

// Package addresses keeps those who write Services and endpoints in one namespace from drawing
// others' traffic to them, or from sending others to the machines: by the addresses of load
// balancers (CVE-2020-8554, where DenyServiceExternalIPs stands for externalIPs), and by endpoints
// that are nodes (CVE-2021-25740). Who may do so in all namespaces may do so here: load
// balancers and controllers have that right.
//
// Loopback and link-local addresses are refused to everybody by the validation of endpoints.
package addresses

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	listers "k8s.io/client-go/listers/core/v1"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/reading"
	"github.com/wasmplane/wasmplane/core/auth/authz"
	"github.com/wasmplane/wasmplane/core/loadbalancer"
)

// Name of the plugin.
const Name = "RestrictServiceAddresses"

// Plugin implements core's admission.Validator.
type Plugin struct {
	authorizer authz.Authorizer
	nodes      listers.NodeLister
	warm       reading.Warm
}

// New makes the plugin; the caller starts the informers, for which a request waits as long
// as within.
func New(a authz.Authorizer, f informers.SharedInformerFactory, within time.Duration) *Plugin {
	nodes := f.Core().V1().Nodes()
	return &Plugin{a, nodes.Lister(), reading.WarmOf(within, nodes.Informer())}
}

// Name implements admission.Plugin.
func (*Plugin) Name() string { return Name }

// what reads the addresses of an object, with where they stand, that only some may give it:
// all of them, or those of nodes.
type what struct {
	rules []reading.Rule
	// of whom the right is asked, in all namespaces
	group, resource, subresource string
	of                           func(runtime.Object) map[string]string
	nodes                        bool
}

func kinds() []what {
	writes := []admission.Operation{admission.Create, admission.Update}
	return []what{
		{
			[]reading.Rule{reading.On("", "services", "", writes...), reading.On("", "services", "status", writes...)},
			"", "services", "status",
			balanced, false,
		},
		{[]reading.Rule{reading.On("", "endpoints", "", writes...)}, "", "endpoints", "", ofEndpoints, true},
		{
			[]reading.Rule{reading.On(discoveryv1.GroupName, "endpointslices", "", writes...)},
			discoveryv1.GroupName, "endpointslices", "",
			ofSlice, true,
		},
	}
}

func find(r *admission.Request) *what {
	for _, k := range kinds() {
		if slices.ContainsFunc(k.rules, func(rule reading.Rule) bool { return rule.Handles(r) }) {
			return &k
		}
	}
	return nil
}

// Handles implements admission.Plugin.
func (p *Plugin) Handles(r *admission.Request) bool { return find(r) != nil }

// Validate implements admission.Validator. What an object had before it may keep.
func (p *Plugin) Validate(ctx context.Context, r *admission.Request) error {
	k := find(r)
	if k == nil {
		return nil
	}
	now, err := reading.Typed[runtime.Object](r.Object)
	if err != nil {
		return err
	}
	found := k.of(now)
	if r.OldObject != nil && len(found) > 0 {
		old, err := reading.Typed[runtime.Object](r.OldObject)
		if err != nil {
			return err
		}
		for address := range k.of(old) {
			delete(found, address)
		}
	}
	if len(found) == 0 {
		return nil
	}
	d, _, err := p.authorizer.Authorize(ctx, authorizer.AttributesRecord{
		User: r.User, Verb: "update", APIGroup: k.group, APIVersion: "*", Resource: k.resource, Subresource: k.subresource, ResourceRequest: true,
	})
	if err == nil && d == authz.Allow {
		return nil
	}
	if k.nodes {
		if err := p.leaveNodes(ctx, r, found); err != nil || len(found) == 0 {
			return err
		}
	}
	address := slices.Min(slices.Collect(maps.Keys(found)))
	right := k.resource
	if k.subresource != "" {
		right += "/" + k.subresource
	}
	return admission.Forbidden(r, fmt.Errorf("%s: %s may be used by those only who may update %s in all namespaces: it can draw others' traffic, or reach what is not the namespace's", found[address], address, right))
}

// balanced are the addresses by which load balancers reach a Service.
func balanced(o runtime.Object) map[string]string {
	s, ok := o.(*corev1.Service)
	if !ok {
		return nil
	}
	out := map[string]string{}
	for i, in := range s.Status.LoadBalancer.Ingress {
		if in.IP != "" {
			out[in.IP] = fmt.Sprintf("status.loadBalancer.ingress[%d].ip", i)
		}
	}
	if ip := s.Spec.LoadBalancerIP; ip != "" {
		out[ip] = "spec.loadBalancerIP"
	}
	if ips := s.Annotations[loadbalancer.AddressesAnnotation]; ips != "" {
		out[ips] = "metadata.annotations[" + loadbalancer.AddressesAnnotation + "]"
	}
	return out
}

func ofEndpoints(o runtime.Object) map[string]string {
	e, ok := o.(*corev1.Endpoints) //nolint:staticcheck // it is still served
	if !ok {
		return nil
	}
	out := map[string]string{}
	for i, s := range e.Subsets {
		for j, a := range append(slices.Clone(s.Addresses), s.NotReadyAddresses...) {
			out[a.IP] = fmt.Sprintf("subsets[%d].addresses[%d].ip", i, j)
		}
	}
	return out
}

func ofSlice(o runtime.Object) map[string]string {
	s, ok := o.(*discoveryv1.EndpointSlice)
	if !ok {
		return nil
	}
	out := map[string]string{}
	for i, e := range s.Endpoints {
		for j, a := range e.Addresses {
			out[a] = fmt.Sprintf("endpoints[%d].addresses[%d]", i, j)
		}
	}
	return out
}

// leaveNodes takes out the addresses that are no node's.
func (p *Plugin) leaveNodes(ctx context.Context, r *admission.Request, found map[string]string) error {
	if err := p.warm.Wait(ctx, r); err != nil {
		return err
	}
	nodes, err := p.nodes.List(labels.Everything())
	if err != nil {
		return admission.Forbidden(r, err) // nobody knows which are
	}
	theirs := map[netip.Addr]bool{}
	for _, n := range nodes {
		for _, a := range n.Status.Addresses {
			if ip, err := netip.ParseAddr(a.Address); err == nil {
				theirs[ip.Unmap()] = true
			}
		}
	}
	maps.DeleteFunc(found, func(address, _ string) bool {
		ip, err := netip.ParseAddr(address)
		return err != nil || !theirs[ip.Unmap()]
	})
	return nil
}
