// SPDX-License-Identifier: Apache-2.0

// Package dra is a node's side of dynamic resource allocation: drivers register by a socket
// (package pluginwatch), prepare the claims of a pod before its containers start, and take
// that back once they have ended. What a driver answers are CDI devices, which the runtime
// adds to the containers that name the claim.
//
// What is prepared, and for which pods, is in a file that is written before a driver is asked
// for anything: a kubelet that was killed at any moment takes back all that it has to.
// A driver that hangs, lies or is gone keeps up the pods that use it alone: each call
// has a deadline, and nothing is held while one is made.
package dra

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
)

// Config of a Node.
type Config struct {
	NodeName string
	// RootDir is the kubelet's: absolute.
	RootDir string
	Client  kubernetes.Interface
	Logger  *slog.Logger
	// Timeout of one call of a driver (45 s if zero, as upstream).
	Timeout time.Duration
	// WithTimeout bounds the calls (context.WithTimeout if nil).
	WithTimeout func(context.Context, time.Duration) (context.Context, context.CancelFunc)
	// Absence is how long a driver may be away until its slices are deleted (30 s if zero, as upstream).
	Absence time.Duration
}

// Node is the side of one node. It is a pluginwatch.Handler.
type Node struct {
	cfg     Config
	drivers drivers
	health  *wellbeing

	mu     sync.Mutex
	claims map[name]*prepared
	pods   map[types.UID]*corev1.Pod // that have been prepared since this process began
	saving sync.Mutex
}

type name struct{ Namespace, Name string }

// prepared is a claim that pods of the node use.
type prepared struct {
	Namespace, Name string
	UID             types.UID
	Pods            []types.UID
	// Drivers of its devices, with what each has answered.
	Drivers map[string][]device
	// Prepared: all of them have. Unpreparing: they were asked to take it back.
	Prepared, Unpreparing bool
}

// device is one that a driver has prepared.
type device struct {
	Pool, Device string
	Requests     []string // of the claim; none = all
	CDI          []string
}

// New makes a Node and reads what an earlier one has left; Run runs it.
func New(cfg Config) (*Node, error) {
	if cfg.NodeName == "" || cfg.Client == nil || !filepath.IsAbs(cfg.RootDir) {
		return nil, errors.New("dra: a node's name, a client and an absolute directory are needed")
	}
	cfg.Timeout, cfg.Absence = cmp.Or(cfg.Timeout, 45*time.Second), cmp.Or(cfg.Absence, 30*time.Second)
	if cfg.WithTimeout == nil {
		cfg.WithTimeout = context.WithTimeout
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	n := &Node{cfg: cfg, health: newWellbeing(), claims: map[name]*prepared{}, pods: map[types.UID]*corev1.Pod{}}
	n.drivers = drivers{cfg: cfg, by: map[string][]*driver{}, away: map[string]time.Time{}}
	return n, n.load()
}

// Run follows the health of devices, and deletes the slices of drivers that are not there, until ctx ends. Claims stay prepared then.
func (n *Node) Run(ctx context.Context) error { return n.watch(ctx) }

// namesOf are the claims that a pod uses, and whether each was made for it.
func namesOf(p *corev1.Pod) (map[string]bool, error) {
	out := map[string]bool{}
	for i := range p.Spec.ResourceClaims {
		claim, owned, err := resourceclaim.Name(p, &p.Spec.ResourceClaims[i])
		if err != nil {
			return nil, err
		}
		if claim != nil {
			out[*claim] = owned
		}
	}
	if s := p.Status.ExtendedResourceClaimStatus; s != nil {
		out[s.ResourceClaimName] = true
	}
	return out, nil
}

// failure to prepare or to take back, as the pod's events tell of it.
type failure struct {
	reason string
	err    error
}

// EventReason is upstream's reason.
func (f *failure) EventReason() string { return f.reason }
func (f *failure) Error() string       { return f.err.Error() }
func (f *failure) Unwrap() error       { return f.err }

// Prepare has the drivers of a pod's claims prepare them; idempotent.
func (n *Node) Prepare(ctx context.Context, p *corev1.Pod) error {
	names, err := namesOf(p)
	if err == nil && len(names) == 0 {
		return nil
	}
	if err == nil {
		n.mu.Lock()
		n.pods[p.UID] = p
		n.mu.Unlock()
		err = n.prepare(ctx, p, names)
	}
	if err != nil {
		return &failure{"FailedPrepareDynamicResources", fmt.Errorf("Failed to prepare dynamic resources: %w", err)} //nolint:staticcheck // upstream's words
	}
	return nil
}

func (n *Node) prepare(ctx context.Context, p *corev1.Pod, names map[string]bool) error {
	batches := map[string][]*prepared{}
	for _, claim := range slices.Sorted(maps.Keys(names)) {
		if n.has(name{p.Namespace, claim}, p.UID) {
			continue
		}
		c, err := n.allowed(ctx, p, claim, names[claim])
		if err != nil {
			return err
		}
		one, err := n.use(c, p.UID)
		if err != nil {
			return err
		}
		for _, driver := range n.driversOf(one) {
			batches[driver] = append(batches[driver], one)
		}
	}
	if len(batches) == 0 {
		return nil
	}
	if err := n.save(); err != nil {
		return err
	}
	for _, driver := range slices.Sorted(maps.Keys(batches)) {
		if err := n.prepareWith(ctx, driver, batches[driver]); err != nil {
			return err
		}
	}
	n.mu.Lock()
	for _, all := range batches {
		for _, c := range all {
			c.Prepared = true
		}
	}
	n.mu.Unlock()
	return n.save()
}

// driversOf a claim's devices.
func (n *Node) driversOf(c *prepared) []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Sorted(maps.Keys(c.Drivers))
}

