// SPDX-License-Identifier: Apache-2.0

package devices_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/core/scheduler/native/devices"
)

// What was found on a node for one pod holds for the next one that asks for the same, until something changes that
// it depends on.
func TestDevicesAreLookedForWhereSomethingChanged(t *testing.T) {
	w := newWorld(t, class("gpu"), class("nic"), slice("a", device("0"), device("1")), slice("b", device("0"), device("1")),
		slice("c", device("0"), device("1")))
	nodes := []*framework.NodeInfo{node("a"), node("b"), node("c")}
	pods := 0
	// after looks for devices for a further pod, and says on how many nodes they were looked for.
	after := func(what string, want int, requests ...resourcev1.DeviceRequest) *framework.State {
		t.Helper()
		pods++
		name := fmt.Sprint("p", pods)
		w.put(claim(name, requests...))
		before := w.ledger.Searches()
		s, left, why := w.fits(podWith(name, name), nodes...)
		if got := w.ledger.Searches() - before; got != want || len(left) != 3 {
			t.Errorf("%s: looked for on %d nodes, want %d; left %v, %s", what, got, want, left, why)
		}
		return s
	}
	one := exactly("r", "gpu")
	s := after("the first pod", 3, one)
	if st := w.plugin.Reserve(t.Context(), s, podWith("p1", "p1"), "b"); !st.IsSuccess() {
		t.Fatal(st.Reasons)
	}
	after("a device of b is taken", 1, one)
	after("nothing", 0, one)
	after("it asks for another class", 3, exactly("r", "nic"))
	after("it asks for what the first did", 0, one)
	w.plugin.Unreserve(t.Context(), s, podWith("p1", "p1"), "b")
	after("b's device is free again", 1, one)
	nodes[2] = node("c", func(n *corev1.Node) { n.Labels["new"] = "yes" })
	after("the node c changed", 1, one)
	w.put(class("gpu"))
	after("the class changed", 3, one)
	w.put(slice("c", device("0"), device("1"), device("2")))
	after("a slice changed", 3, one)
	w.put(&resourcev1.DeviceTaintRule{})
	after("a rule came", 3, one)
	w.put(given(claim("other"), "a", "1"))
	after("somebody else has a device of a", 1, one)
	divisible := device("nic", func(d *resourcev1.Device) {
		d.AllowMultipleAllocations = new(true)
		d.Capacity = map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{"bandwidth": {Value: resource.MustParse("10")}}
	})
	w.put(slice("a", divisible), slice("b", divisible), slice("c", divisible))
	after("devices that are shared", 3, one)
	after("each share has a name of its own", 3, one)
}

// With what is kept, a pod gets what it would get without.
func TestWhatIsKeptIsWhatWouldBeFound(t *testing.T) {
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 0))
		objects := []runtime.Object{class("gpu"), class("nic")}
		var nodes []*framework.NodeInfo
		for i := range 6 {
			name := fmt.Sprint("n", i)
			nodes = append(nodes, node(name))
			if i > 0 { // one has none of its own
				objects = append(objects, devicesOf(r, name))
			}
		}
		everywhere := slice("", device("0"), device("1"))
		everywhere.Spec.NodeName, everywhere.Spec.AllNodes, everywhere.Spec.Pool.Name = nil, new(true), "net"
		w := newWorld(t, append(objects, everywhere)...)
		var states []*framework.State
		for step := range 60 {
			name := fmt.Sprint("p", step)
			switch r.IntN(8) {
			case 0:
				w.put(devicesOf(r, fmt.Sprint("n", 1+r.IntN(5))))
			case 1:
				if len(states) > 0 {
					at := r.IntN(len(states))
					w.plugin.Unreserve(t.Context(), states[at], podWith(fmt.Sprint("p", at)), "")
				}
			}
			w.put(claim(name, exactly("r", []string{"gpu", "nic"}[r.IntN(2)], count(int64(1+r.IntN(2))))))
			p := podWith(name, name)
			s, left, why := w.fits(p, nodes...)
			answers := devices.Remembered(w.ledger)
			w.ledger.Forget()
			fresh, freshLeft, freshWhy := w.fits(p, nodes...)
			answers()
			if !reflect.DeepEqual(left, freshLeft) || why != freshWhy {
				t.Fatalf("seed %d, step %d: left %v (%s), without what is kept %v (%s)", seed, step, left, why, freshLeft, freshWhy)
			}
			for _, n := range left {
				if got, want := devices.Found(s, n), devices.Found(fresh, n); !reflect.DeepEqual(got, want) {
					t.Fatalf("seed %d, step %d, node %s: %v, without what is kept %v", seed, step, n, got, want)
				}
			}
			states = append(states, s)
			if len(left) > 0 {
				if st := w.plugin.Reserve(t.Context(), s, p, left[r.IntN(len(left))]); !st.IsSuccess() {
					t.Fatal(st.Reasons)
				}
			}
		}
	}
}

// devicesOf a node are up to four.
func devicesOf(r *rand.Rand, node string) *resourcev1.ResourceSlice {
	var all []resourcev1.Device
	for i := range r.IntN(5) {
		all = append(all, device(fmt.Sprint(i)))
	}
	return slice(node, all...)
}

// However much is asked for, what is kept is bounded.
func TestAnswersAreBounded(t *testing.T) {
	w := newWorld(t, class("gpu"))
	var nodes []*framework.NodeInfo
	for i := range devices.MostAnswers / 4 {
		nodes = append(nodes, node(fmt.Sprint("n", i)))
	}
	for i := range 6 {
		name := fmt.Sprint("p", i)
		w.put(claim(name, exactly("r", "gpu", count(int64(i+1)))))
		w.fits(podWith(name, name), nodes...)
		if got, want := w.ledger.Answers(), min(i+1, 4)*len(nodes); got != want {
			t.Fatalf("%d are kept after %d kinds of claims, want %d", got, i+1, want)
		}
	}
	more := nodes
	for i := range devices.MostAnswers {
		more = append(more, node(fmt.Sprint("m", i)))
	}
	w.put(claim("p", exactly("r", "gpu")))
	w.fits(podWith("p", "p"), more...)
	if got := w.ledger.Answers(); got <= 0 || got > devices.MostAnswers {
		t.Errorf("%d are kept, at most %d may be", got, devices.MostAnswers)
	}
}
