// SPDX-License-Identifier: Apache-2.0

package poolstatus

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	resourcev1 "k8s.io/api/resource/v1"
	resourcev1alpha3 "k8s.io/api/resource/v1alpha3"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

const driver = "gpu.example.com"

// slice of a pool; count is how many the pool has.
func slice(name, pool string, generation, count int64, devices ...resourcev1.Device) *resourcev1.ResourceSlice {
	return &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourcev1.ResourceSliceSpec{
		Driver: driver, Pool: resourcev1.ResourcePool{Name: pool, Generation: generation, ResourceSliceCount: count}, Devices: devices,
	}}
}

func plain(names ...string) (out []resourcev1.Device) {
	for _, n := range names {
		out = append(out, resourcev1.Device{Name: n})
	}
	return out
}

func tainted(name string, effect resourcev1.DeviceTaintEffect) resourcev1.Device {
	return resourcev1.Device{Name: name, Taints: []resourcev1.DeviceTaint{{Key: "broken", Effect: effect}}}
}

// claim of devices of a pool.
func claim(name, pool string, devices ...string) *resourcev1.ResourceClaim {
	c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	c.Status.Allocation = &resourcev1.AllocationResult{}
	for _, d := range devices {
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results,
			resourcev1.DeviceRequestAllocationResult{Driver: driver, Pool: pool, Device: d})
	}
	return c
}

func spec(change ...func(*resourcev1alpha3.ResourcePoolStatusRequestSpec)) *resourcev1alpha3.ResourcePoolStatusRequestSpec {
	s := &resourcev1alpha3.ResourcePoolStatusRequestSpec{Driver: driver}
	for _, f := range change {
		f(s)
	}
	return s
}

// told is a pool in a line: total, allocated, unavailable, available; node; error.
func told(s *resourcev1alpha3.PoolStatus) string {
	text := fmt.Sprintf("%s@%d", s.PoolName, s.Generation)
	if s.TotalDevices != nil {
		text += fmt.Sprintf(" %d=%d+%d+%d", *s.TotalDevices, *s.AllocatedDevices, *s.UnavailableDevices, *s.AvailableDevices)
	}
	if s.NodeName != nil {
		text += " on " + *s.NodeName
	}
	if s.ValidationError != nil {
		text += " " + *s.ValidationError
	}
	return text
}

func on(node string, s *resourcev1.ResourceSlice) *resourcev1.ResourceSlice {
	s.Spec.NodeName = &node
	return s
}

