// SPDX-License-Identifier: Apache-2.0

// Package native holds the scheduler's own plugins: the rules of where a pod may
// run and where it had better run, with the names, messages and scores that
// upstream's have, so that what operators know keeps being true.
package native

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/core/scheduler/native/shape"
)

// Fit refuses nodes without room for the pod's requests, and prefers those with
// the most room left (LeastAllocated), if it is not told otherwise.
type Fit struct {
	// Ignored extended resources, and those of IgnoredGroups ("example.com"), refuse no node.
	Ignored, IgnoredGroups []string
	// Resources that are scored; nil = cpu and memory alike.
	Resources []ResourceWeight
	// Shape is the score at a utilization, with the pod, in lines from point to point; nil:
	// 100 at 0 down to 0 at 100. With Ratio a resource whose score is 0 does not count.
	Shape shape.Shape
	Ratio bool
	// ClassOf is the device class that gives an extended resource, "" = none: DynamicResources
	// looks for it on nodes that don't have the resource themselves. Nil = there are no classes.
	ClassOf func(corev1.ResourceName) string
}

// ResourceWeight is a resource with its weight beside the others.
type ResourceWeight struct {
	Name   corev1.ResourceName
	Weight int64
}

// Name implements framework.Plugin.
func (Fit) Name() string { return "NodeResourcesFit" }

// Hints implements framework.Hints.
func (Fit) Hints() framework.ClusterEvent {
	return framework.NodeAdded | framework.NodeAllocatableGrew | framework.PodRemoved | framework.PodShrank |
		framework.PodChanged | framework.DeviceClassChanged
}

// Filter implements framework.Filter.
func (f Fit) Filter(_ context.Context, _ *framework.State, p *framework.PodInfo, n *framework.NodeInfo) *framework.Status {
	short, never := f.shortages(p.Requests, n)
	if len(short) == 0 {
		return nil
	}
	code := framework.Unschedulable
	if never {
		code = framework.Unresolvable
	}
	return framework.NewStatus(code, short...)
}

// shortages names what the node has too little of; never says that not even the
// empty node would do.
func (f Fit) shortages(r framework.Resources, n *framework.NodeInfo) (short []string, never bool) {
	check := func(what string, want, used, total int64) {
		if want > 0 && want > total-used {
			short = append(short, what)
			never = never || want > total
		}
	}
	a, u := n.Allocatable, n.Requested
	check("Too many pods", 1, int64(len(n.Pods)), a.Pods)
	check("Insufficient cpu", r.MilliCPU, u.MilliCPU, a.MilliCPU)
	check("Insufficient memory", r.Memory, u.Memory, a.Memory)
	check("Insufficient ephemeral-storage", r.EphemeralStorage, u.EphemeralStorage, a.EphemeralStorage)
	for _, name := range sortedNames(r.Scalar) {
		if f.ignores(name) || a.Scalar[name] == 0 && f.ofDevices(name) {
			continue
		}
		check("Insufficient "+string(name), r.Scalar[name], u.Scalar[name], a.Scalar[name])
	}
	return short, never
}

func (f Fit) ofDevices(name corev1.ResourceName) bool {
	return f.ClassOf != nil && f.ClassOf(name) != ""
}

// Helped implements framework.Attentive: a class may give an extended resource that the pod asks for.
func (f Fit) Helped(p *framework.PodInfo, _, now runtime.Object) bool {
	class, ok := now.(*resourcev1.DeviceClass)
	if !ok {
		return false
	}
	implicit := p.Requests.Scalar[corev1.ResourceName(resourcev1.ResourceDeviceClassPrefix+class.Name)]
	if class.Spec.ExtendedResourceName != nil {
		implicit += p.Requests.Scalar[corev1.ResourceName(*class.Spec.ExtendedResourceName)]
	}
	return implicit > 0
}

func (f Fit) ignores(name corev1.ResourceName) bool {
	group, _, _ := strings.Cut(string(name), "/")
	return slices.Contains(f.Ignored, string(name)) || slices.Contains(f.IgnoredGroups, group)
}

