// SPDX-License-Identifier: Apache-2.0

package devices_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/core/scheduler/native/devices"
)

const driver = "gpu.example.com"

// world holds objects in informers that nobody starts.
type world struct {
	*testing.T
	inf    informers.SharedInformerFactory
	ledger *devices.Ledger
	plugin *devices.Plugin
}

func newWorld(t *testing.T, objects ...runtime.Object) *world {
	t.Helper()
	w := &world{T: t, inf: informers.NewSharedInformerFactory(nil, 0)}
	w.ledger = devices.NewLedger(w.inf)
	w.plugin = devices.New(nil, w.ledger, devices.Settings{})
	w.put(objects...)
	return w
}

func (w *world) put(objects ...runtime.Object) {
	w.Helper()
	r := w.inf.Resource().V1()
	for _, o := range objects {
		var into cache.SharedIndexInformer
		switch o.(type) {
		case *resourcev1.ResourceClaim:
			into = r.ResourceClaims().Informer()
		case *resourcev1.DeviceClass:
			into = r.DeviceClasses().Informer()
		case *resourcev1.ResourceSlice:
			into = r.ResourceSlices().Informer()
		case *resourcev1.DeviceTaintRule:
			into = r.DeviceTaintRules().Informer()
		default:
			w.Fatalf("nobody looks up a %T", o)
		}
		if err := into.GetIndexer().Add(o); err != nil {
			w.Fatal(err)
		}
	}
}

func node(name string, tweak ...func(*corev1.Node)) *framework.NodeInfo {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/hostname": name}}}
	for _, f := range tweak {
		f(n)
	}
	return framework.NewNodeInfo(n)
}

func class(name string, tweak ...func(*resourcev1.DeviceClass)) *resourcev1.DeviceClass {
	c := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
	c.Spec.Selectors = []resourcev1.DeviceSelector{cel(`device.driver == "` + driver + `"`)}
	for _, f := range tweak {
		f(c)
	}
	return c
}

func cel(expression string) resourcev1.DeviceSelector {
	return resourcev1.DeviceSelector{CEL: &resourcev1.CELDeviceSelector{Expression: expression}}
}

func device(name string, tweak ...func(*resourcev1.Device)) resourcev1.Device {
	d := resourcev1.Device{Name: name}
	for _, f := range tweak {
		f(&d)
	}
	return d
}

func has(attribute, value string) func(*resourcev1.Device) {
	return func(d *resourcev1.Device) {
		if d.Attributes == nil {
			d.Attributes = map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{}
		}
		d.Attributes[resourcev1.QualifiedName(attribute)] = resourcev1.DeviceAttribute{StringValue: &value}
	}
}

func slice(node string, all ...resourcev1.Device) *resourcev1.ResourceSlice {
	return &resourcev1.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: node + "-slice"},
		Spec: resourcev1.ResourceSliceSpec{
			Driver: driver, NodeName: &node, Devices: all,
			Pool: resourcev1.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1},
		},
	}
}

func exactly(name, class string, tweak ...func(*resourcev1.ExactDeviceRequest)) resourcev1.DeviceRequest {
	r := &resourcev1.ExactDeviceRequest{DeviceClassName: class, AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1}
	for _, f := range tweak {
		f(r)
	}
	return resourcev1.DeviceRequest{Name: name, Exactly: r}
}

func count(n int64) func(*resourcev1.ExactDeviceRequest) {
	return func(r *resourcev1.ExactDeviceRequest) { r.Count = n }
}

func claim(name string, requests ...resourcev1.DeviceRequest) *resourcev1.ResourceClaim {
	return &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("claim-" + name), ResourceVersion: "1"},
		Spec:       resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: requests}},
	}
}

func given(c *resourcev1.ResourceClaim, node string, names ...string) *resourcev1.ResourceClaim {
	a := &resourcev1.AllocationResult{NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
	}}}}
	for _, name := range names {
		a.Devices.Results = append(a.Devices.Results, resourcev1.DeviceRequestAllocationResult{
			Request: "r", Driver: driver, Pool: node,
			Device: name,
		})
	}
	c.Status.Allocation = a
	return c
}

