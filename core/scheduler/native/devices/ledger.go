// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/informers"
	resourcelisters "k8s.io/client-go/listers/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
)

// Ledger is what is known of devices and of who has them: what the API shows, what was
// written and the API does not show yet, and what was decided and is not written yet. All
// profiles of a scheduler share one, and it outlives their plugins: otherwise two pods
// could be given one device. It is safe for concurrent use.
type Ledger struct {
	claims    resourcelisters.ResourceClaimLister
	classes   resourcelisters.DeviceClassLister
	slices    resourcelisters.ResourceSliceLister
	rules     resourcelisters.DeviceTaintRuleLister
	selectors *cel.Cache // compiled

	seed     maphash.Seed
	answers  *answers
	searches atomic.Int64 // how often devices were looked for on a node

	mu      sync.Mutex
	decided map[types.UID]decided
	written map[types.UID]written
	offers  *offers
}

// decided is an allocation that is not written yet.
type decided struct {
	claim *resourcev1.ResourceClaim // with its allocation
	// pods that wait for it to be written. Several only where they are of one group: those
	// are bound together, so that none could wait until another one is bound.
	pods  sets.Set[types.UID]
	group string
}

// written is a claim as the API answered, which the cache may not have yet.
type written struct {
	claim *resourcev1.ResourceClaim
	// created: the cache does not know the claim yet, so that its absence says nothing until then.
	created time.Time
}

// mostSelectors that are kept compiled, and longestUnseen is when a claim that was created and
// never came into the cache is taken for gone.
const (
	mostSelectors = 256
	longestUnseen = 2 * time.Minute
)

// NewLedger makes a ledger that reads from informers.
func NewLedger(inf informers.SharedInformerFactory) *Ledger {
	r := inf.Resource().V1()
	return &Ledger{
		claims: r.ResourceClaims().Lister(), classes: r.DeviceClasses().Lister(), slices: r.ResourceSlices().Lister(),
		rules:     r.DeviceTaintRules().Lister(),
		selectors: cel.NewCache(mostSelectors, cel.Features{EnableConsumableCapacity: true}),
		seed:      maphash.MakeSeed(), answers: newAnswers(),
		decided: map[types.UID]decided{}, written: map[types.UID]written{},
	}
}

// claim is the newest version that is known.
func (l *Ledger) claim(namespace, name string) (*resourcev1.ResourceClaim, error) {
	l.mu.Lock() // before the cache is read: what is dropped from written has to be in it
	defer l.mu.Unlock()
	cached, err := l.claims.ResourceClaims(namespace).Get(name)
	if err != nil {
		return nil, err
	}
	return l.newest(cached), nil
}

// newest is a claim of the cache, or what was written since.
func (l *Ledger) newest(cached *resourcev1.ResourceClaim) *resourcev1.ResourceClaim {
	w, ok := l.written[cached.UID]
	if !ok {
		return cached
	}
	if older(cached.ResourceVersion, w.claim.ResourceVersion) {
		return w.claim
	}
	delete(l.written, cached.UID)
	return cached
}

// older says whether the cache has not seen a write yet.
func older(cached, written string) bool {
	order, err := resourceversion.CompareResourceVersion(cached, written)
	return err == nil && order < 0
}

// wrote is told of a claim that the API has answered with; created, where it was a new one.
func (l *Ledger) wrote(c *resourcev1.ResourceClaim, created time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if created.IsZero() {
		created = l.written[c.UID].created
	}
	l.written[c.UID] = written{c, created}
}

// all are all claims, each in the newest version that is known. The lock is held, as in claim.
func (l *Ledger) all(now time.Time) []*resourcev1.ResourceClaim {
	cached, err := l.claims.List(labels.Everything())
	if err != nil { // an informer's lister has no errors
		return nil
	}
	if len(l.written) == 0 {
		return cached
	}
	out, seen := make([]*resourcev1.ResourceClaim, 0, len(cached)), map[types.UID]bool{}
	for _, c := range cached {
		if _, ok := l.written[c.UID]; ok {
			seen[c.UID] = true
		}
		out = append(out, l.newest(c))
	}
	for uid, w := range l.written {
		switch {
		case seen[uid]:
		case w.created.IsZero() || now.Sub(w.created) > longestUnseen:
			delete(l.written, uid) // the claim was deleted
		default:
			out = append(out, w.claim)
		}
	}
	return out
}

