// SPDX-License-Identifier: Apache-2.0

package api

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math/rand"
	"reflect"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	"k8s.io/apimachinery/pkg/api/meta"
	metafuzzer "k8s.io/apimachinery/pkg/apis/meta/fuzzer"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/wasmplane/wasmplane/core/api/kindcodec"
	"github.com/wasmplane/wasmplane/core/api/ownership"
	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/core/structural"
)

// What every write of every built-in kind says of who set what is what
// structured-merge-diff says, byte for byte.
func TestOwnershipIsUpstreamsForEveryKind(t *testing.T) {
	c := newContract(t)
	const rounds = 6
	for _, r := range c.Resources() {
		if r.Virtual || r.Custom != nil {
			continue
		}
		for _, version := range r.Versions {
			t.Run(r.GroupResource.String()+" "+version, func(t *testing.T) { ownsAsUpstream(t, c, r, version, rounds) })
		}
	}
}

func ownsAsUpstream(t *testing.T, c *Contract, r *Resource, version string, rounds int) {
	t.Helper()
	ours, err := c.FieldManager(r, version, "")
	if err != nil {
		t.Fatal(err)
	}
	theirs := upstreamManager(t, c, r, version)
	codec := r.Codec(version).(*kindcodec.Codec)
	f := fuzzer.FuzzerFor(metafuzzer.Funcs, rand.NewSource(int64(len(r.Kind))), serializer.NewCodecFactory(r.scheme)).NilChance(
		0.3).NumElements(0, 3)
	if r.Kind == "CustomResourceDefinition" {
		f = f.NilChance(0.85).NumElements(0, 2) // schemas contain schemas
	}
	fuzzed := func() runtime.Object {
		o := codec.Empty()
		f.Fill(o)
		return wired(t, codec, o)
	}
	var pool []runtime.Object
	for i := range rounds {
		o := fuzzed()
		if i%3 == 2 { // of a shape that has been seen, with other values
			o = pool[len(pool)-1].DeepCopyObject()
			m, _ := meta.Accessor(o)
			m.SetName(fmt.Sprint("n", i))
			if owners := m.GetOwnerReferences(); len(owners) > 0 {
				m.SetOwnerReferences(owners[:1])
				owners[0].UID = types.UID(fmt.Sprintf("5b0f1c62-65f5-4f0e-9d6f-%012d", i))
			}
			o = wired(t, codec, o)
		}
		pool = append(pool, o)
	}
	for _, o := range slices.Clone(pool) {
		o = o.DeepCopyObject()
		codec.Default(o)
		pool = append(pool, o)
	}
	pool = append(pool, codec.Named(codec.Empty()))
	var created []runtime.Object
	for range 2 { // from upstream's code, and from what was kept of it
		for _, o := range pool {
			manager := []string{"kubectl", "", "<a&b>"}[len(created)%3]
			want := theirs.UpdateNoErrors(codec.Named(codec.Empty()), o.DeepCopyObject(), manager)
			got := ours.Create(o.DeepCopyObject(), manager)
			sameOwnership(t, "create", o, got, want)
			created = append(created, got)
		}
	}
	for i, o := range created[:len(pool)] {
		live := withUID(o)
		nexts := []runtime.Object{live.DeepCopyObject(), withUID(pool[(i+1)%len(pool)]), touched(live, i), withUID(codec.Named(codec.Empty()))}
		next, manager := nexts[i%len(nexts)], []string{"kubectl", "other"}[i/len(nexts)%2]
		want := theirs.UpdateNoErrors(live.DeepCopyObject(), next.DeepCopyObject(), manager)
		untouched := live.DeepCopyObject()
		got := ours.UpdateNoErrors(untouched, next.DeepCopyObject(), manager)
		sameOwnership(t, "update", next, got, want)
		if !reflect.DeepEqual(untouched, live) {
			t.Fatalf("the live object was changed: %s", dump(untouched))
		}
		// The same once more, and with other values, from what was kept of it.
		for _, pair := range [][2]runtime.Object{{live, next}, {otherValues(t, codec, live), otherValues(t, codec, next)}} {
			want := theirs.UpdateNoErrors(pair[0].DeepCopyObject(), pair[1].DeepCopyObject(), manager)
			got := ours.UpdateNoErrors(pair[0].DeepCopyObject(), pair[1].DeepCopyObject(), manager)
			sameOwnership(t, "update again", pair[1], got, want)
		}
	}
}

