// SPDX-License-Identifier: Apache-2.0

// Package facts has what the API stores, as far as somebody could read it: what core/why and its trials go by.
package facts

import (
	"fmt"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	storagev1 "k8s.io/api/storage/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/informers"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/wasmplane/wasmplane/core/scheduler"
)

// Cluster is what the API stores, as far as somebody could read it.
type Cluster struct {
	Now         time.Time
	Nodes       []*corev1.Node
	Pods        []*corev1.Pod // of all namespaces: a pod waits because of others
	Namespaces  []*corev1.Namespace
	Claims      []*corev1.PersistentVolumeClaim
	Volumes     []*corev1.PersistentVolume
	Classes     []*storagev1.StorageClass
	Drivers     []*storagev1.CSIDriver
	DriverNodes []*storagev1.CSINode
	Room        []*storagev1.CSIStorageCapacity
	// What there is of devices, and who has them, of all namespaces.
	DeviceClaims    []*resourcev1.ResourceClaim
	DeviceTemplates []*resourcev1.ResourceClaimTemplate
	DeviceClasses   []*resourcev1.DeviceClass
	DeviceSlices    []*resourcev1.ResourceSlice
	DeviceTaints    []*resourcev1.DeviceTaintRule

	Services     []*corev1.Service
	Slices       []*discoveryv1.EndpointSlice
	Deployments  []*appsv1.Deployment
	ReplicaSets  []*appsv1.ReplicaSet
	StatefulSets []*appsv1.StatefulSet
	DaemonSets   []*appsv1.DaemonSet
	Jobs         []*batchv1.Job
	Controllers  []*corev1.ReplicationController
	Quotas       []*corev1.ResourceQuota
	Budgets      []*policyv1.PodDisruptionBudget
	Policies     []*networkingv1.NetworkPolicy
	// ClusterPolicies are all of the cluster, where the question is about one.
	ClusterPolicies []*policyv1alpha2.ClusterNetworkPolicy
	Groups          []*schedulingv1beta1.PodGroup
	Priorities      []*schedulingv1.PriorityClass
	CronJobs        []*batchv1.CronJob
	Events          []*corev1.Event         // of the object's namespace; of a node, those about it
	Leases          []*coordinationv1.Lease // of nodes

	Autoscalers    []*autoscalingv2.HorizontalPodAutoscaler
	Ingresses      []*networkingv1.Ingress
	IngressClasses []*networkingv1.IngressClass
	APIs           []*apiregistrationv1.APIService
	Definitions    []*apiextensionsv1.CustomResourceDefinition
	Validating     []*admissionv1.ValidatingWebhookConfiguration
	Mutating       []*admissionv1.MutatingWebhookConfiguration

	// Object is the one that is asked about, where it is of a kind that has no list above (Other),
	// Definition is that of its kind, nil = not known, and Siblings are others of the kind.
	Object     *unstructured.Unstructured
	Definition *apiextensionsv1.CustomResourceDefinition
	Siblings   []*metav1.PartialObjectMetadata
	// Held are the objects of a namespace that goes away which somebody holds by a finalizer.
	Held []Held
	// Profiles makes those of the scheduler, with its plugins in Wasm, over informers that hold this cluster and
	// that nobody starts; nil = only the native plugins are known.
	Profiles func(informers.SharedInformerFactory) ([]scheduler.Profile, error)
	// Untried are plugins of Profiles that are not asked in a trial.
	Untried []string
	// Refusals says which plugin gave which reason, as the trace has it.
	Refusals map[string]string
	// Partial: not all nodes or not all pods could be read. What the scheduler would decide
	// is not tried then.
	Partial bool
	// Unread says what could not be read, and so is not known.
	Unread []string
}

// Held is an object that waits for its finalizers.
type Held struct {
	Resource, Name string
	Finalizers     []string
}

// Webhook is one of a configuration, validating or mutating.
type Webhook struct {
	Name   string
	Client admissionv1.WebhookClientConfig
	Fails  bool // requests fail where it cannot be asked
	Rules  []admissionv1.RuleWithOperations
}

// Webhooks are those of a configuration, by its kind and name.
func (c *Cluster) Webhooks(kind, name string) (out []Webhook) {
	fails := func(p *admissionv1.FailurePolicyType) bool { return p == nil || *p == admissionv1.Fail }
	if w, ok := Find(c.Validating, "", name); ok && kind == "validatingwebhookconfiguration" {
		for i := range w.Webhooks {
			h := &w.Webhooks[i]
			out = append(out, Webhook{h.Name, h.ClientConfig, fails(h.FailurePolicy), h.Rules})
		}
	}
	if w, ok := Find(c.Mutating, "", name); ok && kind == "mutatingwebhookconfiguration" {
		for i := range w.Webhooks {
			h := &w.Webhooks[i]
			out = append(out, Webhook{h.Name, h.ClientConfig, fails(h.FailurePolicy), h.Rules})
		}
	}
	return out
}

// Configurations names the configurations of webhooks of a kind.
func (c *Cluster) Configurations(kind string) (names []string) {
	if kind == "validatingwebhookconfiguration" {
		for _, w := range c.Validating {
			names = append(names, w.Name)
		}
		return names
	}
	for _, w := range c.Mutating {
		names = append(names, w.Name)
	}
	return names
}

// Owner is what one changes to change the pod: the Deployment or other workload that makes
// it, or the pod itself.
func (c *Cluster) Owner(p *corev1.Pod) string {
	ref := metav1.GetControllerOfNoCopy(p)
	if ref == nil {
		return "pod/" + p.Name
	}
	if ref.Kind == "ReplicaSet" {
		if rs, ok := Find(c.ReplicaSets, p.Namespace, ref.Name); ok {
			if above := metav1.GetControllerOfNoCopy(rs); above != nil {
				ref = above
			}
		}
	}
	return strings.ToLower(ref.Kind) + "/" + ref.Name
}

// Find is the object by namespace and name; ok is false where there is none.
func Find[T metav1.Object](all []T, namespace, name string) (found T, ok bool) {
	for _, o := range all {
		if o.GetNamespace() == namespace && o.GetName() == name {
			return o, true
		}
	}
	return found, false
}

// Some are the first few of many.
func Some(names []string) string {
	const few = 5
	if len(names) <= few {
		return strings.Join(names, ", ")
	}
	return strings.Join(names[:few], ", ") + fmt.Sprintf(" and %d more", len(names)-few)
}

// Priority of a pod.
func Priority(p *corev1.Pod) int32 {
	if p.Spec.Priority == nil {
		return 0
	}
	return *p.Spec.Priority
}
