// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Health of the devices that a container has, as its status shows it: an entry for each resource.
func (m *Manager) Health(p *corev1.Pod, container string) (out []corev1.ResourceStatus) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.given {
		if e.Key.Pod != p.UID || e.Key.Container != container {
			continue
		}
		one := corev1.ResourceStatus{Name: corev1.ResourceName(e.Key.Resource)}
		for _, id := range slices.Sorted(slices.Values(e.Grant.IDs)) {
			one.Resources = append(one.Resources, corev1.ResourceHealth{ResourceID: corev1.ResourceID(id), Health: m.health(e.Key.Resource, id)})
		}
		out = append(out, one)
	}
	slices.SortFunc(out, func(a, b corev1.ResourceStatus) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// health of a device; unknown while its plugin is away, or when the plugin does not name it any more. Lock held.
func (m *Manager) health(resource, id string) corev1.ResourceHealthStatus {
	p := m.resources[resource]
	if p == nil || !p.gone.IsZero() {
		return corev1.ResourceHealthStatusUnknown
	}
	switch d, ok := p.devices[id]; {
	case !ok:
		return corev1.ResourceHealthStatusUnknown
	case d.healthy:
		return corev1.ResourceHealthStatusHealthy
	}
	return corev1.ResourceHealthStatusUnhealthy
}

// change does what changes the health of devices of a resource, and notes the pods that have such. Lock held.
func (m *Manager) change(resource string, do func()) {
	before := map[string]corev1.ResourceHealthStatus{}
	for _, e := range m.given {
		if e.Key.Resource == resource {
			for _, id := range e.Grant.IDs {
				before[id] = m.health(resource, id)
			}
		}
	}
	do()
	other := func(id string) bool { return before[id] != m.health(resource, id) }
	for _, e := range m.given {
		if e.Key.Resource == resource && slices.ContainsFunc(e.Grant.IDs, other) {
			m.affected[e.Key.Pod] = true
		}
	}
	if len(m.affected) > 0 {
		select {
		case m.healthChanged <- struct{}{}:
		default:
		}
	}
}

// HealthChanged has an element when devices of pods are another way than before.
func (m *Manager) HealthChanged() <-chan struct{} { return m.healthChanged }

// Affected are the pods whose devices have changed since it was asked last.
func (m *Manager) Affected() []types.UID {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := slices.Collect(maps.Keys(m.affected))
	clear(m.affected)
	return out
}
