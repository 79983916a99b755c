// SPDX-License-Identifier: Apache-2.0

// Package reservation says what of a machine pods do not get: what is kept for Kubernetes' own
// processes and for the system's (upstream's kubeReserved and systemReserved), and what stays
// free by the hard limits of evictions. It computes; nothing of the machine is read or changed here.
package reservation

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// PID is the resource of process IDs, by upstream's name. No pod asks for it.
const PID corev1.ResourceName = "pid"

// Enforcement of the bound of all pods together, by upstream's names.
const (
	Pods = "pods"
	None = "none"
)

// Settings of a node, as upstream's KubeletConfiguration has them.
type Settings struct {
	// Kube and System are amounts by resource: cpu, memory, ephemeral-storage, pid.
	Kube, System map[string]string
	// CPUs that nobody has alone (reservedSystemCPUs): where there are some, they are what is kept of
	// the processors, whatever Kube and System say.
	CPUs int64
	// NUMA is what the memory manager keeps of NUMA nodes (reservedMemory), by kind. It is a part of
	// what Kube, System and the limit of evictions keep, and not one more.
	NUMA corev1.ResourceList
	// Enforce has pods: the pods' parent cgroup is bounded. It may be none, or empty.
	Enforce []string
}

// Reserved are Settings that have been read.
type Reserved struct {
	list, numa corev1.ResourceList
	// Enforced: all pods together are bounded by what is not reserved.
	Enforced bool
}

// SettingError is what is wrong with one of the Settings.
type SettingError struct {
	// Setting by upstream's name, with the resource if one is named: kubeReserved.cpu.
	Setting string
	Err     error
}

func (e *SettingError) Error() string { return e.Setting + ": " + e.Err.Error() }

func (e *SettingError) Unwrap() error { return e.Err }

// Read the settings. What is wrong is a SettingError.
func (s *Settings) Read() (Reserved, error) {
	r := Reserved{list: corev1.ResourceList{}, numa: s.NUMA}
	for _, part := range []struct {
		setting string
		amounts map[string]string
	}{{"kubeReserved", s.Kube}, {"systemReserved", s.System}} {
		if err := r.add(part.setting, part.amounts); err != nil {
			return r, err
		}
	}
	if s.CPUs > 0 {
		r.list[corev1.ResourceCPU] = *resource.NewQuantity(s.CPUs, resource.DecimalSI)
	}
	for _, what := range s.Enforce {
		switch what {
		case Pods:
			r.Enforced = true
		case None:
			if len(s.Enforce) > 1 {
				return r, &SettingError{"enforceNodeAllocatable", fmt.Errorf("expected none alone, or pods, found %q", s.Enforce)}
			}
		default:
			return r, &SettingError{"enforceNodeAllocatable", fmt.Errorf("expected [pods] or [none], found %q", what)}
		}
	}
	return r, nil
}

func (r *Reserved) add(setting string, amounts map[string]string) error {
	known := []string{string(corev1.ResourceCPU), string(corev1.ResourceEphemeralStorage), string(corev1.ResourceMemory), string(PID)}
	for _, name := range slices.Sorted(maps.Keys(amounts)) {
		if !slices.Contains(known, name) {
			return &SettingError{setting, fmt.Errorf("unknown resource %q: expected one of %s", name, strings.Join(known, ", "))}
		}
		q, err := resource.ParseQuantity(amounts[name])
		if err != nil || q.Sign() < 0 {
			return &SettingError{setting + "." + name, fmt.Errorf("expected an amount such as 200m or 1Gi, found %q", amounts[name])}
		}
		sum := r.list[corev1.ResourceName(name)]
		sum.Add(q)
		r.list[corev1.ResourceName(name)] = sum
	}
	return nil
}

// held of one resource, where evictions keep free as much as evict says.
func (r Reserved) held(name corev1.ResourceName, evict corev1.ResourceList) resource.Quantity {
	numa := r.numa[name]
	sum, ok := r.list[name]
	if !ok {
		sum = numa
	}
	sum = sum.DeepCopy()
	sum.Add(evict[name])
	if sum.Cmp(numa) < 0 {
		return numa.DeepCopy()
	}
	return sum
}

// Allocatable is what pods may ask for of capacity, where evictions keep free as much as evict says.
func (r Reserved) Allocatable(capacity, evict corev1.ResourceList) corev1.ResourceList {
	out := corev1.ResourceList{}
	for name, q := range capacity {
		out[name] = less(q, r.held(name, evict))
	}
	return out
}

func less(q, by resource.Quantity) resource.Quantity {
	q = q.DeepCopy()
	q.Sub(by)
	if q.Sign() < 0 {
		return resource.Quantity{Format: q.Format}
	}
	return q
}

// Check that the machine has what is reserved.
func (r Reserved) Check(capacity, evict corev1.ResourceList) error {
	for _, name := range slices.Sorted(maps.Keys(r.list)) {
		there, ok := capacity[name]
		if held := r.held(name, evict); ok && held.Cmp(there) > 0 {
			free := evict[name]
			return fmt.Errorf("node.kubeReserved and node.systemReserved keep, with the %s of evictionHard, %s of %s, "+
				"and the machine has %s; reserve less", free.String(), held.String(), name, there.String())
		}
	}
	return nil
}

// Bound is what all pods together may take of capacity: all that is not reserved. What evictions keep
// free is in it, so that pods are evicted before the kernel ends them.
func (r Reserved) Bound(capacity corev1.ResourceList) corev1.ResourceList {
	out := corev1.ResourceList{}
	for name, q := range capacity {
		if r.Enforced {
			q = less(q, r.list[name])
		}
		out[name] = q
	}
	return out
}
