// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

// nearest are the endpoints of a port that are meant for clients of this node, as the hints of
// its EndpointSlices say: for the node, else for its zone. Hints count while every endpoint has some:
// a slice that was written before the Service asked for them, or by somebody who knows none, must not
// take traffic away from its endpoints. Where none is meant for this place, all are used.
func nearest(all []endpoint, node, zone string) []endpoint {
	if list := meantFor(node, all, func(e endpoint) []string { return e.nodes }); len(list) > 0 {
		return list
	}
	if list := meantFor(zone, all, func(e endpoint) []string { return e.zones }); len(list) > 0 {
		return list
	}
	return all
}

// meantFor are the endpoints whose hints name a place; none when an endpoint has no hints.
func meantFor(place string, all []endpoint, places func(endpoint) []string) []endpoint {
	var list []endpoint
	for _, e := range all {
		names := places(e)
		if len(names) == 0 {
			return nil
		}
		if slices.Contains(names, place) {
			list = append(list, e)
		}
	}
	return list
}

// hints are the names of the zones and nodes that an endpoint is meant for.
func hints(h *discoveryv1.EndpointHints) (zones, nodes []string) {
	if h == nil {
		return nil, nil
	}
	for _, z := range h.ForZones {
		zones = append(zones, z.Name)
	}
	for _, n := range h.ForNodes {
		nodes = append(nodes, n.Name)
	}
	return zones, nodes
}

// followZone keeps the zone of this node, which its label may be given, or be changed, at any time. A Node that is
// deleted keeps the zone that it had: the machine has not moved. Nothing waits for it: until the zone is known, and where it
// cannot be read, all endpoints are used.
func (p *Proxy) followZone(nodes informers.SharedInformerFactory) error {
	if nodes == nil {
		return nil
	}
	_, err := nodes.Core().V1().Nodes().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    p.nodeChanged,
		UpdateFunc: func(_, o any) { p.nodeChanged(o) },
	})
	return err
}

func (p *Proxy) nodeChanged(o any) {
	node, ok := o.(*corev1.Node)
	if !ok || node.Name != p.cfg.Node {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	zone, kubelet := node.Labels[corev1.LabelTopologyZone], node.Status.DaemonEndpoints.KubeletEndpoint.Port
	if zone == p.zone && kubelet == p.kubelet {
		return
	}
	if zone != p.zone {
		for key := range p.services {
			p.change(key)
		}
	}
	p.zone, p.kubelet = zone, kubelet
	p.nudge()
}

// reserved are the ports of the node that no Service gets. The kubelet's is another than usual where that one was taken.
func (p *Proxy) reserved() []int32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := slices.Clone(p.cfg.ReservedTCPPorts)
	if p.kubelet != 0 {
		out = append(out, p.kubelet)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// reserve has the table keep these ports from Services; it is written anew where it kept others.
func (s *side) reserve(ports []int32) {
	if !slices.Equal(s.table.reserved, ports) {
		s.table.reserved, s.broken = ports, true
	}
}