// TestPoolsAreCounted goes through what slices, claims and rules can say.
func TestPoolsAreCounted(t *testing.T) {
	observer := claim("observer", "a", "0")
	observer.Status.Allocation.Devices.Results[0].AdminAccess = new(true)
	foreign := slice("foreign", "a", 9, 1, plain("0")...)
	foreign.Spec.Driver = "other.example.com"
	everywhere := claim("elsewhere", "a", "0")
	everywhere.Status.Allocation.Devices.Results[0].Driver = "other.example.com"
	rule := &resourcev1.DeviceTaintRule{Spec: resourcev1.DeviceTaintRuleSpec{
		DeviceSelector: &resourcev1.DeviceTaintSelector{Driver: new(driver), Device: new("0")},
		Taint:          resourcev1.DeviceTaint{Key: "broken", Effect: resourcev1.DeviceTaintEffectNoSchedule},
	}}
	harmless := rule.DeepCopy()
	harmless.Spec.Taint.Effect = resourcev1.DeviceTaintEffectNone
	three := slice("s", "a", 1, 1, plain("0", "1", "2")...)
	for what, c := range map[string]struct {
		spec   *resourcev1alpha3.ResourcePoolStatusRequestSpec
		slices []*resourcev1.ResourceSlice
		claims []*resourcev1.ResourceClaim
		rules  []*resourcev1.DeviceTaintRule
		want   []string
		count  int32
		waits  bool
	}{
		"nothing": {},
		"free":    {slices: []*resourcev1.ResourceSlice{three}, want: []string{"a@1 3=0+0+3"}, count: 1},
		"one device of several claims, once": {
			slices: []*resourcev1.ResourceSlice{three}, claims: []*resourcev1.ResourceClaim{claim("x", "a", "0", "1"), claim("y", "a", "0")},
			want: []string{"a@1 3=2+0+1"}, count: 1,
		},
		"who only observes": {
			slices: []*resourcev1.ResourceSlice{three}, claims: []*resourcev1.ResourceClaim{observer, everywhere, {}},
			want: []string{"a@1 3=0+0+3"}, count: 1,
		},
		"taints of drivers": {
			slices: []*resourcev1.ResourceSlice{slice("s", "a", 1, 1, tainted("0", resourcev1.DeviceTaintEffectNoExecute),
				tainted("1", resourcev1.DeviceTaintEffectNoSchedule), tainted("2", resourcev1.DeviceTaintEffectNone))},
			want: []string{"a@1 3=0+2+1"}, count: 1,
		},
		"a tainted device that is allocated is not counted twice": {
			slices: []*resourcev1.ResourceSlice{slice("s", "a", 1, 1, tainted("0", resourcev1.DeviceTaintEffectNoExecute), plain("1")[0])},
			claims: []*resourcev1.ResourceClaim{claim("x", "a", "0")}, want: []string{"a@1 2=1+0+1"}, count: 1,
		},
		"a claim of a device that is gone": {
			slices: []*resourcev1.ResourceSlice{three}, claims: []*resourcev1.ResourceClaim{claim("x", "a", "gone")},
			want: []string{"a@1 3=0+0+3"}, count: 1,
		},
		"a rule": {
			slices: []*resourcev1.ResourceSlice{three}, rules: []*resourcev1.DeviceTaintRule{rule}, want: []string{"a@1 3=0+1+2"}, count: 1,
		},
		"a rule that tries": {
			slices: []*resourcev1.ResourceSlice{three}, rules: []*resourcev1.DeviceTaintRule{harmless}, want: []string{"a@1 3=0+0+3"}, count: 1,
		},
		"older generations and other drivers": {
			slices: []*resourcev1.ResourceSlice{slice("old", "a", 1, 2, plain("0", "1")...), foreign, slice("new", "a", 2, 1, plain("2")...)},
			want:   []string{"a@2 1=0+0+1"}, count: 1,
		},
		"a slice is missing": {
			slices: []*resourcev1.ResourceSlice{on("n", slice("s", "a", 3, 2, plain("0")...)), slice("t", "b", 1, 1)},
			want: []string{
				"a@3 on n PoolIncomplete: pool gpu.example.com/a is incomplete: observed 1/2 slices at generation 3", "b@1 0=0+0+0",
			}, count: 2, waits: true,
		},
		"one pool": {
			spec:   spec(func(s *resourcev1alpha3.ResourcePoolStatusRequestSpec) { s.PoolName = new("b") }),
			slices: []*resourcev1.ResourceSlice{slice("s", "a", 1, 2), slice("t", "b", 1, 1)}, want: []string{"b@1 0=0+0+0"}, count: 1,
		},
		"a limit, and what is beyond it is not waited for": {
			spec:   spec(func(s *resourcev1alpha3.ResourcePoolStatusRequestSpec) { s.Limit = new(int32(1)) }),
			slices: []*resourcev1.ResourceSlice{slice("t", "b", 1, 2), slice("s", "a", 1, 1)}, want: []string{"a@1 0=0+0+0"}, count: 2,
		},
		"one node": {
			slices: []*resourcev1.ResourceSlice{on("n", slice("s", "a", 1, 2)), on("n", slice("t", "a", 1, 2))}, want: []string{"a@1 0=0+0+0 on n"},
			count: 1,
		},
		"two nodes": {
			slices: []*resourcev1.ResourceSlice{on("n", slice("s", "a", 1, 2)), on("m", slice("t", "a", 1, 2))}, want: []string{"a@1 0=0+0+0"},
			count: 1,
		},
		"a node and none": {
			slices: []*resourcev1.ResourceSlice{slice("s", "a", 1, 2), on("m", slice("t", "a", 1, 2))}, want: []string{"a@1 0=0+0+0"}, count: 1,
		},
	} {
		if c.spec == nil {
			c.spec = spec()
		}
		a := look(c.spec, c.slices, c.claims, c.rules)
		var got []string
		for i := range a.pools {
			got = append(got, told(&a.pools[i]))
		}
		if !reflect.DeepEqual(got, c.want) || a.count != c.count || a.incomplete != c.waits {
			t.Errorf("%s: %q, %d pools, incomplete %v; want %q", what, got, a.count, a.incomplete, c.want)
		}
	}
}

func quantity(text string) resource.Quantity { return resource.MustParse(text) }

// part is a device that draws memory, of a kind.
func part(name, of, memory string) resourcev1.Device {
	d := resourcev1.Device{Name: name, ConsumesCounters: []resourcev1.DeviceCounterConsumption{{
		CounterSet: "card", Counters: map[string]resourcev1.Counter{"memory": {Value: quantity(memory)}},
	}}}
	if of != "" {
		d.Attributes = map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"profile": {StringValue: &of}}
	}
	return d
}

