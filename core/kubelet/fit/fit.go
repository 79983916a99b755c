// SPDX-License-Identifier: Apache-2.0

// Package fit decides which pods a node has room for: it makes the checks that the scheduler
// made once more, against what really runs on the node. The scheduler may have
// been bypassed, or have raced. Room keeps account of the pods that were let in; it
// refuses with upstream's reasons and messages.
package fit

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	"github.com/wasmplane/wasmplane/core/kubelet/evict"
	"github.com/wasmplane/wasmplane/core/kubelet/pod"
	"github.com/wasmplane/wasmplane/core/kubelet/status"
)

// Verdict on a pod; the zero value lets it in.
type Verdict struct {
	Refused bool
	// Reason and Message of a refusal, for the pod's status.
	Reason, Message string
	// Lacking is all of which there is not enough, where that is why.
	Lacking evict.Lack
}

// Room of one node, and the pods that have their place in it.
type Room struct {
	reserved map[corev1.Protocol][]int32

	mu       sync.Mutex
	admitted map[types.UID]*corev1.Pod
	// waiting are pods that were refused more than they have, as they ask for it.
	waiting map[types.UID]waiter
}

// PortReserved is the reason of a refusal of a host port that is the node's own.
const PortReserved = "HostPortReserved"

// NewRoom makes an empty one. Pods may not have the ports reservedTCP and reservedUDP of the
// node as host ports, at whatever address.
func NewRoom(reservedTCP, reservedUDP []int32) *Room {
	reserved := map[corev1.Protocol][]int32{corev1.ProtocolTCP: reservedTCP, corev1.ProtocolUDP: reservedUDP}
	return &Room{reserved: reserved, admitted: map[types.UID]*corev1.Pod{}, waiting: map[types.UID]waiter{}}
}

func refuse(reason, format string, args ...any) Verdict {
	return Verdict{Refused: true, Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// Reserve lets a pod in that passes the checks, and keeps its place until Release.
func (r *Room) Reserve(p *corev1.Pod, node *corev1.Node) Verdict {
	if p.Spec.OS != nil && p.Spec.OS.Name != corev1.Linux {
		return refuse("PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS")
	}
	if arch, ok := p.Spec.NodeSelector[corev1.LabelOSStable]; ok && arch != node.Labels[corev1.LabelOSStable] {
		return refuse("PodOSSelectorNodeLabelDoesNotMatch", "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label")
	}
	if v := sysctls(p); v.Refused {
		return v
	}
	if v := underPressure(p, node); v.Refused {
		return v
	}
	if ok, err := nodeaffinity.GetRequiredNodeAffinity(p).Match(node); err != nil || !ok {
		return refuse("NodeAffinity", "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector")
	}
	if _, untolerated := corev1helpers.FindMatchingUntoleratedTaint(klog.Background(), node.Spec.Taints, p.Spec.Tolerations,
		func(t *corev1.Taint) bool {
			return t.Effect == corev1.TaintEffectNoExecute
		}, true); untolerated {
		return refuse("TaintToleration", "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate")
	}
	if port := r.portReserved(p); port != "" {
		return refuse(PortReserved, "Failed to admit pod as host port %s is reserved for the node itself; choose another hostPort", port)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if port := r.portTaken(p); port != 0 {
		return refuse("NodePorts", "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports")
	}
	if v := r.fits(p, node); v.Refused {
		return v
	}
	r.admitted[p.UID] = p
	return Verdict{}
}

// Infeasible is why a pod would not fit on the node though nothing else ran there; "" if it does.
func Infeasible(p *corev1.Pod, node *corev1.Node) string {
	asked := resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{})
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		want, have := asked[name], node.Status.Allocatable[name]
		if want.Cmp(have) <= 0 {
			continue
		}
		n, m := want.Value(), have.Value()
		if name == corev1.ResourceCPU {
			n, m = want.MilliValue(), have.MilliValue()
		}
		return fmt.Sprintf("Node didn't have enough capacity: %s, requested: %d, capacity: %d", name, n, m)
	}
	return ""
}

// Keep gives a pod its place without checks: it runs here already.
func (r *Room) Keep(p *corev1.Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.admitted[p.UID] = p
}

// Release gives the place of a pod to others.
func (r *Room) Release(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.admitted, uid)
	delete(r.waiting, uid)
}

// Pods that have a place.
func (r *Room) Pods() []*corev1.Pod {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Values(r.admitted))
}

// fits compares what is asked for with what is left. Lock held.
func (r *Room) fits(p *corev1.Pod, node *corev1.Node) Verdict {
	opts := resourcehelper.PodResourcesOptions{}
	want := resourcehelper.PodRequests(p, opts)
	used, pods := corev1.ResourceList{}, int64(0)
	for uid, other := range r.admitted {
		if uid == p.UID {
			continue
		}
		pods++
		for name, q := range resourcehelper.PodRequests(other, opts) {
			if byClaim(other, name) {
				continue
			}
			sum := used[name]
			sum.Add(q)
			used[name] = sum
		}
	}
	var v Verdict
	lack := func(name corev1.ResourceName, missing int64, why Verdict) {
		if !v.Refused {
			v = why
			v.Lacking = evict.Lack{}
		}
		v.Lacking[name] = missing
	}
	if limit := node.Status.Allocatable[corev1.ResourcePods]; pods+1 > limit.Value() {
		lack(corev1.ResourcePods, pods+1-limit.Value(), refuse("OutOfpods",
			"Node didn't have enough resource: pods, requested: 1, used: %d, capacity: %d", pods, limit.Value()))
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		q := want[name]
		if q.IsZero() || byClaim(p, name) {
			continue
		}
		have, taken := node.Status.Allocatable[name], used[name]
		value := func(q resource.Quantity) int64 { return q.Value() }
		if name == corev1.ResourceCPU {
			value = func(q resource.Quantity) int64 { return q.MilliValue() }
		}
		// Compared as quantities: an absurd one overflows as a number, and would fit anywhere.
		over := taken.DeepCopy()
		over.Add(q)
		over.Sub(have)
		if over.Sign() <= 0 {
			continue
		}
		missing := int64(math.MaxInt64) // more than can be counted
		if over.CmpInt64(math.MaxInt64/1000) <= 0 {
			missing = value(over)
		}
		lack(name, missing, refuse("OutOf"+string(name), "Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d", name,
			value(q), value(taken), value(have)))
	}
	return v
}

