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
)

// maxItems is how many entries the API lets each of a pool's lists have.
const maxItems = 32

// partition is what a device is a part of: an attribute, and its value.
type partition struct{ attribute, value string }

// partitionOf says which attribute groups a device, and its value; "" where it has none that is a text. A slice may name
// the attribute; where no slice of the pool does, the request's counts. ok = false: no attribute concerns the device.
func (p *pool) partitionOf(s *resourcev1.ResourceSlice, d *resourcev1.Device, byDefault *string) (of partition, ok bool) {
	switch {
	case named(s):
		of.attribute = string(*s.Spec.PartitionTypeAttribute)
	case byDefault != nil && !slices.ContainsFunc(p.slices, named):
		of.attribute = *byDefault
	default:
		return of, false
	}
	value, found := d.Attributes[resourcev1.QualifiedName(of.attribute)]
	if bare, own := strings.CutPrefix(of.attribute, p.driver+"/"); !found && own { // the driver's domain may be left out
		value = d.Attributes[resourcev1.QualifiedName(bare)]
	}
	if value.StringValue != nil {
		of.value = *value.StringValue
	}
	return of, true
}

func named(s *resourcev1.ResourceSlice) bool {
	return s.Spec.PartitionTypeAttribute != nil && *s.Spec.PartitionTypeAttribute != ""
}

// partitions counts, by their kind, the devices that draw on counters of the pool, and how many more of each kind could be
// allocated if none of another one were. flaw is why that cannot be said.
func (p *pool) partitions(byDefault *string) (out []resourcev1alpha3.PartitionTypeStatus, flaw string) {
	groups, grouped, left := map[partition][]*resourcev1.Device{}, false, counters{}
	for _, s := range p.slices {
		left.add(s.Spec.SharedCounters)
	}
	for _, s := range p.slices {
		for i := range s.Spec.Devices {
			d := &s.Spec.Devices[i]
			of, ok := p.partitionOf(s, d, byDefault)
			grouped = grouped || ok
			if ok && len(d.ConsumesCounters) > 0 {
				groups[of] = append(groups[of], d)
			}
		}
	}
	if grouped && len(left) == 0 {
		return nil, fmt.Sprintf("PartitionTypeMissing: pool %s/%s declares partitionTypeAttribute but publishes no sharedCounters", p.driver, p.name)
	}
	kinds := slices.SortedFunc(maps.Keys(groups), func(a, b partition) int {
		return cmp.Or(cmp.Compare(a.attribute, b.attribute), cmp.Compare(a.value, b.value))
	})
	for _, of := range kinds {
		first := groups[of][0]
		if of.value == "" {
			return nil, fmt.Sprintf("PartitionTypeMissing: device %q in pool %s/%s does not carry partition type attribute %q",
				first.Name, p.driver, p.name, of.attribute)
		}
		if slices.ContainsFunc(groups[of], func(d *resourcev1.Device) bool { return !sameCost(first, d) }) {
			return nil, fmt.Sprintf("PartitionCostMismatch: devices of partition type %q in pool %s/%s consume different counters",
				of.value, p.driver, p.name)
		}
	}
	if len(kinds) > maxItems {
		return nil, fmt.Sprintf("PartitionSummaryOverCap: pool %s/%s has %d partition types, exceeding the maximum of %d",
			p.driver, p.name, len(kinds), maxItems)
	}
	p.eachUsed(left.take)
	for _, of := range kinds {
		total, more := int32(len(groups[of])), p.fit(groups[of], left) //nolint:gosec // a pool has some thousand devices
		out = append(out, resourcev1alpha3.PartitionTypeStatus{Attribute: of.attribute, Type: of.value, Total: &total, Allocatable: &more})
	}
	return out, ""
}

// eachUsed calls f for each device that is in use, once for all of its claims.
func (p *pool) eachUsed(f func(*resourcev1.Device)) {
	for _, s := range p.slices {
		for i := range s.Spec.Devices {
			if d := &s.Spec.Devices[i]; p.used[d.Name] {
				f(d)
			}
		}
	}
}