func podWith(name string, claims ...string) *framework.PodInfo {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)}}
	p.Spec.Containers = []corev1.Container{{Name: "a"}}
	for _, c := range claims {
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: c, ResourceClaimName: &c})
	}
	return framework.NewPodInfo(p)
}

func reason(st *framework.Status) string {
	if st.IsSuccess() {
		return ""
	}
	return strings.Join(st.Reasons, ", ")
}

// fits are the nodes that the plugin leaves, or why it leaves none.
func (w *world) fits(p *framework.PodInfo, nodes ...*framework.NodeInfo) (s *framework.State, left []string, why string) {
	w.Helper()
	s = framework.NewState()
	if st := w.plugin.PreEnqueue(w.Context(), p); st != nil {
		return s, nil, reason(st)
	}
	if _, st := w.plugin.PreFilter(w.Context(), s, p, nil); st != nil {
		if st.Code == framework.Skip {
			for _, n := range nodes {
				left = append(left, n.Node.Name)
			}
			return s, left, ""
		}
		return s, nil, reason(st)
	}
	for _, n := range nodes {
		if st := w.plugin.Filter(w.Context(), s, p, n); st != nil {
			why = reason(st)
			continue
		}
		left = append(left, n.Node.Name)
	}
	return s, left, why
}

// TestWhichNodesAreLeft goes through what claims can ask for.
func TestWhichNodesAreLeft(t *testing.T) {
	tainted := func(d *resourcev1.Device) {
		d.Taints = []resourcev1.DeviceTaint{{Key: "broken", Effect: resourcev1.DeviceTaintEffectNoSchedule}}
	}
	tolerates := func(r *resourcev1.ExactDeviceRequest) {
		r.Tolerations = []resourcev1.DeviceToleration{{Key: "broken", Operator: resourcev1.DeviceTolerationOpExists}}
	}
	all := func(r *resourcev1.ExactDeviceRequest) {
		r.AllocationMode, r.Count = resourcev1.DeviceAllocationModeAll, 0
	}
	watching := func(r *resourcev1.ExactDeviceRequest) { r.AdminAccess = new(true) }
	big := func(r *resourcev1.ExactDeviceRequest) {
		r.Selectors = []resourcev1.DeviceSelector{cel(`device.attributes["` + driver + `"].size == "big"`)}
	}
	together := func(c *resourcev1.ResourceClaim) *resourcev1.ResourceClaim {
		c.Spec.Devices.Constraints = []resourcev1.DeviceConstraint{{MatchAttribute: new(resourcev1.FullyQualifiedName(driver + "/numa"))}}
		return c
	}
	first := func(alternatives ...resourcev1.DeviceSubRequest) resourcev1.DeviceRequest {
		return resourcev1.DeviceRequest{Name: "r", FirstAvailable: alternatives}
	}
	alternative := func(name string, count int64) resourcev1.DeviceSubRequest {
		return resourcev1.DeviceSubRequest{
			Name: name, DeviceClassName: "gpu", AllocationMode: resourcev1.DeviceAllocationModeExactCount,
			Count: count,
		}
	}
	counters := func(name string, memory string) resourcev1.Device {
		return device(name, func(d *resourcev1.Device) {
			d.ConsumesCounters = []resourcev1.DeviceCounterConsumption{{
				CounterSet: "card", Counters: map[string]resourcev1.Counter{"memory": {Value: resource.MustParse(memory)}},
			}}
		})
	}
	partitions := func(node string) []runtime.Object {
		devices, shared := slice(node, counters("whole", "8Gi"), counters("half-0", "4Gi"), counters("half-1", "4Gi")), slice(node)
		shared.Name += "-counters"
		shared.Spec.SharedCounters = []resourcev1.CounterSet{{
			Name: "card", Counters: map[string]resourcev1.Counter{"memory": {Value: resource.MustParse("8Gi")}},
		}}
		devices.Spec.Pool.ResourceSliceCount, shared.Spec.Pool.ResourceSliceCount = 2, 2
		return []runtime.Object{devices, shared}
	}
	divisible := device("nic", func(d *resourcev1.Device) {
		d.AllowMultipleAllocations = new(true)
		d.Capacity = map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{"bandwidth": {Value: resource.MustParse("10")}}
	})
	bandwidthOf := func(amount string) map[resourcev1.QualifiedName]resource.Quantity {
		return map[resourcev1.QualifiedName]resource.Quantity{"bandwidth": resource.MustParse(amount)}
	}
	bandwidth := func(amount string) func(*resourcev1.ExactDeviceRequest) {
		return func(r *resourcev1.ExactDeviceRequest) {
			r.Capacity = &resourcev1.CapacityRequirements{Requests: bandwidthOf(amount)}
		}
	}
	shares := func(c *resourcev1.ResourceClaim, amount string) *resourcev1.ResourceClaim {
		given(c, "a", "nic")
		c.Status.Allocation.Devices.Results[0].ShareID = new(types.UID("0b8b2d36-5c4f-4d3e-8a5e-0f7a3f2e9d11"))
		c.Status.Allocation.Devices.Results[0].ConsumedCapacity = bandwidthOf(amount)
		return c
	}
	incomplete := slice("a", device("0"))
	incomplete.Spec.Pool.ResourceSliceCount = 2
	for what, c := range map[string]struct {
		objects []runtime.Object
		pod     *framework.PodInfo
		left    string // names of a, b
		why     string
	}{
		"no claims":            {nil, podWith("p"), "a b", ""},
		"a claim that is not":  {nil, podWith("p", "c"), "", `could not find ResourceClaim "default/c"`},
		"a class that is not":  {[]runtime.Object{claim("c", exactly("r", "gpu"))}, podWith("p", "c"), "", "request r: device class gpu does not exist"},
		"no devices":           {[]runtime.Object{class("gpu"), claim("c", exactly("r", "gpu"))}, podWith("p", "c"), "", "cannot allocate all claims"},
		"a device":             {[]runtime.Object{class("gpu"), slice("a", device("0")), claim("c", exactly("r", "gpu"))}, podWith("p", "c"), "a", "cannot allocate all claims"},
		"more than there are":  {[]runtime.Object{class("gpu"), slice("a", device("0")), claim("c", exactly("r", "gpu", count(2)))}, podWith("p", "c"), "", "cannot allocate all claims"},
		"two claims, one":      {[]runtime.Object{class("gpu"), slice("a", device("0")), claim("c", exactly("r", "gpu")), claim("d", exactly("r", "gpu"))}, podWith("p", "c", "d"), "", "cannot allocate all claims"},
		"somebody has it":      {[]runtime.Object{class("gpu"), slice("a", device("0")), claim("c", exactly("r", "gpu")), given(claim("d"), "a", "0")}, podWith("p", "c"), "", "cannot allocate all claims"},
		"it has one elsewhere": {[]runtime.Object{class("gpu"), slice("a", device("0")), given(claim("c", exactly("r", "gpu")), "b", "0")}, podWith("p", "c"), "b", "resourceclaim not available on the node"},
		"a pool that is not all there": {
			[]runtime.Object{class("gpu"), incomplete, claim("c", exactly("r", "gpu", all))}, podWith("p", "c"), "", "cannot allocate all claims",
		},
		"an expression": {
			[]runtime.Object{
				class("gpu"), slice("a", device("0", has("size", "small"))), slice("b", device("0", has("size", "big"))),
				claim("c", exactly("r", "gpu", big)),
			},
			podWith("p", "c"), "b", "cannot allocate all claims",
		},
		"together": {
			[]runtime.Object{
				class("gpu"), slice("a", device("0", has("numa", "0")), device("1", has("numa", "1"))),
				slice("b", device("0", has("numa", "0")), device("1", has("numa", "0"))), together(claim("c", exactly("r", "gpu", count(2)))),
			},
			podWith("p", "c"), "b", "cannot allocate all claims",
		},
		"alternatives": {
			[]runtime.Object{class("gpu"), slice("a", device("0")), claim("c", first(alternative("two", 2), alternative("one", 1)))},
			podWith("p", "c"), "a", "cannot allocate all claims",
		},
		"an alternative of a class that is not": {
			[]runtime.Object{claim("c", first(alternative("two", 2)))}, podWith("p", "c"), "", "request r/two: device class gpu does not exist",
		},
		"all devices": {
			[]runtime.Object{
				class("gpu"), slice("a", device("0"), device("1")), slice("b", device("0"), device("1")),
				claim("c", exactly("r", "gpu", all)), given(claim("d"), "a", "0"),
			},
			podWith("p", "c"), "b", "cannot allocate all claims",
		},
		"who looks after a device takes none": {
			[]runtime.Object{class("gpu"), slice("a", device("0")), claim("c", exactly("r", "gpu", watching)), given(claim("d"), "a", "0")},
			podWith("p", "c"), "a", "cannot allocate all claims",
		},
		"a tainted device":  {[]runtime.Object{class("gpu"), slice("a", device("0", tainted)), claim("c", exactly("r", "gpu"))}, podWith("p", "c"), "", "cannot allocate all claims"},
		"a tolerated taint": {[]runtime.Object{class("gpu"), slice("a", device("0", tainted)), claim("c", exactly("r", "gpu", tolerates))}, podWith("p", "c"), "a", "cannot allocate all claims"},
		"tainted by a rule": {
			[]runtime.Object{
				class("gpu"), slice("a", device("0")), slice("b", device("0")), claim("c", exactly("r", "gpu")),
				&resourcev1.DeviceTaintRule{
					ObjectMeta: metav1.ObjectMeta{Name: "rule"},
					Spec: resourcev1.DeviceTaintRuleSpec{
						DeviceSelector: &resourcev1.DeviceTaintSelector{Driver: new(driver), Pool: new("a")},
						Taint:          resourcev1.DeviceTaint{Key: "broken", Effect: resourcev1.DeviceTaintEffectNoExecute},
					},
				},
			},
			podWith("p", "c"), "b", "cannot allocate all claims",
		},
		"a half of a card": {
			append(partitions("a"), class("gpu"), claim("c", exactly("r", "gpu")), given(claim("d"), "a", "half-0")), podWith("p", "c"), "a",
			"cannot allocate all claims",
		},
		"a card whose whole is taken": {
			append(partitions("a"), class("gpu"), claim("c", exactly("r", "gpu")), given(claim("d"), "a", "whole")), podWith("p", "c"), "",
			"cannot allocate all claims",
		},
		"a share": {
			[]runtime.Object{class("gpu"), slice("a", divisible), claim("c", exactly("r", "gpu", bandwidth("6"))), shares(claim("d"), "4")},
			podWith("p", "c"), "a", "cannot allocate all claims",
		},
		"a share that is not left": {
			[]runtime.Object{class("gpu"), slice("a", divisible), claim("c", exactly("r", "gpu", bandwidth("6"))), shares(claim("d"), "5")},
			podWith("p", "c"), "", "cannot allocate all claims",
		},
	} {
		t.Run(what, func(t *testing.T) {
			_, left, why := newWorld(t, c.objects...).fits(c.pod, node("a"), node("b"))
			if strings.Join(left, " ") != c.left || why != c.why {
				t.Errorf("left %q, because of %q; want %q, %q", left, why, c.left, c.why)
			}
		})
	}
}