// byClaim says whether a pod has an extended resource by a claim: the node's driver gives it,
// and the node does not count it.
func byClaim(p *corev1.Pod, name corev1.ResourceName) bool {
	s := p.Status.ExtendedResourceClaimStatus
	return s != nil && slices.ContainsFunc(s.RequestMappings, func(m corev1.ContainerExtendedResourceRequest) bool {
		return m.ResourceName == string(name)
	})
}

// portReserved answers a host port of the pod that is the node's own. It would be
// taken from whoever listens there by rules, in the node's own network it cannot be.
func (r *Room) portReserved(p *corev1.Pod) string {
	if pod.HostNetwork(p) {
		return ""
	}
	for _, port := range hostPorts(p) {
		protocol := cmp.Or(port.Protocol, corev1.ProtocolTCP)
		if slices.Contains(r.reserved[protocol], port.HostPort) {
			return fmt.Sprintf("%d/%s", port.HostPort, protocol)
		}
	}
	return ""
}

// portTaken answers a host port of the pod that another has. Lock held.
func (r *Room) portTaken(p *corev1.Pod) int32 {
	for uid, other := range r.admitted {
		if uid == p.UID {
			continue
		}
		for _, a := range hostPorts(p) {
			for _, b := range hostPorts(other) {
				sameIP := a.HostIP == b.HostIP || anyIP(a.HostIP) || anyIP(b.HostIP)
				if a.HostPort == b.HostPort && a.Protocol == b.Protocol && sameIP {
					return a.HostPort
				}
			}
		}
	}
	return 0
}

func anyIP(ip string) bool { return ip == "" || ip == "0.0.0.0" || ip == "::" }

func hostPorts(p *corev1.Pod) []corev1.ContainerPort {
	var out []corev1.ContainerPort
	collect := func(list []corev1.Container, all bool) {
		for i := range list {
			if !all && !pod.IsSidecar(&list[i]) {
				continue
			}
			for _, port := range list[i].Ports {
				if port.HostPort > 0 {
					out = append(out, port)
				}
			}
		}
	}
	collect(p.Spec.Containers, true)
	collect(p.Spec.InitContainers, false)
	return out
}

// safeSysctls are namespaced, and cannot harm the node or another pod.
var safeSysctls = map[string]bool{
	"kernel.shm_rmid_forced": true, "net.ipv4.ip_local_port_range": true, "net.ipv4.tcp_syncookies": true, "net.ipv4.ping_group_range": true,
	"net.ipv4.ip_unprivileged_port_start": true, "net.ipv4.ip_local_reserved_ports": true, "net.ipv4.tcp_keepalive_time": true,
	"net.ipv4.tcp_fin_timeout": true, "net.ipv4.tcp_keepalive_intvl": true, "net.ipv4.tcp_keepalive_probes": true,
	"net.ipv4.tcp_rmem": true, "net.ipv4.tcp_wmem": true,
}

func sysctls(p *corev1.Pod) Verdict {
	if p.Spec.SecurityContext == nil {
		return Verdict{}
	}
	for _, s := range p.Spec.SecurityContext.Sysctls {
		name := strings.ReplaceAll(s.Name, "/", ".")
		if !safeSysctls[name] {
			return refuse("SysctlForbidden", "forbidden sysctl: %q not allowlisted", s.Name)
		}
		if pod.HostNetwork(p) && strings.HasPrefix(name, "net.") {
			return refuse("SysctlForbidden", "forbidden sysctl: %q not allowed with host net enabled", s.Name)
		}
	}
	return Verdict{}
}

// underPressure keeps off a node that is short of something those pods that would be the first to go.
func underPressure(p *corev1.Pod, node *corev1.Node) Verdict {
	if evict.Critical(p) {
		return Verdict{}
	}
	for _, c := range node.Status.Conditions {
		if c.Status != corev1.ConditionTrue {
			continue
		}
		switch c.Type {
		case corev1.NodeMemoryPressure:
			taint := &corev1.Taint{Key: corev1.TaintNodeMemoryPressure, Effect: corev1.TaintEffectNoSchedule}
			if status.QOS(p) != corev1.PodQOSBestEffort || corev1helpers.TolerationsTolerateTaint(klog.Background(), p.Spec.Tolerations, taint,
				true) {
				continue
			}
		case corev1.NodeDiskPressure, corev1.NodePIDPressure:
		default:
			continue
		}
		return refuse(evict.Reason, "The node had condition: [%s]. ", c.Type)
	}
	return Verdict{}
}
