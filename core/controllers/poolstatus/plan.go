// SPDX-License-Identifier: Apache-2.0

package poolstatus

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	resourcev1alpha3 "k8s.io/api/resource/v1alpha3"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/wasmplane/wasmplane/core/devicetaint"
)

// maxError is how many bytes the API lets a pool's error have.
const maxError = 256

// answer is what the pools of a driver are like.
type answer struct {
	pools []resourcev1alpha3.PoolStatus
	count int32 // of pools that the request is about, with those beyond its limit
	// incomplete: of one of the pools not all slices are there.
	incomplete bool
}

// pool is what slices and claims say about one pool.
type pool struct {
	driver, name string
	slices       []*resourcev1.ResourceSlice // of the newest generation
	used         map[string]bool             // devices that claims have, observers not counted
	consumed     map[resourcev1.QualifiedName]resource.Quantity
}

// look at the pools that a request is about. Offers are slices of its driver.
func look(spec *resourcev1alpha3.ResourcePoolStatusRequestSpec, offers []*resourcev1.ResourceSlice, claims []*resourcev1.ResourceClaim,
	rules []*resourcev1.DeviceTaintRule,
) (a answer) {
	found := map[string]*pool{}
	for _, s := range offers {
		if s.Spec.Driver != spec.Driver || (spec.PoolName != nil && *spec.PoolName != s.Spec.Pool.Name) {
			continue
		}
		p := found[s.Spec.Pool.Name]
		if p == nil {
			p = &pool{
				driver: spec.Driver, name: s.Spec.Pool.Name, used: map[string]bool{}, consumed: map[resourcev1.QualifiedName]resource.Quantity{},
			}
			found[p.name] = p
		}
		p.offer(s)
	}
	a.count = int32(min(len(found), 1<<31-1)) //nolint:gosec // bounded
	limit := resourcev1alpha3.ResourcePoolStatusRequestLimitDefault
	if spec.Limit != nil {
		limit = *spec.Limit
	}
	for _, c := range claims {
		use(found, spec.Driver, c)
	}
	names := slices.Sorted(maps.Keys(found))
	for _, name := range names[:min(len(names), int(limit))] {
		status, whole := found[name].status(spec.DefaultPartitionTypeAttribute, rules)
		a.pools = append(a.pools, status)
		a.incomplete = a.incomplete || !whole
	}
	return a
}

// offer adds a slice, if no newer generation is known.
func (p *pool) offer(s *resourcev1.ResourceSlice) {
	if len(p.slices) > 0 {
		switch newest := p.slices[0].Spec.Pool.Generation; {
		case s.Spec.Pool.Generation < newest:
			return
		case s.Spec.Pool.Generation > newest:
			p.slices = nil
		}
	}
	p.slices = append(p.slices, s)
}

// use takes note of the devices that a claim has. Those of administrators observe, and take nothing from others.
func use(found map[string]*pool, driver string, c *resourcev1.ResourceClaim) {
	if c.Status.Allocation == nil {
		return
	}
	for i := range c.Status.Allocation.Devices.Results {
		r := &c.Status.Allocation.Devices.Results[i]
		p := found[r.Pool]
		if r.Driver != driver || p == nil || (r.AdminAccess != nil && *r.AdminAccess) {
			continue
		}
		p.used[r.Device] = true
		for name, amount := range r.ConsumedCapacity {
			p.consumed[name] = sum(p.consumed[name], amount)
		}
	}
}

// status of a pool; whole: all its slices are there.
func (p *pool) status(byDefault *string, rules []*resourcev1.DeviceTaintRule) (s resourcev1alpha3.PoolStatus, whole bool) {
	slices.SortFunc(p.slices, func(a, b *resourcev1.ResourceSlice) int { return cmp.Compare(a.Name, b.Name) })
	of := p.slices[0].Spec.Pool
	s = resourcev1alpha3.PoolStatus{Driver: p.driver, PoolName: p.name, Generation: of.Generation}
	if node := p.slices[0].Spec.NodeName; node != nil && *node != "" && !slices.ContainsFunc(p.slices, func(s *resourcev1.ResourceSlice) bool {
		return s.Spec.NodeName == nil || *s.Spec.NodeName != *node
	}) {
		s.NodeName = new(*node)
	}
	expected := int64(0) // slices may disagree while a driver changes its mind
	for _, slice := range p.slices {
		expected = max(expected, slice.Spec.Pool.ResourceSliceCount)
	}
	if have := int64(len(p.slices)); have < expected {
		s.ValidationError = new(short(fmt.Sprintf("PoolIncomplete: pool %s/%s is incomplete: observed %d/%d slices at generation %d",
			p.driver, p.name, have, expected, of.Generation), maxError))
		return s, false
	}
	var total, allocated, unavailable int32
	for _, slice := range p.slices {
		for i := range slice.Spec.Devices {
			total++
			switch d := &slice.Spec.Devices[i]; {
			case p.used[d.Name]:
				allocated++
			case p.tainted(d, rules):
				unavailable++
			}
		}
	}
	s.ResourceSliceCount = new(int32(len(p.slices))) //nolint:gosec // no cluster has 2^31 slices
	s.TotalDevices, s.AllocatedDevices, s.UnavailableDevices = &total, &allocated, &unavailable
	s.AvailableDevices = new(total - allocated - unavailable)
	var flaw, other string
	s.PartitionSummary, flaw = p.partitions(byDefault)
	s.ShareableSummary, other = p.shareable()
	if flaw = cmp.Or(flaw, other); flaw != "" { // the counts hold nevertheless
		s.PartitionSummary, s.ValidationError = nil, new(short(flaw, maxError))
	}
	return s, true
}

// tainted: claims do not get the device unless they tolerate it.
func (p *pool) tainted(d *resourcev1.Device, rules []*resourcev1.DeviceTaintRule) bool {
	keepsOff := func(t resourcev1.DeviceTaint) bool {
		return t.Effect == resourcev1.DeviceTaintEffectNoSchedule || t.Effect == resourcev1.DeviceTaintEffectNoExecute
	}
	return slices.ContainsFunc(d.Taints, keepsOff) || slices.ContainsFunc(rules, func(r *resourcev1.DeviceTaintRule) bool {
		return keepsOff(r.Spec.Taint) && devicetaint.Selects(r.Spec.DeviceSelector, p.driver, p.name, d.Name)
	})
}

// short cuts a text at a number of bytes, between two characters.
func short(text string, size int) string {
	if len(text) <= size {
		return text
	}
	return strings.ToValidUTF8(text[:size], "")
}

// sum shares nothing with what it is made of: a Quantity of a cached object may hold a number that Add changes.
func sum(a, b resource.Quantity) resource.Quantity {
	out := a.DeepCopy()
	out.Add(b)
	return out
}
