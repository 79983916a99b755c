// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
)

// Requests that scores assume for containers which ask for nothing; upstream's values.
const (
	DefaultMilliCPU int64 = 100
	DefaultMemory   int64 = 200 << 20
)

var defaultRequests = corev1.ResourceList{
	corev1.ResourceCPU:    *resource.NewMilliQuantity(DefaultMilliCPU, resource.DecimalSI),
	corev1.ResourceMemory: *resource.NewQuantity(DefaultMemory, resource.BinarySI),
}

// NewPodInfo works out what plugins ask of a pod.
func NewPodInfo(p *corev1.Pod) *PodInfo {
	info := withoutTerms(p)
	info.Terms = NewTerms(p)
	return info
}

// Changed is the info of the same pod as it is now. What nothing has changed for is not worked out
// again: most changes are of the status, and until the pod runs it asks for what its spec says.
func (p *PodInfo) Changed(now *corev1.Pod) *PodInfo {
	if p.Pod.UID != now.UID || p.Pod.Generation != now.Generation || !maps.Equal(p.Pod.Labels, now.Labels) {
		return NewPodInfo(now)
	}
	if asksBySpec(p.Pod) && asksBySpec(now) {
		info := *p
		info.Pod = now
		return &info
	}
	info := withoutTerms(now)
	info.Terms = p.Terms
	return info
}

// ShrinksTo says whether there is less of anything in now.
func (r *Resources) ShrinksTo(now *Resources) bool {
	if now.MilliCPU < r.MilliCPU || now.Memory < r.Memory || now.EphemeralStorage < r.EphemeralStorage {
		return true
	}
	for name, n := range r.Scalar {
		if now.Scalar[name] < n {
			return true
		}
	}
	return false
}

// asksBySpec says whether nothing in a pod's status counts among its requests.
func asksBySpec(p *corev1.Pod) bool {
	return len(p.Status.ContainerStatuses) == 0 && len(p.Status.InitContainerStatuses) == 0 &&
		p.Status.Resources == nil && p.Status.AllocatedResources == nil
}

// resizesAsAWhole says whether the pod's own status, beside its containers', tells of a resize. That of a pod with
// overhead has the overhead in it, and upstream's sum would count it twice.
func resizesAsAWhole(p *corev1.Pod) bool { return p.Spec.Resources != nil && len(p.Spec.Overhead) == 0 }

func withoutTerms(p *corev1.Pod) *PodInfo {
	info := &PodInfo{Pod: p}
	info.Requests, info.NonZero = requestsOf(p)
	info.Requests.Pods, info.NonZero.Pods = 1, 1
	info.Ports = hostPorts(p)
	return info
}

// requestsOf is what a pod asks for, and what scores assume of it. A resize that is under way counts with the larger of old
// and new; of a pod that has not run, upstream's sum would count the spec three times to find that out.
func requestsOf(p *corev1.Pod) (requests, nonZero Resources) {
	bySpec := asksBySpec(p) && !resourcehelper.IsPodResizeInfeasible(p)
	how := resourcehelper.PodResourcesOptions{
		UseStatusResources: !bySpec, InPlacePodLevelResourcesVerticalScalingEnabled: resizesAsAWhole(p),
	}
	requests = NewResources(resourcehelper.PodRequests(p, how))
	if bySpec && asksForCPUAndMemory(p.Spec.Containers) && asksForCPUAndMemory(p.Spec.InitContainers) {
		nonZero = requests
		nonZero.Scalar = maps.Clone(requests.Scalar)
		return requests, nonZero
	}
	how.NonMissingContainerRequests = defaultRequests
	return requests, NewResources(resourcehelper.PodRequests(p, how))
}

// asksForCPUAndMemory says whether there is nothing that scores would have to assume.
func asksForCPUAndMemory(containers []corev1.Container) bool {
	for i := range containers {
		for name := range defaultRequests {
			if _, ok := containers[i].Resources.Requests[name]; !ok {
				return false
			}
		}
	}
	return true
}