// fit is how many devices, of the same cost, can be taken beside those that are.
func (p *pool) fit(group []*resourcev1.Device, left counters) (n int32) {
	left = left.clone()
	for _, d := range group {
		if !p.used[d.Name] && left.fits(d) {
			left.take(d)
			n++
		}
	}
	return n
}

// shareable sums up the devices that several claims may have at once; nil where there are none.
func (p *pool) shareable() (out *resourcev1alpha3.ShareableSummaryStatus, flaw string) {
	var untouched, partly int32
	total := map[resourcev1.QualifiedName]resource.Quantity{}
	for _, s := range p.slices {
		for i := range s.Spec.Devices {
			d := &s.Spec.Devices[i]
			if d.AllowMultipleAllocations == nil || !*d.AllowMultipleAllocations {
				continue
			}
			if p.used[d.Name] {
				partly++
			} else {
				untouched++
			}
			for name := range d.Capacity {
				total[name] = sum(total[name], d.Capacity[name].Value)
			}
		}
	}
	if untouched+partly == 0 {
		return nil, ""
	}
	if len(total) > maxItems {
		return nil, fmt.Sprintf("ShareableSummaryOverCap: pool %s/%s has %d shareable capacity keys, exceeding the maximum of %d",
			p.driver, p.name, len(total), maxItems)
	}
	out = &resourcev1alpha3.ShareableSummaryStatus{FullyAvailableDevices: &untouched, PartiallyAvailableDevices: &partly}
	for _, name := range slices.Sorted(maps.Keys(total)) {
		all, consumed := total[name].DeepCopy(), p.consumed[name].DeepCopy()
		available := all.DeepCopy()
		if available.Sub(consumed); available.Sign() < 0 {
			available = *resource.NewQuantity(0, all.Format)
		}
		out.Capacity = append(out.Capacity, resourcev1alpha3.ShareableCapacityStatus{
			Name: string(name), Total: &all, Consumed: &consumed, Available: &available,
		})
	}
	return out, ""
}

// counters are what partitions of a pool draw on, by set and name.
type counters map[string]map[string]resource.Quantity

func (c counters) add(sets []resourcev1.CounterSet) {
	for i := range sets {
		set := c[sets[i].Name]
		if set == nil {
			set = map[string]resource.Quantity{}
			c[sets[i].Name] = set
		}
		for name, counter := range sets[i].Counters {
			set[name] = counter.Value.DeepCopy()
		}
	}
}

// fits says whether what a device draws is there.
func (c counters) fits(d *resourcev1.Device) bool {
	for i := range d.ConsumesCounters {
		set := c[d.ConsumesCounters[i].CounterSet]
		for name, counter := range d.ConsumesCounters[i].Counters {
			if have, ok := set[name]; !ok || have.Cmp(counter.Value) < 0 {
				return false
			}
		}
	}
	return true
}

// take what a device draws, of the counters that are there.
func (c counters) take(d *resourcev1.Device) {
	for i := range d.ConsumesCounters {
		set := c[d.ConsumesCounters[i].CounterSet]
		for name, counter := range d.ConsumesCounters[i].Counters {
			if have, ok := set[name]; ok {
				have.Sub(counter.Value)
				set[name] = have
			}
		}
	}
}

func (c counters) clone() counters {
	out := counters{}
	for set, all := range c {
		out[set] = map[string]resource.Quantity{}
		for name, q := range all {
			out[set][name] = q.DeepCopy()
		}
	}
	return out
}

// sameCost says whether two devices draw the same.
func sameCost(a, b *resourcev1.Device) bool {
	return maps.EqualFunc(cost(a), cost(b), func(x, y resource.Quantity) bool { return x.Cmp(y) == 0 })
}

func cost(d *resourcev1.Device) map[[2]string]resource.Quantity {
	out := map[[2]string]resource.Quantity{}
	for i := range d.ConsumesCounters {
		for name, counter := range d.ConsumesCounters[i].Counters {
			out[[2]string{d.ConsumesCounters[i].CounterSet, name}] = counter.Value
		}
	}
	return out
}
