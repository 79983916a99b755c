// SPDX-License-Identifier: Apache-2.0

package whyapi

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/why"
)

// Bounds of what is read for one question.
const (
	pageSize  = 500
	pageBytes = 16 << 20 // about; the first page of a kind has firstPage objects, before anything is known of their size
	firstPage = 50
	// mostObjects of one kind. A cluster with more pods is answered by what its scheduler wrote.
	mostObjects = 100_000
	// mostBytes of all objects together, as they are stored: in memory they are a few times as much.
	mostBytes = 128 << 20
	// mostHeld bounds how many objects of one kind are looked at in a namespace that goes away.
	mostHeld = 500
	// mostSiblings bounds how many objects of a custom resource's kind are looked at.
	mostSiblings = 50
)

// reader reads a cluster as far as the user may.
type reader struct {
	ctx    context.Context //nolint:containedctx // a reader lives for one question
	set    *client.Set
	unread []string
	bytes  int
	err    error
}

// list reads one kind into a slice of the last argument's type. What the user may not read
// is left out, and said.
func list[T any, L runtime.Object](r *reader, what string, from func(context.Context, metav1.ListOptions) (L, error), _ []*T) (out []*T) {
	limit, before := int64(firstPage), r.bytes
	for next := ""; r.err == nil; {
		if r.bytes >= mostBytes {
			r.unread = append(r.unread, fmt.Sprintf("all %s: only %d were read, as one question reads %d MiB at most", what, len(out),
				mostBytes>>20))
			return out
		}
		found, err := from(r.ctx, metav1.ListOptions{Limit: limit, Continue: next})
		switch {
		case apierrors.IsForbidden(err):
			r.unread = append(r.unread, "what "+what+" there are: you may not list them")
			return nil
		case apierrors.IsNotFound(err):
			return nil // a server of another version, which has no such kind
		case err != nil:
			r.err = fmt.Errorf("list %s: %w", what, err)
			return nil
		}
		r.err = meta.EachListItem(found, func(o runtime.Object) error {
			if one, ok := o.(any).(*T); ok {
				if m, err := meta.Accessor(o); err == nil {
					m.SetManagedFields(nil) // half of an object, and of no use here
				}
				if sized, ok := o.(interface{ Size() int }); ok {
					r.bytes += sized.Size()
				}
				out = append(out, one)
			}
			return nil
		})
		page, err := meta.ListAccessor(found)
		if err != nil || page.GetContinue() == "" {
			return out
		}
		if next = page.GetContinue(); len(out) >= mostObjects {
			r.unread = append(r.unread, fmt.Sprintf("all %s: only the first %d were read", what, len(out)))
			return out
		}
		limit = max(1, min(pageSize, int64(pageBytes)*int64(len(out))/int64(max(1, r.bytes-before))))
	}
	return out
}

// cluster reads what the question is about.
func (r *reader) cluster(o *object) (*why.Cluster, error) {
	c := &why.Cluster{Now: time.Now()}
	r.particular(o, c)
	switch o.kind {
	case "node":
		r.node(o, c)
	case "namespace":
		c.Namespaces = list(r, "namespaces", r.set.Kube.CoreV1().Namespaces().List, c.Namespaces)
		c.Held = r.held(c.Namespaces, o.name)
	case why.Other:
		c.Events = list(r, "events", r.set.Kube.CoreV1().Events(eventsOf(o)).List, c.Events)
	default:
		r.workloads(o.around, c)
		r.volumes(o.around, c)
		r.devices(o.around, c)
		c.Groups = r.groups(o.kind, o.around)
	}
	c.Unread = r.unread
	return c, r.err
}

// eventsOf is where the events about an object are.
func eventsOf(o *object) string {
	if o.namespace == "" {
		return metav1.NamespaceDefault
	}
	return o.namespace
}

// node reads the nodes, and what happened to the one that is meant.
func (r *reader) node(o *object, c *why.Cluster) {
	core := r.set.Kube.CoreV1()
	c.Nodes = list(r, "nodes", core.Nodes().List, c.Nodes)
	c.Leases = list(r, "leases of nodes", r.set.Kube.CoordinationV1().Leases(corev1.NamespaceNodeLease).List, c.Leases)
	about := "involvedObject.kind=Node,involvedObject.name=" + o.name
	c.Events = list(r, "events", func(ctx context.Context, opts metav1.ListOptions) (*corev1.EventList, error) {
		opts.FieldSelector = about
		return core.Events(metav1.NamespaceDefault).List(ctx, opts)
	}, c.Events)
}

