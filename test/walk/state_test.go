// SPDX-License-Identifier: Apache-2.0

package walk

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/metrics/pkg/apis/metrics"
)

// ownLife are kinds that the control plane writes by itself: events, leases, what follows
// Services and pods, reports of what others did.
var ownLife = []string{"events", "leases", "componentstatuses", "endpointslices", "endpoints", "leasecandidates"}

// resources are what can be listed.
func resources(kube kubernetes.Interface) ([]schema.GroupVersionResource, error) {
	lists, err := discovery.ServerPreferredResources(kube.Discovery())
	if err != nil {
		return nil, err
	}
	var out []schema.GroupVersionResource
	for _, l := range lists {
		gv, err := schema.ParseGroupVersion(l.GroupVersion)
		if err != nil {
			return nil, err
		}
		if gv.Group == metrics.GroupName {
			continue // nobody writes what is measured
		}
		for _, r := range l.APIResources {
			if slices.Contains(r.Verbs, "list") && !slices.Contains(ownLife, r.Name) {
				out = append(out, gv.WithResource(r.Name))
			}
		}
	}
	return out, nil
}

// others is all that is not the tenant's, by resource, namespace and name: what people and
// controllers wrote, without what is observed.
func others(ctx context.Context, kube kubernetes.Interface, client dynamic.Interface) (map[string]string, error) {
	list, err := resources(kube)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, r := range list {
		objects, err := client.Resource(r).List(ctx, metav1.ListOptions{})
		if apierrors.IsMethodNotSupported(err) || apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", r.Resource, err)
		}
		for i := range objects.Items {
			o := &objects.Items[i]
			if o.GetNamespace() == tenant || r.Resource == "namespaces" && o.GetName() == tenant || servesTenant(o) ||
				strings.HasPrefix(o.GetGenerateName(), measured) {
				continue
			}
			text, err := written(o)
			if err != nil {
				return nil, err
			}
			out[fmt.Sprintf("%s %s/%s", r.GroupResource(), o.GetNamespace(), o.GetName())] = text
		}
	}
	return out, nil
}

// servesTenant are objects of the cluster that exist for one of the tenant's: the address of
// a Service, the volume of a claim, what is made of a policy of its namespace.
func servesTenant(o *unstructured.Unstructured) bool {
	if _, policy, _ := strings.Cut(o.GetAnnotations()["plugins.wasmplane.dev/policy"], " "); strings.HasPrefix(policy, tenant+"/") {
		return true
	}
	for _, path := range [][]string{{"spec", "parentRef", "namespace"}, {"spec", "claimRef", "namespace"}} {
		if of, _, _ := unstructured.NestedString(o.Object, path...); of == tenant {
			return true
		}
	}
	return false
}

func written(o *unstructured.Unstructured) (string, error) {
	o = o.DeepCopy()
	for _, path := range [][]string{{"metadata", "resourceVersion"}, {"metadata", "managedFields"}, {"metadata", "generation"}, {"status"}} {
		unstructured.RemoveNestedField(o.Object, path...)
	}
	if o.GetKind() == "Node" { // a kubelet that is late is tainted, and its controllers annotate it
		unstructured.RemoveNestedField(o.Object, "spec", "taints")
		unstructured.RemoveNestedField(o.Object, "metadata", "annotations")
	}
	b, err := json.Marshal(o.Object)
	return string(b), err
}

// differences between two states, by name.
func differences(before, after map[string]string) []string {
	var out []string
	for name, was := range before {
		if is, there := after[name]; !there {
			out = append(out, name+" is gone")
		} else if is != was {
			out = append(out, fmt.Sprintf("%s changed\n  from %s\n  to   %s", name, was, is))
		}
	}
	for name := range after {
		if _, there := before[name]; !there {
			out = append(out, name+" is new: "+after[name])
		}
	}
	slices.Sort(out)
	return out
}

// powers is what the tenant, and the service accounts of its namespace, may do beyond it.
func powers(ctx context.Context, kube kubernetes.Interface) (map[string]bool, error) {
	accounts, err := kube.CoreV1().ServiceAccounts(tenant).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	who := map[string][]string{tina: {"system:authenticated"}}
	for _, a := range accounts.Items {
		who["system:serviceaccount:"+tenant+":"+a.Name] = []string{
			"system:serviceaccounts", "system:serviceaccounts:" + tenant,
			"system:authenticated",
		}
	}
	out := map[string]bool{}
	for name, groups := range who {
		for _, namespace := range []string{tenant, other, "kube-system", ""} {
			for _, what := range []string{
				"get secrets", "create pods", "create pods/exec", "create serviceaccounts/token", "update namespaces",
				"bind roles.rbac.authorization.k8s.io",
				"escalate roles.rbac.authorization.k8s.io", "create rolebindings.rbac.authorization.k8s.io", "impersonate users",
				"update resourcequotas", "create validatingpolicies.policies.kyverno.io", "update persistentvolumes",
				"create policyexceptions.policies.kyverno.io", "create clusteradmissionpolicies.policies.kubewarden.io",
				"create constrainttemplates.templates.gatekeeper.sh", "update resourceclaims/status.resource.k8s.io",
				"create deviceclasses.resource.k8s.io", "create priorityclasses.scheduling.k8s.io", "list pods.metrics.k8s.io",
				"create spans.trace.wasmplane.dev", "list journey.trace.wasmplane.dev",
				"create networkpolicies.networking.k8s.io", "create tenantplugins.plugins.wasmplane.dev", "grant tenantplugins.plugins.wasmplane.dev",
				"create plugins.plugins.wasmplane.dev", "get nodes/proxy", "update services/status", "approve signers.certificates.k8s.io", "* *",
			} {
				verb, resource, _ := strings.Cut(what, " ")
				resource, group, _ := strings.Cut(resource, ".")
				resource, sub, _ := strings.Cut(resource, "/")
				review, err := kube.AuthorizationV1().SubjectAccessReviews().Create(ctx,
					&authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
						User: name, Groups: groups, ResourceAttributes: &authorizationv1.ResourceAttributes{
							Verb: verb, Group: group, Resource: resource,
							Subresource: sub, Namespace: namespace,
						},
					}}, metav1.CreateOptions{})
				if err != nil {
					return nil, err
				}
				if review.Status.Allowed {
					out[fmt.Sprintf("%s may %s in %q", name, what, namespace)] = true
				}
			}
		}
	}
	return out, nil
}

// gained are the powers that were not there before.
func gained(before, after map[string]bool) (out []string) {
	for what := range after {
		if !before[what] {
			out = append(out, what)
		}
	}
	slices.Sort(out)
	return out
}
