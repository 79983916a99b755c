// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
)

// notYet is the name of a claim for extended resources that is not made yet.
const notYet = "<extended-resources>"

// forResources is the claim for a pod's extended resources: the one that was made in an
// earlier try, or one to be made.
func (l *Ledger) forResources(p *corev1.Pod, now time.Time) *resourcev1.ResourceClaim {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.all(now) {
		if c.Namespace == p.Namespace && c.Annotations[resourcev1.ExtendedResourceClaimAnnotation] == "true" && metav1.IsControlledBy(c, p) {
			return c
		}
	}
	yes := true
	return &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: p.Namespace, Name: notYet, UID: notYet + p.UID, GenerateName: p.Name + "-extended-resources-",
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: p.Name, UID: p.UID, Controller: &yes}},
		Annotations:     map[string]string{resourcev1.ExtendedResourceClaimAnnotation: "true"},
	}}
}

// lacking are those of a pod's extended resources that a node does not have by a device plugin.
func lacking(resources []corev1.ResourceName, n *framework.NodeInfo) []corev1.ResourceName {
	var out []corev1.ResourceName
	for _, name := range resources {
		if n.Allocatable.Scalar[name] == 0 {
			out = append(out, name)
		}
	}
	return out
}

// requesting is the claim with requests for extended resources, and which containers they are for; nil where there are none.
func (l *Ledger) requesting(c *resourcev1.ResourceClaim, p *corev1.Pod, resources []corev1.ResourceName,
) (*resourcev1.ResourceClaim, []corev1.ContainerExtendedResourceRequest) {
	var requests []resourcev1.DeviceRequest
	var mappings []corev1.ContainerExtendedResourceRequest
	for _, name := range resources {
		r := split{pod: p, resource: name, class: l.ClassOf(name)}
		r.lasting()
		r.passing()
		requests, mappings = append(requests, r.requests...), append(mappings, r.mappings...)
	}
	if len(requests) == 0 {
		return nil, nil
	}
	slices.SortFunc(requests, func(a, b resourcev1.DeviceRequest) int { return strings.Compare(a.Name, b.Name) })
	made := c.DeepCopy()
	made.Spec.Devices.Requests = requests
	return made, mappings
}

// split makes the requests for one extended resource. Containers that run together have one
// each. One that ends before others begin uses what those will have, and what it needs
// beyond is one more request, that all of its kind share.
type split struct {
	pod      *corev1.Pod
	resource corev1.ResourceName
	class    string

	own      map[int]int64 // by container, what its own request asks for
	requests []resourcev1.DeviceRequest
	mappings []corev1.ContainerExtendedResourceRequest
}

// containers are all, with those that come first.
func (r *split) containers() []corev1.Container {
	return slices.Concat(r.pod.Spec.InitContainers, r.pod.Spec.Containers)
}

// ends says whether a container ends before the pod's containers begin.
func (r *split) ends(i int) bool {
	if i >= len(r.pod.Spec.InitContainers) {
		return false
	}
	policy := r.pod.Spec.InitContainers[i].RestartPolicy
	return policy == nil || *policy != corev1.ContainerRestartPolicyAlways
}

func (r *split) amount(c *corev1.Container) int64 {
	q := c.Resources.Requests[r.resource]
	return q.Value()
}

// lasting are the requests of containers that go on running.
func (r *split) lasting() {
	r.own = map[int]int64{}
	containers := r.containers()
	for i := range containers {
		if count := r.amount(&containers[i]); count > 0 && !r.ends(i) {
			r.own[i] = count
			r.requests = append(r.requests, r.request(i, &containers[i], count))
			r.use(&containers[i], r.name(i, &containers[i]))
		}
	}
}

// passing is the request for what containers that end need beyond.
func (r *split) passing() {
	containers := r.containers()
	var most resourcev1.DeviceRequest
	var beyond []int
	for i := range r.pod.Spec.InitContainers {
		need := r.amount(&containers[i])
		if need == 0 || !r.ends(i) {
			continue
		}
		for later := i; later < len(containers) && need > 0; later++ {
			if r.own[later] > 0 {
				r.use(&containers[i], r.name(later, &containers[later]))
				need -= r.own[later]
			}
		}
		if need <= 0 {
			continue
		}
		beyond = append(beyond, i)
		if most.Exactly == nil || most.Exactly.Count < need {
			most = r.request(i, &containers[i], need)
		}
	}
	if len(beyond) == 0 {
		return
	}
	r.requests = append(r.requests, most)
	for _, i := range beyond {
		r.use(&containers[i], most.Name)
	}
}

// name of a container's request, by its place and that of the resource among what it asks for.
func (r *split) name(i int, c *corev1.Container) string {
	names := slices.Sorted(maps.Keys(c.Resources.Requests))
	return fmt.Sprintf("container-%d-request-%d", i, slices.Index(names, r.resource))
}

func (r *split) request(i int, c *corev1.Container, count int64) resourcev1.DeviceRequest {
	return resourcev1.DeviceRequest{Name: r.name(i, c), Exactly: &resourcev1.ExactDeviceRequest{
		DeviceClassName: r.class, AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: count,
	}}
}

func (r *split) use(c *corev1.Container, request string) {
	r.mappings = append(r.mappings, corev1.ContainerExtendedResourceRequest{
		ContainerName: c.Name, ResourceName: string(r.resource), RequestName: request,
	})
}