func sortedNames(m map[corev1.ResourceName]int64) []corev1.ResourceName {
	names := make([]corev1.ResourceName, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Score implements framework.Score: the mean over resources, by default of the free shares
// of CPU and memory.
func (f Fit) Score(_ context.Context, _ *framework.State, p *framework.PodInfo, n *framework.NodeInfo) (int64, *framework.Status) {
	if f.Resources != nil || f.Shape != nil {
		return f.shaped(p, n), nil
	}
	var sum, count int64
	for _, s := range shares(p, n) {
		if s.total == 0 {
			continue
		}
		count++
		if s.used <= s.total {
			sum += (s.total - s.used) * framework.MaxScore / s.total
		}
	}
	if count == 0 {
		return 0, nil
	}
	return sum / count, nil
}

// shaped is the score by weights and a shape. A resource that the node does not have, or an
// extended one for which the pod does not ask, does not count.
func (f Fit) shaped(p *framework.PodInfo, n *framework.NodeInfo) int64 {
	list := f.Resources
	if list == nil {
		list = []ResourceWeight{{corev1.ResourceCPU, 1}, {corev1.ResourceMemory, 1}}
	}
	both := shares(p, n)
	var sum, weights int64
	for _, r := range list {
		var s share
		switch r.Name {
		case corev1.ResourceCPU:
			s = both[0]
		case corev1.ResourceMemory:
			s = both[1]
		case corev1.ResourceEphemeralStorage:
			s = share{n.Requested.EphemeralStorage + p.Requests.EphemeralStorage, n.Allocatable.EphemeralStorage}
		default:
			if p.Requests.Scalar[r.Name] == 0 {
				continue
			}
			s = share{n.Requested.Scalar[r.Name] + p.Requests.Scalar[r.Name], n.Allocatable.Scalar[r.Name]}
		}
		if s.total == 0 {
			continue
		}
		if score := f.at(s); score > 0 || !f.Ratio {
			sum += score * r.Weight
			weights += r.Weight
		}
	}
	switch {
	case weights == 0:
		return 0
	case f.Ratio: // which upstream rounds, as it does not for the others
		return (2*sum + weights) / (2 * weights)
	}
	return sum / weights
}

// at is the score of a share.
func (f Fit) at(s share) int64 {
	if s.used > s.total { // requests are assumed for pods that have none
		s.used = s.total
	}
	if f.Shape == nil {
		return (s.total - s.used) * framework.MaxScore / s.total
	}
	return f.Shape.At(s.used * 100 / s.total)
}

type share struct{ used, total int64 }

func shares(p *framework.PodInfo, n *framework.NodeInfo) [2]share {
	return [2]share{
		{n.NonZero.MilliCPU + p.NonZero.MilliCPU, n.Allocatable.MilliCPU},
		{n.NonZero.Memory + p.NonZero.Memory, n.Allocatable.Memory},
	}
}

// Balance prefers nodes of which the pod makes resources be used more alike.
type Balance struct {
	// Resources that are balanced; nil = cpu and memory.
	Resources []corev1.ResourceName
}

// Name implements framework.Plugin.
func (Balance) Name() string { return "NodeResourcesBalancedAllocation" }

var cpuAndMemory = []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory}

func (b Balance) resources() []corev1.ResourceName {
	if b.Resources == nil {
		return cpuAndMemory
	}
	return b.Resources
}

// PreScore implements framework.PreScore: a pod without requests balances nothing.
func (b Balance) PreScore(_ context.Context, _ *framework.State, p *framework.PodInfo, _ []*framework.NodeInfo) *framework.Status {
	if slices.ContainsFunc(b.resources(), func(name corev1.ResourceName) bool { return p.Requests.Of(name) > 0 }) {
		return nil
	}
	return framework.NewStatus(framework.Skip)
}

// Score implements framework.Score: 75, and what the pod does to the balance, from 50 to 100. The balance is 100
// less the standard deviation of the used shares, in percent. It counts real requests, not
// assumed ones.
func (b Balance) Score(_ context.Context, _ *framework.State, p *framework.PodInfo, n *framework.NodeInfo) (int64, *framework.Status) {
	var few [2][4]float64 // on the stack: this is asked about every node
	before, after := few[0][:0], few[1][:0]
	for _, name := range b.resources() {
		used, asked, total := n.Requested.Of(name), p.Requests.Of(name), n.Allocatable.Of(name)
		if total == 0 || asked == 0 && extended(name) {
			continue
		}
		before, after = append(before, fraction(used, total)), append(after, fraction(used+asked, total))
	}
	const half = framework.MaxScore / 2
	return half + (half+balance(after)-balance(before))/2, nil
}

// extended says whether a resource is none of those that every node has.
func extended(name corev1.ResourceName) bool {
	return name != corev1.ResourceCPU && name != corev1.ResourceMemory && name != corev1.ResourceEphemeralStorage
}

// balance of shares, of 100.
func balance(shares []float64) int64 {
	var mean, variance float64
	for _, s := range shares {
		mean += s / float64(len(shares))
	}
	for _, s := range shares {
		variance += (s - mean) * (s - mean) / float64(len(shares))
	}
	deviation := math.Sqrt(variance)
	if len(shares) == 2 { // half their distance, without the errors of the root
		deviation = math.Abs(shares[0]-shares[1]) / 2
	}
	return int64((1 - deviation) * float64(framework.MaxScore))
}

func fraction(used, total int64) float64 { return min(float64(used)/float64(total), 1) }

// Ports refuses nodes on which a host port of the pod is taken.
type Ports struct{}

// Name implements framework.Plugin.
func (Ports) Name() string { return "NodePorts" }

// Hints implements framework.Hints.
func (Ports) Hints() framework.ClusterEvent { return framework.NodeAdded | framework.PodRemoved }

// PreFilter implements framework.PreFilter.
func (Ports) PreFilter(_ context.Context, _ *framework.State, p *framework.PodInfo,
	_ *framework.Snapshot,
) (map[string]bool, *framework.Status) {
	if len(p.Ports) == 0 {
		return nil, framework.NewStatus(framework.Skip)
	}
	return nil, nil
}

// Filter implements framework.Filter.
func (Ports) Filter(_ context.Context, _ *framework.State, p *framework.PodInfo, n *framework.NodeInfo) *framework.Status {
	for _, taken := range n.Ports {
		if slices.ContainsFunc(p.Ports, func(want framework.HostPort) bool { return clash(want, taken) }) {
			return framework.NewStatus(framework.Unschedulable, "node(s) didn't have free ports for the requested pod ports")
		}
	}
	return nil
}

func clash(a, b framework.HostPort) bool {
	anywhere := func(ip string) bool { return ip == "" || ip == "0.0.0.0" }
	return a.Port == b.Port && a.Protocol == b.Protocol && (a.IP == b.IP || anywhere(a.IP) || anywhere(b.IP))
}

// ImageLocality prefers nodes that hold the pod's images already, large ones above all.
type ImageLocality struct{}

// Name implements framework.Plugin.
func (ImageLocality) Name() string { return "ImageLocality" }

// Bounds of the sum of image sizes, per container or image volume, between which the score grows from 0 to 100.
const (
	minImageBytes          int64 = 23 << 20
	maxImageBytesContainer int64 = 1000 << 20
)

type imagesKey struct{}

// PreScore implements framework.PreScore: it keeps how widely each image is spread over the whole
// cluster. An image that few nodes hold counts less, so that pods don't heap up there.
func (ImageLocality) PreScore(_ context.Context, s *framework.State, p *framework.PodInfo, nodes []*framework.NodeInfo) *framework.Status {
	snap, spread := s.Cluster(nodes), map[string]float64{}
	for _, name := range imageNames(p.Pod) {
		if holding := snap.NodesWith(name); holding > 0 {
			spread[name] = float64(holding) / float64(len(snap.Nodes))
		}
	}
	if len(spread) == 0 {
		return framework.NewStatus(framework.Skip)
	}
	s.Set(imagesKey{}, spread)
	return nil
}

// Score implements framework.Score.
func (ImageLocality) Score(_ context.Context, s *framework.State, p *framework.PodInfo, n *framework.NodeInfo) (int64, *framework.Status) {
	spread, _ := s.Get(imagesKey{}).(map[string]float64)
	var sum int64
	names := imageNames(p.Pod)
	for _, name := range names {
		sum += int64(float64(n.ImageSizes[name]) * spread[name])
	}
	top := maxImageBytesContainer * int64(len(names))
	sum = min(max(sum, minImageBytes), top)
	return framework.MaxScore * (sum - minImageBytes) / (top - minImageBytes), nil
}

func imageNames(p *corev1.Pod) []string {
	var names []string
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			names = append(names, normalImage(list[i].Image))
		}
	}
	for i := range p.Spec.Volumes {
		if v := p.Spec.Volumes[i].Image; v != nil {
			names = append(names, normalImage(v.Reference))
		}
	}
	return names
}

// normalImage adds the tag that a name without one means.
func normalImage(name string) string {
	for i := len(name) - 1; i >= 0 && name[i] != '/'; i-- {
		if name[i] == ':' || name[i] == '@' {
			return name
		}
	}
	return fmt.Sprintf("%s:latest", name)
}