// TestABadExpressionIsAnError: it is not the nodes' fault, and is told in the words of the allocator.
func TestABadExpressionIsAnError(t *testing.T) {
	w := newWorld(t, class("gpu", func(c *resourcev1.DeviceClass) { c.Spec.Selectors = []resourcev1.DeviceSelector{cel(`device.nothing`)} }),
		slice("a", device("0")), claim("c", exactly("r", "gpu")))
	s, p := framework.NewState(), podWith("p", "c")
	if _, st := w.plugin.PreFilter(t.Context(), s, p, nil); st != nil {
		t.Fatal(reason(st))
	}
	if st := w.plugin.Filter(t.Context(), s, p, node("a")); st == nil || st.Code != framework.Error || !strings.Contains(reason(st), "gpu") {
		t.Errorf("answered %v", st)
	}
}

// TestTheFirstAlternativeIsPreferred on whichever node it can be had.
func TestTheFirstAlternativeIsPreferred(t *testing.T) {
	sub := func(name, size string) resourcev1.DeviceSubRequest {
		return resourcev1.DeviceSubRequest{
			Name: name, DeviceClassName: "gpu", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1,
			Selectors: []resourcev1.DeviceSelector{cel(`device.attributes["` + driver + `"].size == "` + size + `"`)},
		}
	}
	w := newWorld(t, class("gpu"), slice("a", device("0", has("size", "small"))), slice("b", device("0", has("size", "big"))),
		claim("c", resourcev1.DeviceRequest{Name: "r", FirstAvailable: []resourcev1.DeviceSubRequest{
			sub("best", "big"),
			sub("second", "small"),
		}}))
	p, nodes := podWith("p", "c"), []*framework.NodeInfo{node("a"), node("b")}
	s, left, why := w.fits(p, nodes...)
	if len(left) != 2 {
		t.Fatalf("left %q (%s)", left, why)
	}
	if st := w.plugin.PreScore(t.Context(), s, p, nodes); st != nil {
		t.Fatal(reason(st))
	}
	scores := make([]int64, 2)
	for i, n := range nodes {
		scores[i], _ = w.plugin.Score(t.Context(), s, p, n)
	}
	w.plugin.Normalize(t.Context(), s, p, nodes, scores)
	if scores[1] != framework.MaxScore || scores[0] >= scores[1] {
		t.Errorf("scores %v", scores)
	}
}

