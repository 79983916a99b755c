// SPDX-License-Identifier: Apache-2.0

package endpoints

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	library "k8s.io/endpointslice"
	endpointsliceutil "k8s.io/endpointslice/util"
	netutils "k8s.io/utils/net"
)

// maxAddresses is how many an Endpoints object may hold: with more, each change
// would be a megabyte to every watcher.
const maxAddresses = 1000

// subsets are the addresses behind a Service, ports with the same ones together.
func subsets(service *corev1.Service, pods []*corev1.Pod) []corev1.EndpointSubset {
	var raw []corev1.EndpointSubset
	for _, pod := range pods {
		if !endpointsliceutil.ShouldPodBeInEndpoints(pod, service.Spec.PublishNotReadyAddresses) {
			continue
		}
		address, ok := addressOf(service, pod)
		if !ok {
			continue
		}
		ready := service.Spec.PublishNotReadyAddresses || endpointsliceutil.IsPodReady(pod)
		add := func(ports ...corev1.EndpointPort) {
			s := corev1.EndpointSubset{Ports: ports}
			if ready {
				s.Addresses = []corev1.EndpointAddress{address}
			} else {
				s.NotReadyAddresses = []corev1.EndpointAddress{address}
			}
			raw = append(raw, s)
		}
		if len(service.Spec.Ports) == 0 && service.Spec.ClusterIP == corev1.ClusterIPNone {
			add() // a headless Service may be about names alone
		}
		for i := range service.Spec.Ports {
			port := &service.Spec.Ports[i]
			number, err := library.FindPort(pod, port)
			if err != nil {
				continue // this pod has no container port of that name
			}
			add(corev1.EndpointPort{Name: port.Name, Port: int32(number), Protocol: port.Protocol, AppProtocol: port.AppProtocol})
		}
	}
	return canonical(raw)
}

// addressOf is the pod's address in the Service's first IP family.
func addressOf(service *corev1.Service, pod *corev1.Pod) (corev1.EndpointAddress, bool) {
	v6 := netutils.IsIPv6String(pod.Status.PodIP)
	switch {
	case len(service.Spec.IPFamilies) > 0:
		v6 = service.Spec.IPFamilies[0] == corev1.IPv6Protocol
	case service.Spec.ClusterIP != "" && service.Spec.ClusterIP != corev1.ClusterIPNone:
		v6 = netutils.IsIPv6String(service.Spec.ClusterIP)
	}
	for _, ip := range pod.Status.PodIPs {
		if netutils.IsIPv6String(ip.IP) != v6 {
			continue
		}
		address := corev1.EndpointAddress{
			IP: ip.IP, NodeName: &pod.Spec.NodeName,
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		}
		if endpointsliceutil.ShouldSetHostname(pod, service) {
			address.Hostname = pod.Spec.Hostname
		}
		return address, true
	}
	return corev1.EndpointAddress{}, false
}

type addressKey struct {
	ip  string
	uid types.UID
}

type placed struct {
	address corev1.EndpointAddress
	ready   bool
}