// pending is what was decided of a claim and is not written yet; shared says that a pod of
// the group may use it all the same.
func (l *Ledger) pending(claim types.UID, group string) (allocation *resourcev1.AllocationResult, shared bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	d, ok := l.decided[claim]
	if !ok {
		return nil, false
	}
	return d.claim.Status.Allocation, group != "" && d.group == group
}

// decide keeps an allocation for a pod until it is written or given up.
func (l *Ledger) decide(c *resourcev1.ResourceClaim, pod types.UID, group string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if d, ok := l.decided[c.UID]; ok {
		if d.claim.Status.Allocation != c.Status.Allocation {
			return fmt.Errorf("resource claim %s/%s is in the process of being allocated", c.Namespace, c.Name)
		}
		d.pods.Insert(pod)
		return nil
	}
	l.decided[c.UID] = decided{c, sets.New(pod), group}
	return nil
}

// done ends that an allocation is only decided: it is written.
func (l *Ledger) done(claim types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.decided, claim)
}

// giveUp what was decided for a pod, unless others need it.
func (l *Ledger) giveUp(pod types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.decided, func(_ types.UID, d decided) bool {
		d.pods.Delete(pod)
		return len(d.pods) == 0
	})
}

// allocated is which devices are taken, and how much of those that are shared.
func (l *Ledger) allocated(now time.Time) *taken {
	t := newTaken(l.seed)
	l.mu.Lock()
	defer l.mu.Unlock()
	open := maps.Clone(l.decided)
	for _, c := range l.all(now) {
		if c.Status.Allocation != nil {
			t.add(c.Status.Allocation)
			delete(open, c.UID) // written a moment ago: what is shared must not count twice
		}
	}
	for _, d := range open {
		t.add(d.claim.Status.Allocation)
	}
	return t
}

// Get implements structured.DeviceClassLister.
func (l *Ledger) Get(name string) (*resourcev1.DeviceClass, error) { return l.classes.Get(name) }

// List implements structured.DeviceClassLister.
func (l *Ledger) List() ([]*resourcev1.DeviceClass, error) {
	return l.classes.List(labels.Everything())
}

// ClassOf is the name of the device class that gives an extended resource; "" = none does. Of
// several the youngest does, so that one can take the place of another.
func (l *Ledger) ClassOf(resource corev1.ResourceName) string {
	if name, ok := strings.CutPrefix(string(resource), resourcev1.ResourceDeviceClassPrefix); ok {
		if _, err := l.classes.Get(name); err != nil {
			return ""
		}
		return name
	}
	if !strings.Contains(string(resource), "/") {
		return ""
	}
	all, err := l.List()
	if err != nil { // an informer's lister has no errors
		return ""
	}
	var found *resourcev1.DeviceClass
	for _, c := range all {
		if c.Spec.ExtendedResourceName == nil || *c.Spec.ExtendedResourceName != string(resource) {
			continue
		}
		if found == nil || found.CreationTimestamp.Before(&c.CreationTimestamp) ||
			found.CreationTimestamp.Equal(&c.CreationTimestamp) && c.Name < found.Name {
			found = c
		}
	}
	if found == nil {
		return ""
	}
	return found.Name
}

// extended are the extended resources of a pod that device classes give.
func (l *Ledger) extended(requests map[corev1.ResourceName]int64) []corev1.ResourceName {
	var out []corev1.ResourceName
	for name, amount := range requests {
		if amount > 0 && l.ClassOf(name) != "" {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// named are the claims that a pod names, or that were made for it, in the order of its
// spec. Those that were intentionally not made are left out.
func (l *Ledger) named(p *corev1.Pod) ([]*resourcev1.ResourceClaim, error) {
	var out []*resourcev1.ResourceClaim
	for i := range p.Spec.ResourceClaims {
		name, owned, err := resourceclaim.Name(p, &p.Spec.ResourceClaims[i])
		if err != nil {
			return nil, err
		}
		if name == nil {
			continue
		}
		c, err := l.claim(p.Namespace, *name)
		switch {
		case apierrors.IsNotFound(err):
			return nil, fmt.Errorf("could not find ResourceClaim %q", p.Namespace+"/"+*name)
		case err != nil:
			return nil, err
		case c.DeletionTimestamp != nil:
			return nil, fmt.Errorf("resourceclaim %q is being deleted", c.Name)
		}
		if owned {
			if err := resourceclaim.IsForPod(p, c, false); err != nil {
				return nil, err
			}
		}
		out = append(out, c)
	}
	return out, nil
}