// particular reads what only questions about this kind need, first of all the object.
func (r *reader) particular(o *object, c *why.Cluster) {
	kube, in := r.set.Kube, o.around
	switch o.kind {
	case "horizontalpodautoscaler":
		c.Autoscalers = list(r, "autoscalers", kube.AutoscalingV2().HorizontalPodAutoscalers(in).List, c.Autoscalers)
		c.APIs = r.apis()
	case "ingress":
		c.Ingresses = list(r, "ingresses", kube.NetworkingV1().Ingresses(in).List, c.Ingresses)
		c.IngressClasses = list(r, "ingress classes", kube.NetworkingV1().IngressClasses().List, c.IngressClasses)
	case "cronjob":
		c.CronJobs = list(r, "cron jobs", kube.BatchV1().CronJobs(in).List, c.CronJobs)
	case "apiservice":
		c.APIs = r.apis()
		for _, a := range c.APIs {
			if a.Name == o.name && a.Spec.Service != nil {
				o.around = a.Spec.Service.Namespace
			}
		}
	case "customresourcedefinition":
		found := r.get(o)
		d := &apiextensionsv1.CustomResourceDefinition{}
		if found != nil && r.into(found, d) {
			c.Definitions = append(c.Definitions, d)
			if conv := d.Spec.Conversion; conv != nil && conv.Webhook != nil && conv.Webhook.ClientConfig != nil &&
				conv.Webhook.ClientConfig.Service != nil {
				o.around = conv.Webhook.ClientConfig.Service.Namespace
			}
		}
	case "clusternetworkpolicy":
		o.around = metav1.NamespaceDefault // where events about it are
		for _, found := range list(r, "cluster network policies", r.set.Dynamic.Resource(o.gvr).List, []*unstructured.Unstructured(nil)) {
			np := &policyv1alpha2.ClusterNetworkPolicy{}
			if r.into(found, np) {
				c.ClusterPolicies = append(c.ClusterPolicies, np)
			}
		}
	case "validatingwebhookconfiguration", "mutatingwebhookconfiguration":
		r.webhooks(o, c)
	case why.Other:
		c.Object, c.Definition = r.get(o), r.definition(o)
		c.Siblings = r.siblings(o)
	}
}

// get reads the object itself; nil = there is none.
func (r *reader) get(o *object) *unstructured.Unstructured {
	if r.err != nil {
		return nil
	}
	found, err := r.set.Dynamic.Resource(o.gvr).Namespace(o.namespace).Get(r.ctx, o.name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		r.err = fmt.Errorf("read %s %s: %w", o.gvr.Resource, o.name, err)
		return nil
	}
	return found
}

func (r *reader) into(from *unstructured.Unstructured, to any) bool {
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(from.Object, to); err != nil {
		r.err = fmt.Errorf("read %s %s: %w", from.GetKind(), from.GetName(), err)
	}
	return r.err == nil
}

// definition is the CustomResourceDefinition of an object's kind; nil = not known.
func (r *reader) definition(o *object) *apiextensionsv1.CustomResourceDefinition {
	if r.err != nil {
		return nil
	}
	found, err := r.set.Dynamic.Resource(builtIn["customresourcedefinition"].gvr).Get(r.ctx, o.gvr.GroupResource().String(),
		metav1.GetOptions{})
	d := &apiextensionsv1.CustomResourceDefinition{}
	if err != nil || runtime.DefaultUnstructuredConverter.FromUnstructured(found.Object, d) != nil {
		return nil // not every tenant may read them, and not every resource has one
	}
	return d
}

// siblings are others of the kind, of which one sees who writes their status.
func (r *reader) siblings(o *object) []*metav1.PartialObjectMetadata {
	if r.err != nil {
		return nil
	}
	found, err := r.set.Metadata.Resource(o.gvr).Namespace(o.namespace).List(r.ctx, metav1.ListOptions{Limit: mostSiblings})
	if err != nil {
		r.unread = append(r.unread, "others of its kind: "+err.Error())
		return nil
	}
	var out []*metav1.PartialObjectMetadata
	for i := range found.Items {
		if found.Items[i].Name != o.name {
			out = append(out, &found.Items[i])
		}
	}
	return out
}

// apis are the parts of the API that other servers serve.
func (r *reader) apis() (out []*apiregistrationv1.APIService) {
	found := list(r, "API services", r.set.Dynamic.Resource(builtIn["apiservice"].gvr).List, []*unstructured.Unstructured(nil))
	for _, one := range found {
		a := &apiregistrationv1.APIService{}
		if r.into(one, a) {
			out = append(out, a)
		}
	}
	return out
}