// TestTwoPodsNeverGetOneDevice: what was decided for one is not there for the other until it
// is given back.
func TestTwoPodsNeverGetOneDevice(t *testing.T) {
	w := newWorld(t, class("gpu"), slice("a", device("0")), claim("c", exactly("r", "gpu")), claim("d", exactly("r", "gpu")))
	first, second, a := podWith("first", "c"), podWith("second", "d"), node("a")
	s, left, why := w.fits(first, a)
	if len(left) != 1 {
		t.Fatal(why)
	}
	if st := w.plugin.Reserve(t.Context(), s, first, "a"); st != nil {
		t.Fatal(reason(st))
	}
	if _, left, why := w.fits(second, a); len(left) != 0 || why != "cannot allocate all claims" {
		t.Errorf("the second pod has %q (%s)", left, why)
	}
	if _, left, why := w.fits(podWith("third", "c"), a); len(left) != 0 ||
		why != "resource claim default/c is in the process of being allocated" {
		t.Errorf("a pod that shares the claim has %q (%s)", left, why)
	}
	w.plugin.Unreserve(t.Context(), s, first, "a")
	if _, left, why := w.fits(second, a); len(left) != 1 {
		t.Errorf("the device was given back, and the second pod doesn't get it: %s", why)
	}
}

// TestPodsOfAGroupShareAClaimThatIsNotWrittenYet: they are bound together, so that neither
// could wait for the other one to be.
func TestPodsOfAGroupShareAClaimThatIsNotWrittenYet(t *testing.T) {
	w := newWorld(t, class("gpu"), slice("a", device("0")), slice("b", device("0")), claim("c", exactly("r", "gpu")))
	member := func(name string) *framework.PodInfo {
		p := podWith(name, "c")
		p.Pod.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: new("gang")}
		return p
	}
	one, two := member("one"), member("two")
	s, left, why := w.fits(one, node("a"), node("b"))
	if len(left) != 2 {
		t.Fatal(why)
	}
	if st := w.plugin.Reserve(t.Context(), s, one, "b"); st != nil {
		t.Fatal(reason(st))
	}
	s2, left, why := w.fits(two, node("a"), node("b"))
	if !slices.Equal(left, []string{"b"}) {
		t.Fatalf("the second has %q (%s)", left, why)
	}
	if st := w.plugin.Reserve(t.Context(), s2, two, "b"); st != nil {
		t.Fatal(reason(st))
	}
	w.plugin.Unreserve(t.Context(), s, one, "b")
	if _, left, _ := w.fits(podWith("other", "c"), node("b")); len(left) != 0 {
		t.Error("the claim is free although the second pod still needs it")
	}
}