// canonical writes the same endpoints always the same way: each address once for
// each port, ports with equal addresses in one subset, everything in order. An
// address that is both ready and not counts as not.
func canonical(in []corev1.EndpointSubset) []corev1.EndpointSubset {
	byPort := map[string]map[addressKey]placed{}
	ports := map[string]*corev1.EndpointPort{}
	for _, s := range in {
		list := s.Ports
		if len(list) == 0 {
			list = []corev1.EndpointPort{{Port: -1}} // stands for "no port"
		}
		for _, port := range list {
			key := portKey(port)
			if byPort[key] == nil {
				byPort[key] = map[addressKey]placed{}
				if port.Port > 0 {
					ports[key] = &port
				}
			}
			place(byPort[key], s.Addresses, true)
			place(byPort[key], s.NotReadyAddresses, false)
		}
	}
	merged := map[string]*corev1.EndpointSubset{}
	for key, addresses := range byPort {
		s := corev1.EndpointSubset{}
		for _, p := range addresses {
			if p.ready {
				s.Addresses = append(s.Addresses, p.address)
			} else {
				s.NotReadyAddresses = append(s.NotReadyAddresses, p.address)
			}
		}
		slices.SortFunc(s.Addresses, byAddress)
		slices.SortFunc(s.NotReadyAddresses, byAddress)
		same := addressesKey(s)
		if merged[same] == nil {
			merged[same] = &s
		}
		if port := ports[key]; port != nil {
			merged[same].Ports = append(merged[same].Ports, *port)
		}
	}
	var out []corev1.EndpointSubset
	for _, s := range merged {
		slices.SortFunc(s.Ports, func(a, b corev1.EndpointPort) int { return cmp.Compare(portKey(a), portKey(b)) })
		out = append(out, *s)
	}
	slices.SortFunc(out, func(a, b corev1.EndpointSubset) int {
		return cmp.Or(slices.CompareFunc(a.Ports, b.Ports, func(x, y corev1.EndpointPort) int { return cmp.Compare(portKey(x), portKey(y)) }),
			cmp.Compare(addressesKey(a), addressesKey(b)))
	})
	return out
}

func place(into map[addressKey]placed, addresses []corev1.EndpointAddress, ready bool) {
	for _, a := range addresses {
		key := addressKey{ip: a.IP}
		if a.TargetRef != nil {
			key.uid = a.TargetRef.UID
			ref := *a.TargetRef
			ref.ResourceVersion = ""
			a.TargetRef = &ref
		}
		if was, there := into[key]; !there || was.ready {
			into[key] = placed{a, ready}
		}
	}
}

func portKey(p corev1.EndpointPort) string {
	app := ""
	if p.AppProtocol != nil {
		app = *p.AppProtocol
	}
	return fmt.Sprintf("%05d/%s/%s/%s", p.Port, p.Protocol, p.Name, app)
}

func byAddress(a, b corev1.EndpointAddress) int {
	uid := func(x corev1.EndpointAddress) types.UID {
		if x.TargetRef == nil {
			return ""
		}
		return x.TargetRef.UID
	}
	return cmp.Or(cmp.Compare(a.IP, b.IP), cmp.Compare(uid(a), uid(b)))
}

func addressesKey(s corev1.EndpointSubset) string {
	var b strings.Builder
	for _, a := range s.Addresses {
		fmt.Fprintf(&b, "+%s %s ", a.IP, refUID(a))
	}
	for _, a := range s.NotReadyAddresses {
		fmt.Fprintf(&b, "-%s %s ", a.IP, refUID(a))
	}
	return b.String()
}

func refUID(a corev1.EndpointAddress) types.UID {
	if a.TargetRef == nil {
		return ""
	}
	return a.TargetRef.UID
}

// truncate cuts down to maxAddresses: ready ones stay before others, each subset
// keeps its share.
func truncate(e *corev1.Endpoints) bool {
	ready, notReady := 0, 0
	for _, s := range e.Subsets {
		ready += len(s.Addresses)
		notReady += len(s.NotReadyAddresses)
	}
	if ready+notReady <= maxAddresses {
		return false
	}
	room := maxAddresses - ready
	share := func(n, total, left int) int {
		if total == 0 {
			return 0
		}
		return min((n*max(left, 0)+total-1)/total, n)
	}
	keepReady, keepRest := min(ready, maxAddresses), max(room, 0)
	leftReady, leftRest := keepReady, keepRest
	for i := range e.Subsets {
		s := &e.Subsets[i]
		n := min(share(len(s.Addresses), ready, keepReady), leftReady)
		m := min(share(len(s.NotReadyAddresses), notReady, keepRest), leftRest)
		s.Addresses, s.NotReadyAddresses = s.Addresses[:n], s.NotReadyAddresses[:m]
		leftReady -= n
		leftRest -= m
	}
	e.Subsets = slices.DeleteFunc(e.Subsets, func(s corev1.EndpointSubset) bool { return len(s.Addresses)+len(s.NotReadyAddresses) == 0 })
	return true
}
