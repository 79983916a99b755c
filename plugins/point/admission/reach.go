// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/rights"
)

// workloads are the namespaced objects, by group, that run something or belong to what
// runs. They are what a tenant's plugin may see. What gives rights, limits others or
// holds them off is not among them: namespaces, roles, quotas, limit ranges, network policies,
// service accounts and their tokens, admission objects, endpoints, leases, events.
var workloads = map[string][]string{
	"":                  {"pods", "configmaps", "secrets", "services", "persistentvolumeclaims", "replicationcontrollers", "podtemplates"},
	"apps":              {"deployments", "statefulsets", "daemonsets", "replicasets"},
	"batch":             {"jobs", "cronjobs"},
	"autoscaling":       {"horizontalpodautoscalers"},
	"policy":            {"poddisruptionbudgets"},
	"networking.k8s.io": {"ingresses"},
}

// workloadSubresources change what an object is to be. The others carry an authority of
// their own (binding, eviction, exec, attach, portforward, proxy, token, approval, finalize) or are
// observations (status, log): they are out of a tenant's reach.
var workloadSubresources = []string{"", "scale", "ephemeralcontainers", "resize"}

// isWorkload: a built-in one of the list, or a custom resource, which is a group with
// a domain of somebody else's.
func isWorkload(group, resource string) bool {
	if list, builtIn := workloads[group]; builtIn {
		return slices.Contains(list, resource)
	}
	return strings.Contains(group, ".") && !within(group, "k8s.io") && !within(group, "wasmplane.dev")
}

// TenantReach says whether what belongs to a namespace may be about a resource or subresource.
func TenantReach(group, resource, subresource string) bool {
	return isWorkload(group, resource) && slices.Contains(workloadSubresources, subresource)
}

func within(group, domain string) bool {
	return group == domain || strings.HasSuffix(group, "."+domain)
}

// reaches says whether the version may be asked about such a request at all, whatever
// its rules say.
func (m *matcher) reaches(r *admission.Request) bool {
	e := &m.version.Entry
	if OutOfReach(r) {
		return false
	}
	if e.Namespace == "" {
		return true
	}
	return r.Namespace == e.Namespace && isWorkload(r.Resource.Group, r.Resource.Resource) &&
		slices.Contains(workloadSubresources, r.Subresource) && !isToken(r) && !ofTheSystem(r)
}

// isToken: a Secret that is, or becomes, a service account's token.
func isToken(r *admission.Request) bool {
	if r.Resource.Group != "" || r.Resource.Resource != "secrets" {
		return false
	}
	return slices.ContainsFunc([]*object.Object{r.Object, r.OldObject}, func(o *object.Object) bool {
		if o == nil {
			return false
		}
		v, err := o.Versioned()
		if err != nil {
			return true
		}
		s, ok := v.(*corev1.Secret)
		return !ok || s.Type == corev1.SecretTypeServiceAccountToken || s.Type == corev1.SecretTypeBootstrapToken
	})
}

// Components' identities, which only the cluster's authority and its token issuer give out.
const (
	serviceAccounts = "system:serviceaccounts:"
	kubeComponents  = "system:kube-"
)

// ofTheSystem: what the cluster itself does in a namespace is no business of a
// tenant's plugin, or pods would not start, nor namespaces end.
func ofTheSystem(r *admission.Request) bool {
	if r.User == nil {
		return true
	}
	return isComponent(r.User) || slices.Contains(r.User.GetGroups(), user.SystemPrivilegedGroup)
}

func isComponent(u user.Info) bool {
	return u.GetName() == user.APIServerUser || strings.HasPrefix(u.GetName(), kubeComponents) || slices.ContainsFunc(u.GetGroups(),
		func(g string) bool {
			return g == user.NodesGroup || g == serviceAccounts+metav1.NamespaceSystem
		})
}

// OfTheSystem says that the cluster itself, or its operator, makes a request: what belongs to a namespace is not asked.
func OfTheSystem(r *admission.Request) bool { return ofTheSystem(r) }

// systemNamespaces hold what a cluster needs to come up.
var systemNamespaces = []string{
	"", metav1.NamespaceSystem, metav1.NamespacePublic, "kube-node-lease", metav1.NamespaceDefault,
	manifest.StateNamespace,
}

// OutOfReach is what no plugin is asked about, nor a policy of another kind, so that no policy, however wide, keeps a
// cluster from starting or its operator from mending it: the break-glass group; the server's
// own writes; and of components leases, events, status, their own objects and what they make
// in the namespaces of the system. What runs something is in reach wherever it is and
// whoever makes it, Pods of controllers among them.
func OutOfReach(r *admission.Request) bool {
	if r.User == nil {
		return false
	}
	if r.User.GetName() == user.APIServerUser || slices.Contains(r.User.GetGroups(), user.SystemPrivilegedGroup) {
		return true
	}
	if !isComponent(r.User) {
		return false
	}
	if runs, builtIn := workloads[r.Resource.Group]; builtIn && slices.Contains(runs, r.Resource.Resource) &&
		r.Resource.Resource != "configmaps" {
		return r.Subresource == "status"
	}
	switch {
	case r.Subresource == "status", r.Resource.Resource == "events":
		return true
	case r.Resource.Group == "coordination.k8s.io":
		return true
	}
	return slices.Contains(systemNamespaces, r.Namespace)
}

// maySee: a plugin of the API sees no object that its writer could not read.
func (m *matcher) maySee(ctx context.Context, c Cluster, r *admission.Request) error {
	e := &m.version.Entry
	if !e.FromAPI {
		return nil
	}
	return c.Rights.Act(ctx, e, authorizationv1.ResourceAttributes{
		Verb: "get", Group: r.Resource.Group, Version: r.Resource.Version, Resource: r.Resource.Resource, Namespace: r.Namespace,
	})
}

// foreignSecret: a Secret that somebody else is writing, which a tenant's plugin may
// judge where its writer may read it, and never change.
func (m *matcher) foreignSecret(pt abi.Point, r *admission.Request) bool {
	e := &m.version.Entry
	if pt != abi.AdmissionMutate || e.Namespace == "" || r.Resource.Group != "" || r.Resource.Resource != "secrets" {
		return false
	}
	return e.Writer == nil || r.User == nil || e.Writer.GetName() != r.User.GetName()
}

// mayChange holds a change that a plugin of the API makes against the rights of its writer.
func (t *turn) mayChange(ctx context.Context, before, after runtime.Object) error {
	e := &t.call.Version.Entry
	if !e.FromAPI || equality.Semantic.DeepEqual(before, after) {
		return nil
	}
	if err := MayChange(ctx, t.adapter.cluster.Rights, e, t.request); err != nil {
		return err
	}
	if t.call.Mode() == manifest.Enforce {
		t.request.ChangedFor(e.Writer)
	}
	return nil
}

// MayChange says whether what was written by somebody may change the object of a request: what he could not write
// himself it does not write through others' requests. nil is yes.
func MayChange(ctx context.Context, c *rights.Checker, e *manifest.Entry, r *admission.Request) error {
	if r.Resource.Group == rbacv1.GroupName {
		return c.Grants(ctx, e, "", "change who may do what")
	}
	return c.Act(ctx, e, authorizationv1.ResourceAttributes{
		Verb: verbOf(r.Operation), Group: r.Resource.Group, Version: r.Resource.Version,
		Resource: r.Resource.Resource, Subresource: r.Subresource, Namespace: r.Namespace,
	})
}

func verbOf(o admission.Operation) string {
	if o == admission.Create {
		return "create"
	}
	return "update"
}
