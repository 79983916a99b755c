// SPDX-License-Identifier: Apache-2.0

// Package devices is the scheduler's plugin for dynamic resource allocation: it gives the
// claims of a pod devices that can be used on one node, and binds the pod there.
//
// What devices there are ResourceSlices say; which of them a claim asks for its requests,
// device classes and constraints say, and the published allocator
// (k8s.io/dynamic-resource-allocation/structured) chooses among them. What was chosen is
// kept in a Ledger until the API shows it, so that two pods never get one device. Nothing
// is written before a node is chosen.
package devices

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

// Bounds: how long devices are looked for in one try, on all nodes together (upstream has as much for each
// node, while all other pods wait), and upstream's for how long a pod waits for its devices to be attached.
const (
	longestFilter  = 10 * time.Second
	defaultTimeout = 10 * time.Minute
)

// features are those that upstream has on by default.
var features = structured.Features{
	AdminAccess: true, PrioritizedList: true, PartitionableDevices: true, DeviceTaints: true, DeviceBindingAndStatus: true,
	ConsumableCapacity: true, FractionalCapacityRange: true,
}

// Plugin is upstream's DynamicResources.
type Plugin struct {
	ledger  *Ledger
	client  kubernetes.Interface
	timeout time.Duration
	longest time.Duration // of the look for devices in one try
}

// Settings of the plugin; zero values are upstream's.
type Settings struct {
	// Timeout (10 min) is how long a pod waits for its devices to be attached.
	Timeout time.Duration
	// Search (10 s) is how long devices are looked for in one try, on all nodes together.
	Search time.Duration
}

// New makes the plugin. Without a client, for a simulation, what was decided stays decided.
func New(client kubernetes.Interface, ledger *Ledger, with Settings) *Plugin {
	return &Plugin{ledger, client, cmp.Or(with.Timeout, defaultTimeout), cmp.Or(with.Search, longestFilter)}
}

// Name implements framework.Plugin.
func (*Plugin) Name() string { return "DynamicResources" }

// Hints implements framework.Hints.
func (*Plugin) Hints() framework.ClusterEvent {
	return framework.DevicesChanged | framework.DeviceClassChanged | framework.Unreserved |
		framework.NodeAdded | framework.NodeLabelsChanged | framework.NodeAllocatableGrew
}

// Helped implements framework.Attentive: of claims, those of the pod help it, and those of
// others that let go of their devices.
func (d *Plugin) Helped(p *framework.PodInfo, old, now runtime.Object) bool {
	was, _ := old.(*resourcev1.ResourceClaim)
	is, _ := now.(*resourcev1.ResourceClaim)
	switch {
	case was == nil && is == nil: // a slice, a class, a rule
		return now != nil || isRule(old)
	case was != nil && was.Status.Allocation != nil && (is == nil || is.Status.Allocation == nil):
		return true
	case is == nil || !uses(p.Pod, is):
		return false
	}
	return was == nil || was.UID != is.UID || !equality.Semantic.DeepEqual(&was.Status, &is.Status)
}

func isRule(o runtime.Object) bool {
	_, ok := o.(*resourcev1.DeviceTaintRule)
	return ok
}

// uses says whether a pod refers to a claim.
func uses(p *corev1.Pod, c *resourcev1.ResourceClaim) bool {
	if p.Namespace != c.Namespace {
		return false
	}
	for i := range p.Spec.ResourceClaims {
		if name, _, err := resourceclaim.Name(p, &p.Spec.ResourceClaims[i]); err == nil && name != nil && *name == c.Name {
			return true
		}
	}
	return false
}

// Sign implements framework.Signed: claims are as many cases as there are pods.
func (d *Plugin) Sign(p *framework.PodInfo, _ *framework.Signature) bool {
	return len(p.Pod.Spec.ResourceClaims) == 0 && len(d.ledger.extended(p.Requests.Scalar)) == 0
}

// PreEnqueue implements framework.PreEnqueue: a pod whose claims are not there is not tried.
func (d *Plugin) PreEnqueue(_ context.Context, p *framework.PodInfo) *framework.Status {
	if len(p.Pod.Spec.ResourceClaims) == 0 {
		return nil
	}
	if _, err := d.ledger.named(p.Pod); err != nil {
		return unresolvable("%s", err)
	}
	return nil
}

func unresolvable(format string, args ...any) *framework.Status {
	return framework.NewStatus(framework.Unresolvable, fmt.Sprintf(format, args...))
}

type cycleKey struct{}

// cycle is what the plugin knows of a pod in one try. The claims and the allocator are
// those of PreFilter; what Filter finds is guarded by mu.
type cycle struct {
	claims    []*wanted
	resources []corev1.ResourceName // extended ones that classes may give
	offers    *offers               // nil = all claims have their devices
	taken     *taken
	allocator func() (structured.Allocator, error)
	until     time.Time // when the look for devices ends
	group     string

	mu          sync.Mutex
	asked       map[string]*asked // by the extended resources that a node does not have by a device plugin
	unavailable map[*wanted]bool  // have devices that cannot be used on a node
	nodes       map[string]*found
	free        *wanted // PostFilter has it let go of its devices
}

// wanted is a claim of the pod.
type wanted struct {
	claim *resourcev1.ResourceClaim
	// nodes on which what it has can be used; nil = on all.
	nodes *nodeaffinity.NodeSelector
	// pending is an allocation that was decided for another pod of the group.
	pending *resourcev1.AllocationResult
	// extended: the claim for the pod's extended resources. It exists once a node is chosen.
	extended bool
	decided  *resourcev1.AllocationResult // by Reserve, for PreBind to write
}