// TestExtendedResourcesOfClasses: a class gives them on nodes that don't have them themselves.
func TestExtendedResourcesOfClasses(t *testing.T) {
	gives := func(c *resourcev1.DeviceClass) { c.Spec.ExtendedResourceName = new("example.com/gpu") }
	w := newWorld(t, class("gpu", gives), slice("a", device("0"), device("1")), slice("b", device("0")))
	p := podWith("p").Pod
	ask := func(n string) corev1.ResourceRequirements {
		return corev1.ResourceRequirements{Requests: corev1.ResourceList{"example.com/gpu": resource.MustParse(n)}}
	}
	p.Spec.InitContainers = []corev1.Container{{Name: "init", Resources: ask("2")}}
	p.Spec.Containers = []corev1.Container{{Name: "main", Resources: ask("1")}}
	plugin := node("c", func(n *corev1.Node) {
		n.Status.Allocatable = corev1.ResourceList{"example.com/gpu": resource.MustParse("4")}
	})
	info := framework.NewPodInfo(p)
	if w.plugin.Sign(info, &framework.Signature{}) {
		t.Error("the pod shares decisions with others")
	}
	s, left, why := w.fits(info, node("a"), node("b"), plugin)
	if !slices.Equal(left, []string{"a", "c"}) {
		t.Fatalf("left %q (%s)", left, why)
	}
	if st := w.plugin.Reserve(t.Context(), s, info, "a"); st != nil {
		t.Fatal(reason(st))
	}
	if _, left, _ := w.fits(framework.NewPodInfo(withName(p, "q")), node("a"), node("b")); len(left) != 0 {
		t.Errorf("a second pod got devices on %q", left)
	}
}