// otherValues is an object of the same shape with other values in places: others
// where they were others in another object, too.
func otherValues(t *testing.T, c *kindcodec.Codec, o runtime.Object) runtime.Object {
	t.Helper()
	m, _ := meta.Accessor(o)
	managed := m.GetManagedFields()
	o = o.DeepCopyObject()
	m, _ = meta.Accessor(o)
	m.SetManagedFields(nil)
	tree, err := c.ToTree(o)
	if err != nil {
		t.Fatal(err)
	}
	var change func(key string, v any) any
	change = func(key string, v any) any {
		switch v := v.(type) {
		case map[string]any:
			for k := range v {
				v[k] = change(k, v[k])
			}
		case []any:
			for i := range v {
				v[i] = change("", v[i])
			}
		case string:
			if v != "" && slices.Contains([]string{"message", "image", "reason", "generateName", "nodeName", "namespace"}, key) {
				return v + "x"
			}
		}
		return v
	}
	out, err := c.FromTree(change("", tree).(map[string]any))
	if err != nil {
		t.Fatal(err)
	}
	m, _ = meta.Accessor(out)
	m.SetManagedFields(managed)
	return out
}

// wired is an object as a decoder makes it.
func wired(t *testing.T, c *kindcodec.Codec, o runtime.Object) runtime.Object {
	t.Helper()
	m, err := meta.Accessor(o)
	if err != nil {
		t.Fatal(err)
	}
	m.SetManagedFields(nil)
	data, err := c.Encode(o, object.JSON)
	if err != nil {
		t.Skipf("a fuzzed object cannot be encoded: %v", err)
	}
	back, err := c.Decode(data, object.JSON)
	if err != nil {
		t.Fatal(err)
	}
	return back
}

func withUID(o runtime.Object) runtime.Object {
	o = o.DeepCopyObject()
	m, _ := meta.Accessor(o)
	m.SetUID("5b0f1c62-65f5-4f0e-9d6f-d1f1a5a6a001")
	return o
}

// touched is an object with a small change.
func touched(o runtime.Object, i int) runtime.Object {
	o = o.DeepCopyObject()
	m, _ := meta.Accessor(o)
	switch i % 4 {
	case 0:
		m.SetLabels(map[string]string{"a": "b"})
	case 1:
		m.SetAnnotations(nil)
	case 2:
		m.SetFinalizers(append(m.GetFinalizers(), "example.com/f"))
	case 3:
		m.SetOwnerReferences(nil)
	}
	return o
}