// webhooks reads a configuration of webhooks, and looks around where the first service is that one calls.
func (r *reader) webhooks(o *object, c *why.Cluster) {
	admission := r.set.Kube.AdmissionregistrationV1()
	if o.kind == "mutatingwebhookconfiguration" {
		c.Mutating = list(r, "webhook configurations", admission.MutatingWebhookConfigurations().List, c.Mutating)
	} else {
		c.Validating = list(r, "webhook configurations", admission.ValidatingWebhookConfigurations().List, c.Validating)
	}
	for _, w := range c.Webhooks(o.kind, o.name) {
		if w.Client.Service != nil {
			o.around = w.Client.Service.Namespace
			return
		}
	}
}

// workloads are pods, who makes them, and what keeps them from being made.
func (r *reader) workloads(namespace string, c *why.Cluster) {
	kube := r.set.Kube
	core, apps := kube.CoreV1(), kube.AppsV1()
	before := len(r.unread)
	c.Nodes = list(r, "nodes", core.Nodes().List, c.Nodes)
	c.Namespaces = list(r, "namespaces", core.Namespaces().List, c.Namespaces)
	c.Pods = list(r, "pods of all namespaces", core.Pods(metav1.NamespaceAll).List, c.Pods)
	if c.Partial = len(r.unread) > before; c.Partial {
		c.Pods = list(r, "pods", core.Pods(namespace).List, c.Pods)
	}
	c.Services = list(r, "services", core.Services(namespace).List, c.Services)
	c.Slices = list(r, "endpoint slices", kube.DiscoveryV1().EndpointSlices(namespace).List, c.Slices)
	c.Deployments = list(r, "deployments", apps.Deployments(namespace).List, c.Deployments)
	c.ReplicaSets = list(r, "replica sets", apps.ReplicaSets(namespace).List, c.ReplicaSets)
	c.StatefulSets = list(r, "stateful sets", apps.StatefulSets(namespace).List, c.StatefulSets)
	c.DaemonSets = list(r, "daemon sets", apps.DaemonSets(namespace).List, c.DaemonSets)
	c.Jobs = list(r, "jobs", kube.BatchV1().Jobs(namespace).List, c.Jobs)
	c.Controllers = list(r, "replication controllers", core.ReplicationControllers(namespace).List, c.Controllers)
	c.Quotas = list(r, "quotas", core.ResourceQuotas(namespace).List, c.Quotas)
	budgets := namespace
	if !c.Partial {
		budgets = metav1.NamespaceAll // preemption goes by those of all
	}
	c.Budgets = list(r, "disruption budgets", kube.PolicyV1().PodDisruptionBudgets(budgets).List, c.Budgets)
	c.Priorities = list(r, "priority classes", kube.SchedulingV1().PriorityClasses().List, c.Priorities)
	c.Policies = list(r, "network policies", kube.NetworkingV1().NetworkPolicies(namespace).List, c.Policies)
	c.Events = list(r, "events", core.Events(namespace).List, c.Events)
	if slices.ContainsFunc(c.Events, func(ev *corev1.Event) bool { return strings.Contains(ev.Message, "failed calling webhook") }) {
		admission := kube.AdmissionregistrationV1()
		c.Validating = list(r, "webhook configurations", admission.ValidatingWebhookConfigurations().List, c.Validating)
		c.Mutating = list(r, "webhook configurations", admission.MutatingWebhookConfigurations().List, c.Mutating)
	}
}

func (r *reader) volumes(namespace string, c *why.Cluster) {
	core, storage := r.set.Kube.CoreV1(), r.set.Kube.StorageV1()
	c.Claims = list(r, "claims", core.PersistentVolumeClaims(namespace).List, c.Claims)
	c.Volumes = list(r, "volumes", core.PersistentVolumes().List, c.Volumes)
	c.Classes = list(r, "storage classes", storage.StorageClasses().List, c.Classes)
	c.Drivers = list(r, "CSI drivers", storage.CSIDrivers().List, c.Drivers)
	c.DriverNodes = list(r, "drivers of nodes", storage.CSINodes().List, c.DriverNodes)
	c.Room = list(r, "storage capacities", storage.CSIStorageCapacities(metav1.NamespaceAll).List, c.Room)
}

func (r *reader) devices(namespace string, c *why.Cluster) {
	devices := r.set.Kube.ResourceV1()
	in := metav1.NamespaceAll
	if c.Partial {
		in = namespace
	}
	c.DeviceClaims = list(r, "resource claims", devices.ResourceClaims(in).List, c.DeviceClaims)
	c.DeviceTemplates = list(r, "resource claim templates", devices.ResourceClaimTemplates(namespace).List, c.DeviceTemplates)
	c.DeviceClasses = list(r, "device classes", devices.DeviceClasses().List, c.DeviceClasses)
	c.DeviceSlices = list(r, "resource slices", devices.ResourceSlices().List, c.DeviceSlices)
	c.DeviceTaints = list(r, "device taint rules", devices.DeviceTaintRules().List, c.DeviceTaints)
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
