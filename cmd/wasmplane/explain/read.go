// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"

	"github.com/wasmplane/wasmplane/cmd/wasmplane/wire"
	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/trace"
	"github.com/wasmplane/wasmplane/core/trace/journey"
	"github.com/wasmplane/wasmplane/core/why"
)

// reader reads a cluster as far as the user may.
type reader struct {
	ctx    context.Context //nolint:containedctx // a reader lives for one command
	set    *client.Set
	unread []string
	err    error
}

// list reads one kind into a slice of the last argument's type. What the user may not read
// is left out, and said.
func list[T any, L runtime.Object](r *reader, what string, from func(context.Context, metav1.ListOptions) (L, error), _ []*T) []*T {
	if r.err != nil {
		return nil
	}
	found, err := from(r.ctx, metav1.ListOptions{})
	switch {
	case apierrors.IsForbidden(err):
		r.unread = append(r.unread, "what "+what+" there are: you may not list them")
		return nil
	case err != nil:
		r.err = fmt.Errorf("list %s: %w", what, err)
		return nil
	}
	var out []*T
	r.err = meta.EachListItem(found, func(o runtime.Object) error {
		if one, ok := o.(any).(*T); ok {
			out = append(out, one)
		}
		return nil
	})
	return out
}

// cluster reads what the question is about.
func (r *reader) cluster(kind, namespace, name string) (*why.Cluster, error) {
	kube := r.set.Kube
	core, apps, storage := kube.CoreV1(), kube.AppsV1(), kube.StorageV1()
	c := &why.Cluster{Now: time.Now()}
	c.Nodes = list(r, "nodes", core.Nodes().List, c.Nodes)
	if kind == "node" {
		c.Unread = r.unread
		return c, r.err
	}
	c.Namespaces = list(r, "namespaces", core.Namespaces().List, c.Namespaces)
	if kind == "namespace" {
		c.Held = r.held(c.Namespaces, name)
		c.Unread = r.unread
		return c, r.err
	}
	c.Pods = list(r, "pods of all namespaces", core.Pods(metav1.NamespaceAll).List, c.Pods)
	if c.Partial = len(r.unread) > 0; c.Partial {
		c.Pods = list(r, "pods", core.Pods(namespace).List, c.Pods)
	}
	c.Claims = list(r, "claims", core.PersistentVolumeClaims(namespace).List, c.Claims)
	c.Volumes = list(r, "volumes", core.PersistentVolumes().List, c.Volumes)
	c.Classes = list(r, "storage classes", storage.StorageClasses().List, c.Classes)
	c.Drivers = list(r, "CSI drivers", storage.CSIDrivers().List, c.Drivers)
	c.DriverNodes = list(r, "drivers of nodes", storage.CSINodes().List, c.DriverNodes)
	c.Room = list(r, "storage capacities", storage.CSIStorageCapacities(metav1.NamespaceAll).List, c.Room)
	devices := kube.ResourceV1()
	c.DeviceClaims = list(r, "resource claims", devices.ResourceClaims(metav1.NamespaceAll).List, c.DeviceClaims)
	c.DeviceTemplates = list(r, "resource claim templates", devices.ResourceClaimTemplates(namespace).List, c.DeviceTemplates)
	c.DeviceClasses = list(r, "device classes", devices.DeviceClasses().List, c.DeviceClasses)
	c.DeviceSlices = list(r, "resource slices", devices.ResourceSlices().List, c.DeviceSlices)
	c.DeviceTaints = list(r, "device taint rules", devices.DeviceTaintRules().List, c.DeviceTaints)
	c.Services = list(r, "services", core.Services(namespace).List, c.Services)
	c.Slices = list(r, "endpoint slices", kube.DiscoveryV1().EndpointSlices(namespace).List, c.Slices)
	c.Deployments = list(r, "deployments", apps.Deployments(namespace).List, c.Deployments)
	c.ReplicaSets = list(r, "replica sets", apps.ReplicaSets(namespace).List, c.ReplicaSets)
	c.StatefulSets = list(r, "stateful sets", apps.StatefulSets(namespace).List, c.StatefulSets)
	c.DaemonSets = list(r, "daemon sets", apps.DaemonSets(namespace).List, c.DaemonSets)
	c.Jobs = list(r, "jobs", kube.BatchV1().Jobs(namespace).List, c.Jobs)
	c.Controllers = list(r, "replication controllers", core.ReplicationControllers(namespace).List, c.Controllers)
	c.Budgets = list(r, "disruption budgets", kube.PolicyV1().PodDisruptionBudgets(namespace).List, c.Budgets)
	c.Policies = list(r, "network policies", kube.NetworkingV1().NetworkPolicies(namespace).List, c.Policies)
	c.Groups = r.groups(kind, namespace)
	c.Events = list(r, "events", core.Events(namespace).List, c.Events)
	c.Unread = r.unread
	return c, r.err
}