func counted(s *resourcev1.ResourceSlice, memory string) *resourcev1.ResourceSlice {
	has := map[string]resourcev1.Counter{"memory": {Value: quantity(memory)}}
	s.Spec.SharedCounters = []resourcev1.CounterSet{{Name: "card", Counters: has}}
	return s
}

func grouped(by string, s *resourcev1.ResourceSlice) *resourcev1.ResourceSlice {
	s.Spec.PartitionTypeAttribute = new(resourcev1.FullyQualifiedName(by))
	return s
}

// TestPartitionsAreCounted: each kind against what those in use leave, and what makes that impossible is named.
func TestPartitionsAreCounted(t *testing.T) {
	const profile = driver + "/profile"
	parts := []resourcev1.Device{
		part("full", "full", "8Gi"), part("h0", "half", "4Gi"), part("h1", "half", "4096Mi"), part("q", "quarter", "2Gi"),
	}
	own := grouped("gpu.example.com/shape", slice("t", "a", 1, 2, part("other", "", "1Gi")))
	own.Spec.Devices[0].Attributes = map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{
		"gpu.example.com/shape": {StringValue: new("flat")},
	}
	var many []resourcev1.Device
	for i := range maxItems + 1 {
		many = append(many, part(fmt.Sprint(i), fmt.Sprint("kind", i), "1"))
	}
	for what, c := range map[string]struct {
		ask    string
		slices []*resourcev1.ResourceSlice
		claims []*resourcev1.ResourceClaim
		want   string
		flaw   string
	}{
		"nobody asks": {slices: []*resourcev1.ResourceSlice{counted(slice("s", "a", 1, 1, parts...), "8Gi")}},
		"by the slice": {
			slices: []*resourcev1.ResourceSlice{grouped(profile, counted(slice("s", "a", 1, 1, parts...), "8Gi"))},
			want:   "full 1/1 half 2/2 quarter 1/1 ",
		},
		"by the request, and one is in use": {
			ask: profile, slices: []*resourcev1.ResourceSlice{counted(slice("s", "a", 1, 1, parts...), "8Gi")},
			claims: []*resourcev1.ResourceClaim{claim("x", "a", "h0")}, want: "full 0/1 half 1/2 quarter 1/1 ",
		},
		"more than there is room for": {
			ask: profile, slices: []*resourcev1.ResourceSlice{counted(slice("s", "a", 1, 1, part("0", "half", "4Gi"), part("1", "half", "4Gi"),
				part("2", "half", "4Gi")), "8Gi")}, want: "half 2/3 ",
		},
		"in use by many": {
			ask: profile, slices: []*resourcev1.ResourceSlice{counted(slice("s", "a", 1, 1, parts...), "8Gi")},
			claims: []*resourcev1.ResourceClaim{claim("x", "a", "h0"), claim("y", "a", "h0")}, want: "full 0/1 half 1/2 quarter 1/1 ",
		},
		"each slice by its own": {
			ask: profile, slices: []*resourcev1.ResourceSlice{own, grouped(profile, counted(slice("s", "a", 1, 2, parts[1]), "8Gi"))},
			want: "half 1/1 flat 1/1 ",
		},
		"a slice without, beside one with": {
			ask: profile, slices: []*resourcev1.ResourceSlice{own, counted(slice("s", "a", 1, 2, parts[1]), "8Gi")}, want: "flat 1/1 ",
		},
		"a device that says nothing": {
			ask: profile, slices: []*resourcev1.ResourceSlice{counted(slice("s", "a", 1, 1, part("mystery", "", "1Gi")), "8Gi")},
			flaw: `PartitionTypeMissing: device "mystery" in pool gpu.example.com/a does not carry partition type attribute "gpu.example.com/profile"`,
		},
		"two costs": {
			ask: profile, slices: []*resourcev1.ResourceSlice{
				counted(slice("s", "a", 1, 1, part("x", "half", "4Gi"), part("y", "half", "3Gi")), "8Gi"),
			},
			flaw: `PartitionCostMismatch: devices of partition type "half" in pool gpu.example.com/a consume different counters`,
		},
		"no counters": {
			slices: []*resourcev1.ResourceSlice{grouped(profile, slice("s", "a", 1, 1, parts...))},
			flaw:   "PartitionTypeMissing: pool gpu.example.com/a declares partitionTypeAttribute but publishes no sharedCounters",
		},
		"too many": {
			ask: profile, slices: []*resourcev1.ResourceSlice{counted(slice("s", "a", 1, 1, many...), "8Gi")},
			flaw: "PartitionSummaryOverCap: pool gpu.example.com/a has 33 partition types, exceeding the maximum of 32",
		},
	} {
		a := look(spec(func(s *resourcev1alpha3.ResourcePoolStatusRequestSpec) {
			if c.ask != "" {
				s.DefaultPartitionTypeAttribute = &c.ask
			}
		}), c.slices, c.claims, nil)
		if len(a.pools) != 1 || a.pools[0].TotalDevices == nil {
			t.Errorf("%s: %+v", what, a.pools)
			continue
		}
		got, flaw := "", ""
		for _, p := range a.pools[0].PartitionSummary {
			got += fmt.Sprintf("%s %d/%d ", p.Type, *p.Allocatable, *p.Total)
		}
		if a.pools[0].ValidationError != nil {
			flaw = *a.pools[0].ValidationError
		}
		if got != c.want || flaw != c.flaw {
			t.Errorf("%s: %q, %q; want %q, %q", what, got, flaw, c.want, c.flaw)
		}
	}
}