func sameOwnership(t rapid.TB, what string, in, got, want runtime.Object) {
	t.Helper()
	text := func(o runtime.Object) string {
		m, err := meta.Accessor(o)
		if err != nil {
			t.Fatal(err)
		}
		entries := slices.Clone(m.GetManagedFields())
		for i := range entries {
			if entries[i].Time.IsZero() {
				t.Fatalf("%s: an entry without a time: %+v", what, entries[i])
			}
			entries[i].Time = nil // and with it the order: a second may have passed between the two
		}
		slices.SortFunc(entries, func(a, b metav1.ManagedFieldsEntry) int { return cmp.Compare(a.Manager, b.Manager) })
		data, err := json.MarshalIndent(entries, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	if a, b := text(got), text(want); a != b {
		t.Fatalf("%s of\n%s\ngot\n%s\nwant\n%s", what, dump(in), a, b)
	}
	bare := func(o runtime.Object) runtime.Object {
		o = o.DeepCopyObject()
		m, _ := meta.Accessor(o)
		m.SetManagedFields(nil)
		return o
	}
	if !reflect.DeepEqual(bare(got), bare(want)) {
		t.Fatalf("%s: the object itself differs:\n%s\nwant\n%s", what, dump(bare(got)), dump(bare(want)))
	}
}

func dump(o runtime.Object) string {
	data, err := json.MarshalIndent(o, "", " ")
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// A create that brings managed fields is upstream's business, and so is what is
// no object of the kind.
func TestCreatesThatBringManagedFields(t *testing.T) {
	c := newContract(t)
	r, _ := c.Resource(schema.GroupResource{Resource: "configmaps"})
	ours, err := c.FieldManager(r, "v1", "")
	if err != nil {
		t.Fatal(err)
	}
	o, err := r.Codec("v1").Decode([]byte(`{"metadata":{"name":"a","managedFields":[{"manager":"m","operation":"Apply","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:data":{"f:a":{}}}}]},"data":{"a":"b","c":"d"}}`), object.JSON)
	if err != nil {
		t.Fatal(err)
	}
	m, _ := meta.Accessor(ours.Create(o, "kubectl"))
	entries := m.GetManagedFields()
	if len(entries) != 1 || entries[0].Operation != metav1.ManagedFieldsOperationUpdate ||
		string(entries[0].FieldsV1.GetRawBytes()) != `{"f:data":{".":{},"f:a":{},"f:c":{}}}` {
		t.Errorf("%+v", entries)
	}
}

// counting tells how often upstream's code was asked.
type counting struct {
	ownership.Upstream
	calls int
}

func (c *counting) UpdateNoErrors(live, next runtime.Object, manager string) runtime.Object {
	c.calls++
	return c.Upstream.UpdateNoErrors(live, next, manager)
}

// managerOfPods is a Manager of pods; what it asks upstream's code is counted.
func managerOfPods(t *testing.T) (*ownership.Manager, *counting, *kindcodec.Codec) {
	t.Helper()
	c := newContract(t)
	r := rowOf(t, c, "", "pods")
	tc, err := c.TypeConverter(r)
	if err != nil {
		t.Fatal(err)
	}
	upstream := &counting{Upstream: upstreamManager(t, c, r, "v1")}
	codec := r.Codec("v1").(*kindcodec.Codec)
	return ownership.New(ownership.Config{
		Upstream: upstream, Types: tc, Kind: r.GVK("v1"), Empty: codec.Named(codec.Empty()), Structure: &structural.Types{},
	}), upstream, codec
}

// Pods of one shape are asked about once, whatever their values and their owner;
// a label, a container or an owner more is another shape.
func TestAShapeIsAskedAboutOnce(t *testing.T) {
	m, upstream, codec := managerOfPods(t)
	create := func(change func(*corev1.Pod)) {
		t.Helper()
		o, err := codec.Decode([]byte(podJSON), object.JSON)
		if err != nil {
			t.Fatal(err)
		}
		change(o.(*corev1.Pod))
		m.Create(o, "kubelet")
	}
	for i, step := range []struct {
		change func(*corev1.Pod)
		calls  int
	}{
		{func(*corev1.Pod) {}, 1},
		{func(p *corev1.Pod) { p.Name = "other"; p.Spec.Containers[0].Image = "nginx:2" }, 1},
		{func(p *corev1.Pod) { p.OwnerReferences[0].UID = "00000000-1111-2222-3333-444444444444" }, 1},
		{func(p *corev1.Pod) { p.OwnerReferences[0].UID = `x"}` }, 2},
		{func(p *corev1.Pod) { p.Labels["more"] = "" }, 3},
		{func(p *corev1.Pod) { p.Spec.Containers[0].Name = "web" }, 4},
		{func(p *corev1.Pod) { p.Spec.Containers[0].Args = []string{"a"} }, 5},
		{func(p *corev1.Pod) { p.Spec.Containers[0].Args = []string{"b", "c"} }, 5}, // atomic
		{func(p *corev1.Pod) { p.Spec.Containers[0].Ports[0].ContainerPort = 81 }, 6},
		{func(p *corev1.Pod) { p.OwnerReferences = append(p.OwnerReferences, p.OwnerReferences[0]) }, 7},
	} {
		if create(step.change); upstream.calls != step.calls {
			t.Errorf("step %d: upstream was asked %d times, want %d", i, upstream.calls, step.calls)
		}
	}
}

// Whatever IPs and owners come, go and change, and whoever writes them: what is remembered of one pod is what upstream's
// code would make of the next.
func TestNamesOfListItems(t *testing.T) {
	m, upstream, codec := managerOfPods(t)
	theirs := upstream.Upstream
	names := []string{"10.0.0.1", "10.0.0.2", "9.1.1.1", "fd00::1", "::1", `x"}`, "", "00000000-1111-2222-3333-444444444444"}
	rapid.Check(t, func(t *rapid.T) {
		o, err := codec.Decode([]byte(podJSON), object.JSON)
		if err != nil {
			t.Fatal(err)
		}
		live := m.Create(o, "controller")
		name := rapid.SampledFrom(names)
		for n := range rapid.IntRange(1, 6).Draw(t, "steps") {
			next := live.DeepCopyObject().(*corev1.Pod)
			for range rapid.IntRange(1, 3).Draw(t, "changes") {
				drawn := name.Draw(t, "name")
				switch rapid.IntRange(0, 6).Draw(t, "change") {
				case 0:
					next.Status.PodIPs = append(next.Status.PodIPs, corev1.PodIP{IP: drawn})
				case 1:
					next.Status.PodIPs = next.Status.PodIPs[:len(next.Status.PodIPs)/2]
				case 2:
					next.Spec.HostAliases = append(next.Spec.HostAliases, corev1.HostAlias{IP: drawn, Hostnames: []string{"a"}})
				case 3:
					owner := metav1.OwnerReference{UID: types.UID(drawn), Name: "a", Kind: "A", APIVersion: "v1"}
					next.OwnerReferences = append(next.OwnerReferences, owner)
				case 4:
					if len(next.OwnerReferences) > 0 {
						next.OwnerReferences[0].UID = types.UID(drawn)
					}
				case 5:
					next.OwnerReferences = next.OwnerReferences[len(next.OwnerReferences)/2:]
				case 6:
					next.Labels["x"] = drawn
				}
			}
			manager := rapid.SampledFrom([]string{"kubelet", "controller", "kubectl"}).Draw(t, "manager")
			want := theirs.UpdateNoErrors(live.DeepCopyObject(), next.DeepCopyObject(), manager)
			got := m.UpdateNoErrors(live, next.DeepCopyObject(), manager)
			sameOwnership(t, fmt.Sprintf("step %d", n), next, got, want)
			live = got
		}
	})
}

// Reports of one kind are asked about once, whatever they say, whatever IP a pod has and who owns it: the first of a pod,
// the next that changes the same of it, one that changes nothing.
func TestAnUpdateIsAskedAboutOnce(t *testing.T) {
	m, upstream, codec := managerOfPods(t)
	theirs := upstream.Upstream
	ready := func(p *corev1.Pod, status corev1.ConditionStatus, message string) {
		for i := range p.Status.Conditions {
			if p.Status.Conditions[i].Type == corev1.PodReady {
				p.Status.Conditions[i].Status, p.Status.Conditions[i].Message = status, message
				return
			}
		}
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: status, Message: message})
	}
	steps := []func(*corev1.Pod, int){
		func(p *corev1.Pod, i int) { ready(p, corev1.ConditionFalse, fmt.Sprint("starting ", i)) },
		func(p *corev1.Pod, i int) { ready(p, corev1.ConditionFalse, fmt.Sprint("still starting ", i)) },
		func(p *corev1.Pod, i int) {
			p.Status.Conditions = append([]corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}}, p.Status.Conditions...)
			p.Status.PodIP = fmt.Sprint("10.0.0.", i)
			p.Status.PodIPs = []corev1.PodIP{{IP: p.Status.PodIP}}
		},
		func(*corev1.Pod, int) {},
		func(p *corev1.Pod, i int) {
			p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: fmt.Sprint("fd00::", i)})
		},
		func(p *corev1.Pod, i int) { p.Status.PodIPs[0].IP = fmt.Sprint("10.0.1.", i) },
		func(p *corev1.Pod, i int) { ready(p, corev1.ConditionTrue, ""); p.Labels["app"] = fmt.Sprint("web", i) },
		func(p *corev1.Pod, i int) {
			p.Status.Conditions, p.Labels["i"] = p.Status.Conditions[:1], fmt.Sprint(i)
		},
	}
	for i := range 3 {
		o, err := codec.Decode([]byte(podJSON), object.JSON)
		if err != nil {
			t.Fatal(err)
		}
		pod := o.(*corev1.Pod)
		pod.Name, pod.UID = fmt.Sprint("p", i), types.UID(fmt.Sprint("uid-", i))
		pod.OwnerReferences[0].UID = types.UID(fmt.Sprintf("00000000-1111-2222-3333-%012d", i))
		live := m.Create(pod, "controller")
		upstream.calls = 0
		for n, step := range steps {
			next := live.DeepCopyObject().(*corev1.Pod)
			step(next, i)
			want := theirs.UpdateNoErrors(live.DeepCopyObject(), next.DeepCopyObject(), "kubelet")
			got := m.UpdateNoErrors(live, next.DeepCopyObject(), "kubelet")
			sameOwnership(t, fmt.Sprintf("pod %d, step %d", i, n), next, got, want)
			live = got
		}
		if want := []int{len(steps), 0, 0}[i]; upstream.calls != want {
			t.Errorf("pod %d: upstream was asked %d times, want %d", i, upstream.calls, want)
		}
		for _, change := range []func([]metav1.ManagedFieldsEntry) []metav1.ManagedFieldsEntry{
			func(e []metav1.ManagedFieldsEntry) []metav1.ManagedFieldsEntry { return e[:1] },
			func([]metav1.ManagedFieldsEntry) []metav1.ManagedFieldsEntry { return []metav1.ManagedFieldsEntry{} },
			func([]metav1.ManagedFieldsEntry) []metav1.ManagedFieldsEntry { return nil },
			func(e []metav1.ManagedFieldsEntry) []metav1.ManagedFieldsEntry { e[0].Manager = "thief"; return e },
		} {
			next := live.DeepCopyObject().(*corev1.Pod)
			next.ManagedFields = change(next.ManagedFields)
			want := theirs.UpdateNoErrors(live.DeepCopyObject(), next.DeepCopyObject(), "kubelet")
			sameOwnership(t, "managed fields by hand", next, m.UpdateNoErrors(live, next.DeepCopyObject(), "kubelet"), want)
		}
	}
}