func hostPorts(p *corev1.Pod) []HostPort {
	var ports []HostPort
	add := func(c *corev1.Container) {
		for _, port := range c.Ports {
			if port.HostPort > 0 {
				protocol := port.Protocol
				if protocol == "" {
					protocol = corev1.ProtocolTCP
				}
				ports = append(ports, HostPort{IP: port.HostIP, Protocol: protocol, Port: port.HostPort})
			}
		}
	}
	for i := range p.Spec.Containers {
		add(&p.Spec.Containers[i])
	}
	// Init containers that keep running hold their ports; the others have gone by
	// the time a port matters to anybody else.
	for i := range p.Spec.InitContainers {
		if c := &p.Spec.InitContainers[i]; c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			add(c)
		}
	}
	return ports
}

// NewResources converts a resource list.
func NewResources(list corev1.ResourceList) Resources {
	var r Resources
	for name, q := range list {
		switch name {
		case corev1.ResourceCPU:
			r.MilliCPU = q.MilliValue()
		case corev1.ResourceMemory:
			r.Memory = q.Value()
		case corev1.ResourceEphemeralStorage:
			r.EphemeralStorage = q.Value()
		case corev1.ResourcePods:
			r.Pods = q.Value()
		default:
			if r.Scalar == nil {
				r.Scalar = map[corev1.ResourceName]int64{}
			}
			r.Scalar[name] = q.Value()
		}
	}
	return r
}

// Plus returns r + n times o. r's map is not changed.
func (r Resources) Plus(o Resources, n int64) Resources {
	r.MilliCPU += n * o.MilliCPU
	r.Memory += n * o.Memory
	r.EphemeralStorage += n * o.EphemeralStorage
	r.Pods += n * o.Pods
	if len(o.Scalar) > 0 {
		sum := maps.Clone(r.Scalar)
		if sum == nil {
			sum = map[corev1.ResourceName]int64{}
		}
		for name, v := range o.Scalar {
			sum[name] += n * v
		}
		r.Scalar = sum
	}
	return r
}

// NewNodeInfo makes the info of a node without pods.
func NewNodeInfo(n *corev1.Node) *NodeInfo {
	info := &NodeInfo{Node: n, Allocatable: NewResources(n.Status.Allocatable), ImageSizes: map[string]int64{}}
	for _, image := range n.Status.Images {
		for _, name := range image.Names {
			info.ImageSizes[name] = image.SizeBytes
		}
	}
	return info
}

// WithNode returns a copy of n for a changed node object.
func (n *NodeInfo) WithNode(node *corev1.Node) *NodeInfo {
	c := NewNodeInfo(node)
	c.Pods, c.Requested, c.NonZero = n.Pods, n.Requested, n.NonZero
	c.Affinity, c.AntiAffinity, c.Ports = n.Affinity, n.AntiAffinity, n.Ports
	return c
}

// WithPod returns a copy of n with one more pod.
func (n *NodeInfo) WithPod(p *PodInfo) *NodeInfo {
	c := *n
	c.Pods = append(slices.Clip(n.Pods), p)
	c.Requested, c.NonZero = n.Requested.Plus(p.Requests, 1), n.NonZero.Plus(p.NonZero, 1)
	c.countAffinity(p.Pod, 1)
	if len(p.Ports) > 0 {
		c.Ports = append(slices.Clip(n.Ports), p.Ports...)
	}
	return &c
}

// WithoutPod returns a copy of n without the pod of that UID.
func (n *NodeInfo) WithoutPod(p *PodInfo) *NodeInfo {
	i := slices.IndexFunc(n.Pods, func(o *PodInfo) bool { return o.Pod.UID == p.Pod.UID })
	if i < 0 {
		return n
	}
	c := *n
	gone := n.Pods[i]
	c.Pods = slices.Delete(slices.Clone(n.Pods), i, i+1)
	c.Requested, c.NonZero = n.Requested.Plus(gone.Requests, -1), n.NonZero.Plus(gone.NonZero, -1)
	c.countAffinity(gone.Pod, -1)
	if len(gone.Ports) > 0 {
		c.Ports = nil
		for _, o := range c.Pods {
			c.Ports = append(c.Ports, o.Ports...)
		}
	}
	return &c
}

func (n *NodeInfo) countAffinity(p *corev1.Pod, by int) {
	a := p.Spec.Affinity
	if a == nil || a.PodAffinity == nil && a.PodAntiAffinity == nil {
		return
	}
	n.Affinity += by
	if a.PodAntiAffinity != nil && len(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution) > 0 {
		n.AntiAffinity += by
	}
}