// TestSharedDevicesAreSummedUp, and no object of the caches changes by it.
func TestSharedDevicesAreSummedUp(t *testing.T) {
	shared := func(name string) resourcev1.Device {
		return resourcev1.Device{
			Name: name, AllowMultipleAllocations: new(true),
			Capacity: map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{
				"memory": {Value: quantity("8Gi")}, "slots": {Value: quantity("100000000000000000000")},
			},
		}
	}
	s := slice("s", "a", 1, 1, shared("0"), shared("1"), plain("2")[0])
	x, y := claim("x", "a", "0"), claim("y", "a", "0")
	x.Status.Allocation.Devices.Results[0].ConsumedCapacity = map[resourcev1.QualifiedName]resource.Quantity{"memory": quantity("1Gi")}
	y.Status.Allocation.Devices.Results[0].ConsumedCapacity = map[resourcev1.QualifiedName]resource.Quantity{"memory": quantity("3Gi")}
	before := []any{s.DeepCopy(), x.DeepCopy(), y.DeepCopy()}
	for range 2 { // the second time finds what the first one left
		got := look(spec(), []*resourcev1.ResourceSlice{s}, []*resourcev1.ResourceClaim{x, y}, nil).pools[0].ShareableSummary
		if got == nil || *got.FullyAvailableDevices != 1 || *got.PartiallyAvailableDevices != 1 || len(got.Capacity) != 2 {
			t.Fatalf("%+v", got)
		}
		m, slots := got.Capacity[0], got.Capacity[1]
		if m.Name != "memory" || m.Total.String() != "16Gi" || m.Consumed.String() != "4Gi" || m.Available.String() != "12Gi" {
			t.Errorf("memory: %s, %s, %s", m.Total, m.Consumed, m.Available)
		}
		if slots.Available.String() != slots.Total.String() || slots.Total.Cmp(quantity("200000000000000000000")) != 0 {
			t.Errorf("slots: %s of %s", slots.Available, slots.Total)
		}
	}
	if !reflect.DeepEqual(before, []any{s, x, y}) {
		t.Error("an object of the cache has changed")
	}
}

