// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"encoding/json"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

// mostAnswers that are kept, of all claims together. One takes up to a few KB.
const mostAnswers = 1 << 14

// answers are what was found on nodes, by what claims ask for. The pods of one Deployment ask for the same, and from
// one pod to the next little changes on one node: looking for devices on hundreds of nodes anew would be most of
// a scheduler's work.
type answers struct {
	mu     sync.Mutex
	clock  int
	count  int
	offers *offers // that all were found in
	all    map[string]*kept
}

func newAnswers() *answers { return &answers{all: map[string]*kept{}} }

// kept are the answers for claims that ask for the same, of the same classes.
type kept struct {
	in      *answers
	what    string
	used    int
	classes []*resourcev1.DeviceClass
	nodes   map[string]*answer
}

// answer is what was found on a node. It holds for as long as the node is the same object, and what is taken
// of the devices that it can use.
type answer struct {
	node    *corev1.Node
	taken   uint64
	results []resourcev1.AllocationResult
	refusal *framework.Status // nil = there are devices for all
}

// of is what is kept for claims; what was found in other offers, or for classes that have changed, is forgotten.
func (a *answers) of(what string, o *offers, classes []*resourcev1.DeviceClass) *kept {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.clock++
	if a.offers != o {
		a.offers, a.count = o, 0
		clear(a.all)
	}
	k := a.all[what]
	if k != nil && !slices.Equal(k.classes, classes) {
		a.forget(what)
		k = nil
	}
	if k == nil {
		k = &kept{in: a, what: what, classes: classes, nodes: map[string]*answer{}}
		a.all[what] = k
	}
	k.used = a.clock
	return k
}

func (a *answers) forget(what string) {
	a.count -= len(a.all[what].nodes)
	delete(a.all, what)
}

// of is the answer for a node where it holds still.
func (k *kept) of(n *corev1.Node, taken uint64) (*answer, bool) {
	k.in.mu.Lock()
	defer k.in.mu.Unlock()
	one := k.nodes[n.Name]
	return one, one != nil && one.node == n && one.taken == taken
}

// put keeps an answer. One with shares of devices is for one pod alone: each share has a name of its own.
func (k *kept) put(one *answer) {
	shared := func(r resourcev1.DeviceRequestAllocationResult) bool { return r.ShareID != nil }
	for i := range one.results {
		if slices.ContainsFunc(one.results[i].Devices.Results, shared) {
			return
		}
	}
	a := k.in
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.all[k.what] != k { // it was forgotten in the meantime
		return
	}
	if k.nodes[one.node.Name] == nil {
		a.makeRoom(k)
		a.count++
	}
	k.nodes[one.node.Name] = one
}

// makeRoom for one more answer of those that are kept last.
func (a *answers) makeRoom(last *kept) {
	for a.count >= mostAnswers {
		oldest, least := "", a.clock+1
		for what, k := range a.all {
			if k != last && k.used < least {
				oldest, least = what, k.used
			}
		}
		if oldest == "" { // they are all of these claims
			a.count -= len(last.nodes)
			clear(last.nodes)
			return
		}
		a.forget(oldest)
	}
}

// asked is what a pod asks for on nodes that have the same of its extended resources by device plugins.
type asked struct {
	open     []*wanted
	claims   []*resourcev1.ResourceClaim
	extended *resourcev1.ResourceClaim
	mappings []corev1.ContainerExtendedResourceRequest
	kept     *kept
}

// ask is what the pod asks for on a node.
func (c *cycle) ask(l *Ledger, p *corev1.Pod, n *framework.NodeInfo) *asked {
	var resources []corev1.ResourceName
	key := ""
	if len(c.resources) > 0 {
		resources = lacking(c.resources, n)
		for _, name := range resources {
			key += string(name) + " "
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	a := c.asked[key]
	if a != nil {
		return a
	}
	a = &asked{}
	for _, w := range c.claims {
		claim := w.claim
		switch {
		case !w.open():
			continue
		case w.extended:
			if claim, a.mappings = l.requesting(claim, p, resources); claim == nil {
				continue // the node has them by a device plugin
			}
			a.extended = claim
		}
		a.open, a.claims = append(a.open, w), append(a.claims, claim)
	}
	if len(a.open) > 0 {
		a.kept = l.answers.of(c.signature(l, a.claims))
	}
	c.asked[key] = a
	return a
}

// signature is what claims ask for, as text, and the classes that they name, nil for those that are not there.
func (c *cycle) signature(l *Ledger, claims []*resourcev1.ResourceClaim) (string, *offers, []*resourcev1.DeviceClass) {
	var text strings.Builder
	var classes []*resourcev1.DeviceClass
	class := func(name string) {
		one, err := l.Get(name)
		if err != nil {
			one = nil
		}
		classes = append(classes, one)
	}
	into := json.NewEncoder(&text)
	for _, claim := range claims {
		_ = into.Encode(&claim.Spec) // what came from JSON can be written as such
		for i := range claim.Spec.Devices.Requests {
			r := &claim.Spec.Devices.Requests[i]
			if r.Exactly != nil {
				class(r.Exactly.DeviceClassName)
			}
			for j := range r.FirstAvailable {
				class(r.FirstAvailable[j].DeviceClassName)
			}
		}
	}
	return text.String(), c.offers, classes
}