func withName(p *corev1.Pod, name string) *corev1.Pod {
	q := p.DeepCopy()
	q.Name, q.UID = name, types.UID(name)
	return q
}

// TestWhomAChangeHelps goes through the changes of objects.
func TestWhomAChangeHelps(t *testing.T) {
	w := newWorld(t)
	p := podWith("p", "mine")
	inUse := claim("mine")
	inUse.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: "q", UID: "q"}}
	labelled := claim("mine")
	labelled.Labels = map[string]string{"a": "b"}
	for what, c := range map[string]struct {
		old, now runtime.Object
		want     bool
	}{
		"its claim comes":               {nil, claim("mine"), true},
		"another claim comes":           {nil, claim("other"), false},
		"its claim's status changes":    {claim("mine"), inUse, true},
		"its claim gets a label":        {claim("mine"), labelled, false},
		"another gets its devices":      {claim("other"), given(claim("other"), "a", "0"), false},
		"another lets go of its":        {given(claim("other"), "a", "0"), claim("other"), true},
		"one that had devices goes":     {given(claim("other"), "a", "0"), nil, true},
		"one without goes":              {claim("other"), nil, false},
		"a slice comes":                 {nil, slice("a"), true},
		"a slice goes":                  {slice("a"), nil, false},
		"a rule that taints goes":       {&resourcev1.DeviceTaintRule{}, nil, true},
		"a class of its comes":          {nil, class("gpu"), true},
		"one of another namespace does": {nil, func() *resourcev1.ResourceClaim { c := claim("mine"); c.Namespace = "other"; return c }(), false},
	} {
		if got := w.plugin.Helped(p, c.old, c.now); got != c.want {
			t.Errorf("%s: %v, want %v", what, got, c.want)
		}
	}
}

// BenchmarkDecision is PreFilter and one Filter with thousands of nodes that have devices.
func BenchmarkDecision(b *testing.B) {
	for _, nodes := range []int{1000, 5000} {
		b.Run(fmt.Sprint(nodes), func(b *testing.B) {
			inf := informers.NewSharedInformerFactory(nil, 0)
			ledger := devices.NewLedger(inf)
			plugin := devices.New(nil, ledger, devices.Settings{})
			r := inf.Resource().V1()
			add := func(into cache.SharedIndexInformer, o any) {
				if err := into.GetIndexer().Add(o); err != nil {
					b.Fatal(err)
				}
			}
			add(r.DeviceClasses().Informer(), class("gpu"))
			add(r.ResourceClaims().Informer(), claim("c", exactly("r", "gpu")))
			for i := range nodes {
				name := fmt.Sprint("node-", i)
				add(r.ResourceSlices().Informer(), slice(name, device("0"), device("1")))
				add(r.ResourceClaims().Informer(), given(claim("of-"+name), name, "0"))
			}
			p, n := podWith("p", "c"), node("node-7")
			b.ReportAllocs()
			for b.Loop() {
				s := framework.NewState()
				if _, st := plugin.PreFilter(b.Context(), s, p, nil); st != nil {
					b.Fatal(reason(st))
				}
				if st := plugin.Filter(b.Context(), s, p, n); st != nil {
					b.Fatal(reason(st))
				}
			}
		})
	}
}