// has says whether a claim is prepared for a pod.
func (n *Node) has(claim name, pod types.UID) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	c := n.claims[claim]
	return c != nil && c.Prepared && !c.Unpreparing && slices.Contains(c.Pods, pod)
}

// allowed reads a claim that the pod may use.
func (n *Node) allowed(ctx context.Context, p *corev1.Pod, claim string, owned bool) (*resourcev1.ResourceClaim, error) {
	c, err := n.cfg.Client.ResourceV1().ResourceClaims(p.Namespace).Get(ctx, claim, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("fetch ResourceClaim %s: %w", claim, err)
	}
	if owned {
		if err := resourceclaim.IsForPod(p, c, false); err != nil {
			return nil, err
		}
	}
	if !resourceclaim.IsReservedForPod(p, c, false) {
		return nil, fmt.Errorf("pod %s (%s) is not allowed to use ResourceClaim %s (%s)", p.Name, p.UID, claim, c.UID)
	}
	if c.Status.Allocation == nil {
		return nil, fmt.Errorf("ResourceClaim %s: not allocated", claim)
	}
	return c, nil
}

// use writes down that a pod uses a claim.
func (n *Node) use(c *resourcev1.ResourceClaim, pod types.UID) (*prepared, error) {
	wanted := map[string][]device{}
	for i := range c.Status.Allocation.Devices.Results {
		driver := c.Status.Allocation.Devices.Results[i].Driver
		if _, err := n.drivers.find(driver); err != nil {
			return nil, err
		}
		wanted[driver] = nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	known := n.claims[name{c.Namespace, c.Name}]
	switch {
	case known == nil:
		known = &prepared{Namespace: c.Namespace, Name: c.Name, UID: c.UID, Drivers: wanted}
		n.claims[name{c.Namespace, c.Name}] = known
	case known.UID != c.UID:
		return nil, fmt.Errorf("old ResourceClaim with same name %s and different UID %s still exists", c.Name, known.UID)
	case known.Unpreparing:
		return nil, fmt.Errorf("ResourceClaim %s is being unprepared", c.Name)
	}
	if !slices.Contains(known.Pods, pod) {
		known.Pods = append(known.Pods, pod)
	}
	return known, nil
}

// prepareWith has one driver prepare claims.
func (n *Node) prepareWith(ctx context.Context, name string, claims []*prepared) error {
	d, err := n.drivers.find(name)
	if err != nil {
		return err
	}
	answer, err := d.prepare(ctx, bound{n.cfg.Timeout, n.cfg.WithTimeout}, &drav1.NodePrepareResourcesRequest{Claims: asked(claims)})
	if err != nil {
		return fmt.Errorf("NodePrepareResources: %w", err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range claims {
		got, ok := answer.GetClaims()[string(c.UID)]
		switch {
		case !ok:
			return fmt.Errorf("NodePrepareResources: driver %s skipped ResourceClaim %s", name, c.Name)
		case got.GetError() != "":
			return fmt.Errorf("NodePrepareResources failed for ResourceClaim %s: %s", c.Name, got.GetError())
		}
		list := []device{}
		for _, d := range got.GetDevices() {
			list = append(list, device{d.GetPoolName(), d.GetDeviceName(), d.GetRequestNames(), d.GetCdiDeviceIds()})
		}
		c.Drivers[name] = list
	}
	return nil
}

func asked(claims []*prepared) (out []*drav1.Claim) {
	for _, c := range claims {
		out = append(out, &drav1.Claim{Namespace: c.Namespace, Uid: string(c.UID), Name: c.Name})
	}
	return out
}

// Unprepare has drivers take back what only this pod has used; idempotent, also for a pod of
// which only the UID is known.
func (n *Node) Unprepare(ctx context.Context, pod types.UID) error {
	if err := n.takeBack(ctx, pod); err != nil {
		return &failure{"FailedUnprepareDynamicResources", err}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.pods, pod)
	return nil
}

func (n *Node) takeBack(ctx context.Context, pod types.UID) error {
	last, changed := n.leave(pod)
	if changed {
		if err := n.save(); err != nil {
			return err
		}
	}
	var all []error
	for _, c := range last {
		if err := n.unprepare(ctx, c); err != nil {
			all = append(all, err)
			continue
		}
		n.mu.Lock()
		delete(n.claims, name{c.Namespace, c.Name})
		n.mu.Unlock()
	}
	if len(last) > 0 {
		all = append(all, n.save())
	}
	return errors.Join(all...)
}

// leave takes a pod off the claims that others use, too; the last ones are its alone.
func (n *Node) leave(pod types.UID) (last []*prepared, changed bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.claims {
		at := slices.Index(c.Pods, pod)
		switch {
		case at < 0:
		case len(c.Pods) > 1:
			c.Pods, changed = slices.Delete(c.Pods, at, at+1), true
		default:
			changed = changed || !c.Unpreparing
			c.Unpreparing = true
			last = append(last, c)
		}
	}
	return last, changed
}

func (n *Node) unprepare(ctx context.Context, c *prepared) error {
	for _, name := range n.driversOf(c) {
		d, err := n.drivers.find(name)
		if err != nil {
			return fmt.Errorf("take ResourceClaim %s back: %w", c.Name, err)
		}
		answer, err := d.unprepare(ctx, bound{n.cfg.Timeout, n.cfg.WithTimeout},
			&drav1.NodeUnprepareResourcesRequest{Claims: asked([]*prepared{c})})
		if err != nil {
			return fmt.Errorf("NodeUnprepareResources: %w", err)
		}
		got, ok := answer.GetClaims()[string(c.UID)]
		switch {
		case !ok:
			return fmt.Errorf("NodeUnprepareResources: driver %s skipped ResourceClaim %s", name, c.Name)
		case got.GetError() != "":
			return fmt.Errorf("NodeUnprepareResources failed for ResourceClaim %s: %s", c.Name, got.GetError())
		}
	}
	return nil
}

// Equip adds to a container's configuration the devices that it has by claims.
func (n *Node) Equip(pod types.UID, container string, cfg *cri.ContainerConfig) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.pods[pod]
	if p == nil {
		return nil // it has no claims
	}
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		if c.Name != container {
			continue
		}
		more, err := n.devices(p, &c)
		if err != nil {
			return err
		}
		cfg.CDIDevices = append(cfg.CDIDevices, more...)
	}
	return nil
}

// devices are the CDI devices of a container. The lock is held.
func (n *Node) devices(p *corev1.Pod, c *corev1.Container) ([]*cri.CDIDevice, error) {
	requests, err := requestsOf(p, c)
	if err != nil {
		return nil, err
	}
	var out []*cri.CDIDevice
	seen := map[string]bool{}
	for _, claim := range slices.Sorted(maps.Keys(requests)) {
		known := n.claims[name{p.Namespace, claim}]
		if known == nil || !known.Prepared || !slices.Contains(known.Pods, p.UID) {
			return nil, fmt.Errorf("ResourceClaim %s is not prepared for the pod", claim)
		}
		for _, driver := range slices.Sorted(maps.Keys(known.Drivers)) {
			for _, d := range known.Drivers[driver] {
				if !d.meant(requests[claim]) {
					continue
				}
				for _, id := range d.CDI {
					if !seen[id] {
						seen[id] = true
						out = append(out, &cri.CDIDevice{Name: id})
					}
				}
			}
		}
	}
	return out, nil
}

// meant says whether a device is for one of the requests; "" is all of them.
func (d *device) meant(requests []string) bool {
	return len(d.Requests) == 0 || slices.ContainsFunc(requests, func(r string) bool {
		return r == "" || slices.Contains(d.Requests, r) || slices.Contains(d.Requests, resourceclaim.BaseRequestRef(r))
	})
}

// requestsOf are the requests that a container names, by claim.
func requestsOf(p *corev1.Pod, c *corev1.Container) (map[string][]string, error) {
	out := map[string][]string{}
	for _, ref := range c.Resources.Claims {
		at := slices.IndexFunc(p.Spec.ResourceClaims, func(r corev1.PodResourceClaim) bool { return r.Name == ref.Name })
		if at < 0 {
			continue // validation lets none through
		}
		claim, _, err := resourceclaim.Name(p, &p.Spec.ResourceClaims[at])
		if err != nil {
			return nil, err
		}
		if claim != nil {
			out[*claim] = append(out[*claim], ref.Request)
		}
	}
	if s := p.Status.ExtendedResourceClaimStatus; s != nil {
		for _, m := range s.RequestMappings {
			if _, asks := c.Resources.Requests[corev1.ResourceName(m.ResourceName)]; asks && m.ContainerName == c.Name {
				out[s.ResourceClaimName] = append(out[s.ResourceClaimName], m.RequestName)
			}
		}
	}
	return out, nil
}
