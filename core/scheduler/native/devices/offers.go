// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"fmt"
	"hash/maphash"
	"slices"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/wasmplane/wasmplane/core/devicetaint"
)

// pool is one of a driver's.
type pool struct{ driver, name string }

// offers are the devices that there are. They are made anew when a slice or a rule changes, and told apart by their
// address.
type offers struct {
	read  map[*resourcev1.ResourceSlice]bool
	rules []*resourcev1.DeviceTaintRule

	slices []*resourcev1.ResourceSlice // with the taints that rules add to their devices
	onNode map[string][]pool           // those of one node alone
	shared []pool
}

// offered are the devices that there are now.
func (l *Ledger) offered() (*offers, error) {
	all, err := l.slices.List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("list resource slices: %w", err)
	}
	rules, err := l.rules.List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("list device taint rules: %w", err)
	}
	slices.SortFunc(rules, func(a, b *resourcev1.DeviceTaintRule) int { return strings.Compare(a.Name, b.Name) })
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.offers == nil || !l.offers.are(all, rules) {
		l.offers = newOffers(all, rules)
	}
	return l.offers, nil
}

// are says whether these are the slices and rules that the offers come from: informers replace an object that changes.
func (o *offers) are(all []*resourcev1.ResourceSlice, rules []*resourcev1.DeviceTaintRule) bool {
	return len(all) == len(o.read) && slices.Equal(rules, o.rules) &&
		!slices.ContainsFunc(all, func(s *resourcev1.ResourceSlice) bool { return !o.read[s] })
}

func newOffers(all []*resourcev1.ResourceSlice, rules []*resourcev1.DeviceTaintRule) *offers {
	o := &offers{
		read: make(map[*resourcev1.ResourceSlice]bool, len(all)), rules: rules,
		slices: make([]*resourcev1.ResourceSlice, len(all)), onNode: map[string][]pool{},
	}
	// In one order, so that the same cluster gives the same devices.
	slices.SortFunc(all, func(a, b *resourcev1.ResourceSlice) int { return strings.Compare(a.Name, b.Name) })
	shared := sets.New[pool]()
	for i, s := range all {
		o.read[s], o.slices[i] = true, devicetaint.Tainted(s, rules)
		p := pool{s.Spec.Driver, s.Spec.Pool.Name}
		switch {
		case s.Spec.NodeName == nil || *s.Spec.NodeName == "":
			shared.Insert(p)
		case !slices.Contains(o.onNode[*s.Spec.NodeName], p):
			o.onNode[*s.Spec.NodeName] = append(o.onNode[*s.Spec.NodeName], p)
		}
	}
	o.shared = shared.UnsortedList()
	return o
}

// taken is which devices are, and how much of those that are shared.
type taken struct {
	structured.AllocatedState

	seed  maphash.Seed
	pools map[pool]uint64 // a sum of what is taken of each
}

func newTaken(seed maphash.Seed) *taken {
	return &taken{
		AllocatedState: structured.AllocatedState{
			AllocatedDevices:         sets.New[structured.DeviceID](),
			AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
			AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
		},
		seed: seed, pools: map[pool]uint64{},
	}
}

func (t *taken) add(a *resourcev1.AllocationResult) {
	for i := range a.Devices.Results {
		r := &a.Devices.Results[i]
		if r.AdminAccess != nil && *r.AdminAccess {
			continue // who looks after devices takes none
		}
		t.pools[pool{r.Driver, r.Pool}] += t.sum(r)
		device := structured.MakeDeviceID(r.Driver, r.Pool, r.Device)
		if r.ShareID == nil {
			t.AllocatedDevices.Insert(device)
			continue
		}
		t.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(device, r.ShareID))
		if r.ConsumedCapacity != nil {
			t.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(device, r.ConsumedCapacity))
		}
	}
}

// sum stands for one result. Those of a pool are added up, in any order.
func (t *taken) sum(r *resourcev1.DeviceRequestAllocationResult) uint64 {
	type share struct{ driver, pool, device, id string }
	type capacity struct {
		share

		name, amount string
	}
	one := share{driver: r.Driver, pool: r.Pool, device: r.Device}
	if r.ShareID != nil {
		one.id = string(*r.ShareID)
	}
	sum := maphash.Comparable(t.seed, one)
	for name, amount := range r.ConsumedCapacity {
		sum += maphash.Comparable(t.seed, capacity{one, string(name), amount.String()})
	}
	return sum
}

// on stands for what is taken of all that a node can use.
func (t *taken) on(o *offers, node string) (sum uint64) {
	for _, p := range o.onNode[node] {
		sum += t.pools[p]
	}
	for _, p := range o.shared {
		sum += t.pools[p]
	}
	return sum
}