// groups are the pod groups of a namespace; a server without their feature has none.
func (r *reader) groups(kind, namespace string) []*schedulingv1beta1.PodGroup {
	from := r.set.Kube.SchedulingV1beta1().PodGroups(namespace).List
	if _, err := from(r.ctx, metav1.ListOptions{Limit: 1}); apierrors.IsNotFound(err) {
		if kind == "podgroup" {
			r.unread = append(r.unread, "pod groups: the server has none without the feature gate GenericWorkload")
		}
		return nil
	}
	return list(r, "pod groups", from, []*schedulingv1beta1.PodGroup(nil))
}

// mostHeld bounds how many objects of one kind are looked at in a namespace that goes away.
const mostHeld = 500

// held finds the objects with finalizers in a namespace that is being deleted.
func (r *reader) held(all []*corev1.Namespace, name string) []why.Held {
	going := false
	for _, ns := range all {
		going = going || ns.Name == name && ns.DeletionTimestamp != nil
	}
	if !going || r.err != nil {
		return nil
	}
	kinds, err := discovery.ServerPreferredNamespacedResources(r.set.Kube.Discovery())
	if err != nil {
		r.unread = append(r.unread, "objects of some API groups: "+err.Error())
	}
	var out []why.Held
	for _, group := range discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list", "delete"}}, kinds) {
		gv, err := schema.ParseGroupVersion(group.GroupVersion)
		if err != nil {
			continue
		}
		for _, kind := range group.APIResources {
			found, err := r.set.Metadata.Resource(gv.WithResource(kind.Name)).Namespace(name).List(r.ctx, metav1.ListOptions{Limit: mostHeld})
			if err != nil {
				r.unread = append(r.unread, kind.Name+" of the namespace: "+err.Error())
				continue
			}
			for i := range found.Items {
				if o := &found.Items[i]; len(o.Finalizers) > 0 {
					out = append(out, why.Held{
						Resource: schema.GroupResource{Group: gv.Group, Resource: kind.Name}.String(), Name: o.Name,
						Finalizers: o.Finalizers,
					})
				}
			}
		}
	}
	return out
}

// leftOut is how a trace words a node's refusal: "node-1: Insufficient cpu [NodeResourcesFit]".
var leftOut = regexp.MustCompile(`[^:;]+: ([^\[\];]+) \[([^\]]+)\]`)

// refusals are the reasons of a pod's refusals and the plugins that gave them, as the trace
// has them. Where there is no trace, there are none.
func refusals(ctx context.Context, kubeconfig, namespace, name string) map[string]string {
	found, err := wire.Journey(ctx, kubeconfig, trace.Query{Kind: "pod", Namespace: namespace, Name: name})
	if err != nil || found.Root == nil {
		return nil
	}
	out := map[string]string{}
	var walk func([]*journey.Step)
	walk = func(steps []*journey.Step) {
		for _, s := range steps {
			for _, text := range []string{s.Attrs[string(trace.NodesKey)], s.Summary} {
				_, text, _ = strings.Cut(text, "left out: ")
				for _, m := range leftOut.FindAllStringSubmatch(text, -1) {
					out[m[1]] = m[2]
				}
			}
			walk(s.Steps)
		}
	}
	walk(found.Root.Steps)
	return out
}