// TestAnswersHold for whatever drivers publish and claims have: the numbers add up, the order in which a cache lists its
// objects changes nothing, nor do slices of older generations and observers; the free partitions can be taken.
func TestAnswersHold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var offers []*resourcev1.ResourceSlice
		var claims []*resourcev1.ResourceClaim
		pools := []string{"a", "b", "c"}
		number := func(what string, most int) int { return rapid.IntRange(0, most).Draw(t, what) }
		for i := range number("slices", 8) {
			var devices []resourcev1.Device
			for j := range number("devices", 4) {
				d := part(fmt.Sprintf("%d-%d", i, j), rapid.SampledFrom([]string{"full", "half"}).Draw(t, "kind"), fmt.Sprint(1+number("draws", 1)))
				if rapid.Bool().Draw(t, "tainted") {
					d.Taints = tainted("", resourcev1.DeviceTaintEffectNoSchedule).Taints
				}
				devices = append(devices, d)
			}
			pool := rapid.SampledFrom(pools).Draw(t, "pool")
			s := slice(fmt.Sprint("s", i), pool, int64(number("generation", 2)), int64(1+number("count", 2)), devices...)
			if rapid.Bool().Draw(t, "on a node") {
				s = on("n", s)
			}
			offers = append(offers, counted(s, fmt.Sprint(number("memory", 6))))
		}
		for i := range number("claims", 6) {
			c := claim(fmt.Sprint("c", i), rapid.SampledFrom(pools).Draw(t, "of"), fmt.Sprintf("%d-%d", number("slice", 8), number("device", 4)))
			claims = append(claims, c)
		}
		ask := spec(func(s *resourcev1alpha3.ResourcePoolStatusRequestSpec) {
			s.DefaultPartitionTypeAttribute = new(driver + "/profile")
		})
		a := look(ask, offers, claims, nil)
		if int(a.count) != len(a.pools) {
			t.Fatalf("%d pools of %d", len(a.pools), a.count)
		}
		for i := range a.pools {
			p := &a.pools[i]
			if p.TotalDevices == nil {
				if p.ValidationError == nil || !a.incomplete {
					t.Fatalf("no numbers, and no reason: %s", told(p))
				}
				continue
			}
			if *p.AllocatedDevices+*p.UnavailableDevices+*p.AvailableDevices != *p.TotalDevices || *p.AvailableDevices < 0 {
				t.Fatalf("the numbers do not add up: %s", told(p))
			}
			for _, part := range p.PartitionSummary {
				if *part.Allocatable < 0 || *part.Allocatable > *part.Total {
					t.Fatalf("%d of %d are free", *part.Allocatable, *part.Total)
				}
				if want := room(p, part.Type, offers, claims); *part.Allocatable != want {
					t.Fatalf("%d of %s fit, want %d", *part.Allocatable, part.Type, want)
				}
			}
		}
		same := func(what string, offers []*resourcev1.ResourceSlice, claims []*resourcev1.ResourceClaim) {
			if other := look(ask, offers, claims, nil); !reflect.DeepEqual(a, other) {
				t.Fatalf("%s: %+v, was %+v", what, other, a)
			}
		}
		same("in another order", rapid.Permutation(offers).Draw(t, "slices in order"), rapid.Permutation(claims).Draw(t, "claims in order"))
		observer := claim("observer", "a", "0-0")
		observer.Status.Allocation.Devices.Results[0].AdminAccess = new(true)
		same("with an observer", offers, append(claims[:len(claims):len(claims)], observer))
		for _, p := range a.pools {
			old := slice("old", p.PoolName, p.Generation-1, 9, plain("x")...)
			same("with an older slice", append(offers[:len(offers):len(offers)], old), claims)
		}
	})
}

// room is how many of a kind fit, all of which draw the same of one counter.
func room(p *resourcev1alpha3.PoolStatus, of string, offers []*resourcev1.ResourceSlice, claims []*resourcev1.ResourceClaim) int32 {
	used := map[string]bool{}
	for _, c := range claims {
		if r := c.Status.Allocation.Devices.Results[0]; r.Pool == p.PoolName {
			used[r.Device] = true
		}
	}
	var memory, cost, free int64
	newest := ""
	for _, s := range offers {
		if s.Spec.Pool.Name != p.PoolName || s.Spec.Pool.Generation != p.Generation {
			continue
		}
		if s.Name > newest { // a set of one name is that of the last slice
			newest = s.Name
		}
		for _, d := range s.Spec.Devices {
			draws := d.ConsumesCounters[0].Counters["memory"].Value
			switch {
			case used[d.Name]:
				memory -= draws.Value()
			case *d.Attributes["profile"].StringValue == of:
				cost, free = draws.Value(), free+1
			}
		}
	}
	for _, s := range offers {
		if s.Name == newest {
			have := s.Spec.SharedCounters[0].Counters["memory"].Value
			memory += have.Value()
		}
	}
	if free == 0 {
		return 0
	}
	return int32(min(free, max(memory, 0)/cost)) //nolint:gosec // a few
}

// TestErrorsFit into what the API takes, and are whole characters.
func TestErrorsFit(t *testing.T) {
	if got := short("as it is", 8); got != "as it is" {
		t.Errorf("%q", got)
	}
	got := short(strings.Repeat("x", maxError-1)+"ü", maxError)
	if len(got) != maxError-1 || !utf8.ValidString(got) {
		t.Errorf("%d bytes: %q", len(got), got)
	}
	a := look(spec(), []*resourcev1.ResourceSlice{slice("s", strings.Repeat("p", 250), 1, 2)}, nil, nil)
	if n := len(*a.pools[0].ValidationError); n != maxError {
		t.Errorf("an error of %d bytes", n)
	}
}
