// SPDX-License-Identifier: Apache-2.0

package pinning

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/utils/cpuset"

	"github.com/wasmplane/wasmplane/core/kubelet/allot"
	"github.com/wasmplane/wasmplane/core/kubelet/deviceplugin"
	"github.com/wasmplane/wasmplane/core/kubelet/pod"
	"github.com/wasmplane/wasmplane/core/kubelet/status"
)

// turn is the admission of one pod.
type turn struct {
	*Manager
	pod *corev1.Pod
	// reusable CPUs are those of init containers that end before the next container begins.
	reusable cpuset.CPUSet
	// whole is where all of the pod goes, once that is decided.
	whole *allot.Nodes
}

// near decides on which nodes a container goes, and gives it CPUs and memory there.
func (t *turn) near(c *corev1.Container, devices, ofPod []allot.Hints) (allot.Nodes, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	have := t.of(t.pod.UID, c.Name)
	nodes, err := t.place(c, have, devices, ofPod)
	if err != nil {
		return 0, err
	}
	if have != nil { // a kubelet before this one gave it
		t.reuse(c, have.cpus())
		return nodes, nil
	}
	g := Given{Pod: t.pod.UID, Container: c.Name}
	if n, err := t.cpus(c); err != nil {
		return 0, err
	} else if n > 0 {
		free := t.assignable().Difference(t.taken()).Union(t.reusable)
		set, err := t.cfg.Machine.Take(free, n, nodes, t.cfg.Options)
		if err != nil {
			return 0, deviceplugin.Refuse("UnexpectedAdmissionError", "Allocate failed due to %v, which is unexpected", err)
		}
		g.CPUs = set.String()
		t.reuse(c, set)
	}
	if g.Memory, err = t.ledger("").Take(t.memory(c.Resources.Requests), nodes); err != nil {
		return 0, deviceplugin.Refuse("UnexpectedAdmissionError", "Allocate failed due to %v, which is unexpected", err)
	}
	if g.CPUs == "" && len(g.Memory) == 0 {
		return nodes, nil
	}
	t.given = append(t.given, g)
	if err := t.save(); err != nil {
		return 0, err
	}
	t.kick()
	return nodes, nil
}

// reuse keeps account of the CPUs that a later container may have again.
func (t *turn) reuse(c *corev1.Container, set cpuset.CPUSet) {
	if ends(t.pod, c) {
		t.reusable = t.reusable.Union(set)
	} else {
		t.reusable = t.reusable.Difference(set)
	}
}

// place decides on which nodes a container goes; 0 is any.
func (t *turn) place(c *corev1.Container, have *Given, devices, ofPod []allot.Hints) (allot.Nodes, error) {
	if t.cfg.Policy == allot.AnyNodes || t.cfg.Policy == "" {
		return 0, nil
	}
	if t.whole != nil {
		return *t.whole, nil
	}
	var hints []allot.Hints
	switch {
	case t.cfg.PodScope:
		whole := resourcehelper.PodRequests(t.pod, resourcehelper.PodResourcesOptions{ExcludeOverhead: true})
		before := t.before()
		hints = slices.Concat(ofPod, t.where(before), t.room(t.podCPUs(), t.memory(whole), before))
	case have != nil:
		hints = slices.Concat(devices, t.where([]Given{*have}))
	default:
		n, err := t.cpus(c)
		if err != nil {
			return 0, err
		}
		hints = slices.Concat(devices, t.room(n, t.memory(c.Resources.Requests), nil))
	}
	best, admit := allot.Merge(t.cfg.Policy, t.nodes, hints)
	if !admit {
		return 0, deviceplugin.Refuse("TopologyAffinityError", "Resources cannot be allocated with Topology locality")
	}
	if t.cfg.PodScope {
		t.whole = &best.Nodes
	}
	return best.Nodes, nil
}

// before is what the pod's containers were given before this turn: by a kubelet that did not come to start them.
func (t *turn) before() (out []Given) {
	for i := range t.given {
		if t.given[i].Pod == t.pod.UID {
			out = append(out, t.given[i])
		}
	}
	return out
}

// where the CPUs and the memory are that were given.
func (t *turn) where(given []Given) (out []allot.Hints) {
	var cpus, memory allot.Nodes
	for i := range given {
		cpus |= t.cfg.Machine.NodesOfCPUs(given[i].cpus())
		for _, b := range given[i].Memory {
			memory |= b.Nodes
		}
	}
	for _, nodes := range []allot.Nodes{cpus, memory} {
		if nodes != 0 {
			out = append(out, allot.Hints{{Nodes: nodes, Preferred: true}})
		}
	}
	return out
}

// room is where so many CPUs and so much memory can be had, with what own has of them.
func (t *turn) room(n int, asked map[string]int64, own []Given) (out []allot.Hints) {
	var without types.UID
	if n > 0 {
		free := t.assignable().Difference(t.taken()).Union(t.reusable)
		for i := range own {
			free = free.Union(own[i].cpus())
		}
		out = append(out, t.cfg.Machine.CPUHints(n, t.assignable(), t.cfg.Machine.Usable(free, t.cfg.Options)))
	}
	if len(own) > 0 {
		without = t.pod.UID
	}
	return append(out, t.ledger(without).Hints(asked)...)
}

// ends says whether a container is over before the next one begins.
func ends(p *corev1.Pod, c *corev1.Container) bool {
	for i := range p.Spec.InitContainers {
		if p.Spec.InitContainers[i].Name == c.Name {
			return !pod.IsSidecar(&p.Spec.InitContainers[i])
		}
	}
	return false
}

// cpus that a container has alone: whole ones, of a pod that is guaranteed what it asks for.
func (t *turn) cpus(c *corev1.Container) (int, error) {
	q := c.Resources.Requests[corev1.ResourceCPU]
	if !t.cfg.CPUs || status.QOS(t.pod) != corev1.PodQOSGuaranteed || q.MilliValue()%1000 != 0 {
		return 0, nil
	}
	n := int(q.Value())
	if threads := t.cfg.Machine.ThreadsPerCore(); t.cfg.Options.FullCores && n%threads != 0 {
		return 0, deviceplugin.Refuse("SMTAlignmentError", "SMT Alignment Error: requested %d cpus not multiple cpus per core = %d", n, threads)
	}
	return n, nil
}

// podCPUs are the most that the pod's containers have alone at one time.
func (t *turn) podCPUs() int {
	sidecars, most, sum := 0, 0, 0
	for i := range t.pod.Spec.InitContainers {
		c := &t.pod.Spec.InitContainers[i]
		n, err := t.cpus(c)
		if err != nil {
			continue // its own turn tells
		}
		if pod.IsSidecar(c) {
			sidecars += n
			most = max(most, sidecars)
		} else {
			most = max(most, sidecars+n)
		}
	}
	for i := range t.pod.Spec.Containers {
		if n, err := t.cpus(&t.pod.Spec.Containers[i]); err == nil {
			sum += n
		}
	}
	return max(most, sidecars+sum)
}

// memory that is given by NUMA nodes, of what is asked for.
func (t *turn) memory(asked corev1.ResourceList) map[string]int64 {
	if !t.cfg.Memory || status.QOS(t.pod) != corev1.PodQOSGuaranteed {
		return nil
	}
	out := map[string]int64{}
	for name, q := range asked {
		if kind := string(name); (kind == "memory" || strings.HasPrefix(kind, "hugepages-")) && !q.IsZero() {
			out[kind] = q.Value()
		}
	}
	return out
}