// found is what the pod gets on a node: an allocation for each claim that has none.
type found struct {
	allocations map[*wanted]*resourcev1.AllocationResult
	extended    *resourcev1.ResourceClaim
	mappings    []corev1.ContainerExtendedResourceRequest
}

func cycleOf(s *framework.State) *cycle {
	c, _ := s.Get(cycleKey{}).(*cycle)
	return c
}

// PreFilter implements framework.PreFilter: it finds the pod's claims, and which devices are free.
func (d *Plugin) PreFilter(ctx context.Context, s *framework.State, p *framework.PodInfo,
	_ *framework.Snapshot,
) (map[string]bool, *framework.Status) {
	c := &cycle{
		nodes: map[string]*found{}, unavailable: map[*wanted]bool{}, asked: map[string]*asked{}, group: groupOf(p.Pod),
		resources: d.ledger.extended(p.Requests.Scalar),
	}
	if len(p.Pod.Spec.ResourceClaims) == 0 && len(c.resources) == 0 {
		return nil, framework.NewStatus(framework.Skip)
	}
	if st := d.gather(c, p.Pod, s.Now()); st != nil {
		return nil, st
	}
	if len(c.claims) == 0 {
		return nil, framework.NewStatus(framework.Skip)
	}
	s.Set(cycleKey{}, c)
	if !slices.ContainsFunc(c.claims, (*wanted).open) {
		return nil, nil
	}
	offered, err := d.ledger.offered()
	if err != nil {
		return nil, framework.AsStatus(err)
	}
	c.until, c.offers, c.taken = time.Now().Add(d.longest), offered, d.ledger.allocated(s.Now())
	ctx = context.WithoutCancel(ctx) // each look has a context of its own
	c.allocator = sync.OnceValues(func() (structured.Allocator, error) {
		return structured.NewAllocator(ctx, features, c.taken.AllocatedState, d.ledger, c.offers.slices, d.ledger.selectors)
	})
	return nil, nil
}

func groupOf(p *corev1.Pod) string {
	if g := p.Spec.SchedulingGroup; g != nil && g.PodGroupName != nil {
		return p.Namespace + "/" + *g.PodGroupName
	}
	return ""
}

// open says whether devices have to be found for it.
func (w *wanted) open() bool { return w.claim.Status.Allocation == nil && w.pending == nil }

// gather fills in the claims of a pod.
func (d *Plugin) gather(c *cycle, p *corev1.Pod, now time.Time) *framework.Status {
	named, err := d.ledger.named(p)
	if err != nil {
		return unresolvable("%s", err)
	}
	for _, claim := range named {
		w := &wanted{claim: claim}
		if st := d.look(w, c.group); st != nil {
			return st
		}
		c.claims = append(c.claims, w)
	}
	if len(c.resources) > 0 {
		w := &wanted{claim: d.ledger.forResources(p, now), extended: true}
		if err := w.reach(w.claim.Status.Allocation); err != nil {
			return framework.AsStatus(err)
		}
		c.claims = append(c.claims, w)
	}
	return nil
}

// look at a claim: where can what it has be used, or is there what it asks for at all.
func (d *Plugin) look(w *wanted, group string) *framework.Status {
	if w.claim.Status.Allocation != nil {
		return framework.AsStatus(w.reach(w.claim.Status.Allocation))
	}
	if allocation, shared := d.ledger.pending(w.claim.UID, group); allocation != nil {
		if !shared {
			return unresolvable("resource claim %s/%s is in the process of being allocated", w.claim.Namespace, w.claim.Name)
		}
		w.pending = allocation
		return framework.AsStatus(w.reach(allocation))
	}
	for i := range w.claim.Spec.Devices.Requests {
		if st := d.classesOf(w.claim, &w.claim.Spec.Devices.Requests[i]); st != nil {
			return st
		}
	}
	return nil
}

// reach fills in on which nodes an allocation can be used.
func (w *wanted) reach(a *resourcev1.AllocationResult) (err error) {
	if a != nil && a.NodeSelector != nil {
		w.nodes, err = nodeaffinity.NewNodeSelector(a.NodeSelector)
	}
	return err
}

// classesOf refuses a request whose device classes are not there: no node can help.
func (d *Plugin) classesOf(c *resourcev1.ResourceClaim, r *resourcev1.DeviceRequest) *framework.Status {
	switch {
	case r.Exactly != nil:
		return d.class(r.Exactly.DeviceClassName, r.Name)
	case len(r.FirstAvailable) > 0:
		for i := range r.FirstAvailable {
			sub := &r.FirstAvailable[i]
			if st := d.class(sub.DeviceClassName, r.Name+"/"+sub.Name); st != nil {
				return st
			}
		}
		return nil
	}
	return unresolvable("resource claim %s/%s, request %s: unknown request type", c.Namespace, c.Name, r.Name)
}

func (d *Plugin) class(name, request string) *framework.Status {
	if name == "" {
		return framework.AsStatus(fmt.Errorf("request %s: unsupported request type", request))
	}
	if _, err := d.ledger.Get(name); apierrors.IsNotFound(err) {
		return unresolvable("request %s: device class %s does not exist", request, name)
	}
	return nil
}
