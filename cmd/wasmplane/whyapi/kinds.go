// SPDX-License-Identifier: Apache-2.0

package whyapi

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/restmapper"

	"github.com/wasmplane/wasmplane/core/client"
	"github.com/wasmplane/wasmplane/core/why"
)

// object is which object is asked about.
type object struct {
	kind            string // as core/why has it
	gvk             schema.GroupVersionKind
	gvr             schema.GroupVersionResource
	namespace, name string // namespace is empty for what has none
	// around is the namespace in which its neighbours are looked for.
	around string
}

func kindOf(group, version, kind, resource string) object {
	return object{gvk: schema.GroupVersionKind{Group: group, Version: version, Kind: kind}, gvr: schema.GroupVersionResource{
		Group: group, Version: version, Resource: resource,
	}}
}

// builtIn are the kinds of core/why in the API.
var builtIn = map[string]object{
	"pod":                     kindOf("", "v1", "Pod", "pods"),
	"service":                 kindOf("", "v1", "Service", "services"),
	"persistentvolumeclaim":   kindOf("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims"),
	"resourcequota":           kindOf("", "v1", "ResourceQuota", "resourcequotas"),
	"namespace":               kindOf("", "v1", "Namespace", "namespaces"),
	"node":                    kindOf("", "v1", "Node", "nodes"),
	"deployment":              kindOf("apps", "v1", "Deployment", "deployments"),
	"replicaset":              kindOf("apps", "v1", "ReplicaSet", "replicasets"),
	"statefulset":             kindOf("apps", "v1", "StatefulSet", "statefulsets"),
	"daemonset":               kindOf("apps", "v1", "DaemonSet", "daemonsets"),
	"job":                     kindOf("batch", "v1", "Job", "jobs"),
	"cronjob":                 kindOf("batch", "v1", "CronJob", "cronjobs"),
	"networkpolicy":           kindOf("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies"),
	"clusternetworkpolicy":    kindOf("policy.networking.k8s.io", "v1alpha2", "ClusterNetworkPolicy", "clusternetworkpolicies"),
	"ingress":                 kindOf("networking.k8s.io", "v1", "Ingress", "ingresses"),
	"podgroup":                kindOf("scheduling.k8s.io", "v1beta1", "PodGroup", "podgroups"),
	"resourceclaim":           kindOf("resource.k8s.io", "v1", "ResourceClaim", "resourceclaims"),
	"horizontalpodautoscaler": kindOf("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers"),
	"poddisruptionbudget":     kindOf("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets"),
	"customresourcedefinition": kindOf("apiextensions.k8s.io", "v1", "CustomResourceDefinition",
		"customresourcedefinitions"),
	"apiservice": kindOf("apiregistration.k8s.io", "v1", "APIService", "apiservices"),
	"validatingwebhookconfiguration": kindOf("admissionregistration.k8s.io", "v1", "ValidatingWebhookConfiguration",
		"validatingwebhookconfigurations"),
	"mutatingwebhookconfiguration": kindOf("admissionregistration.k8s.io", "v1", "MutatingWebhookConfiguration",
		"mutatingwebhookconfigurations"),
}

// find says which object is meant: of a kind that core/why knows, or of any other that the server has.
func find(set *client.Set, word, namespace, name string) (object, error) {
	kind, unknown := why.Kind(word)
	if unknown == nil {
		o := builtIn[kind]
		o.kind, o.name, o.around = kind, name, namespace
		if why.Namespaced(kind) {
			o.namespace = namespace
		}
		return o, nil
	}
	groups, err := restmapper.GetAPIGroupResources(set.Kube.Discovery())
	if err != nil {
		return object{}, fmt.Errorf("%w; which others there are could not be read: %w", unknown, err)
	}
	mapper := restmapper.NewShortcutExpander(restmapper.NewDiscoveryRESTMapper(groups), set.Kube.Discovery(), nil)
	_, grouped := schema.ParseResourceArg(strings.ToLower(word))
	gvk, err := mapper.KindFor(grouped.WithVersion(""))
	if err != nil {
		return object{}, fmt.Errorf("%w, or a resource that the server has", unknown)
	}
	m, err := mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return object{}, fmt.Errorf("find out what %s is: %w", word, err)
	}
	o := object{kind: why.Other, gvk: gvk, gvr: m.Resource, name: name, around: namespace}
	if m.Scope.Name() == meta.RESTScopeNameNamespace {
		o.namespace = namespace
	}
	return o, nil
}
