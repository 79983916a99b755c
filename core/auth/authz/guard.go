// SPDX-License-Identifier: Apache-2.0

package authz

import (
	"context"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// Guard keeps protected requests from inner, which then has no opinion on them:
// whatever a policy does, the cluster goes on breathing, and its operator can get
// in to fix the policy. Policies of others (Wasm) are put behind it.
func Guard(inner Authorizer) Authorizer {
	g := guard{inner}
	if r, ok := inner.(Ruler); ok {
		return guardRuler{g, r}
	}
	return g
}

type guard struct{ inner Authorizer }

type guardRuler struct {
	guard
	Ruler
}

func (g guard) Name() string { return g.inner.Name() }

func (g guard) Authorize(ctx context.Context, a Attributes) (Decision, string, error) {
	if Protected(a) {
		return NoOpinion, "", nil
	}
	return g.inner.Authorize(ctx, a)
}

// Protected says whether a request is out of the reach of policies:
//   - everything that the break-glass group does;
//   - leases, by which components tell that they live, and who leads;
//   - status, which is an observation: refusing it makes the cluster blind;
//   - health endpoints;
//   - of a component: its own objects, what it must ask to know who may do
//     what, and the events in which it says what is wrong.
func Protected(a Attributes) bool {
	if breaksGlass(a.GetUser()) {
		return true
	}
	if !a.IsResourceRequest() {
		return isHealth(a.GetPath())
	}
	if a.GetSubresource() == "status" || a.GetAPIGroup() == "coordination.k8s.io" && a.GetResource() == "leases" {
		return true
	}
	return isComponent(a.GetUser()) && (isReview(a) || isEvent(a) || isOwn(a))
}

func isHealth(path string) bool {
	return slices.ContainsFunc([]string{"/livez", "/readyz", "/healthz"}, func(p string) bool {
		return path == p || strings.HasPrefix(path, p+"/")
	})
}

const (
	nodeUser           = "system:node:"
	serviceAccountUser = "system:serviceaccount:"
	systemAccounts     = serviceAccountUser + "kube-system:"
)

// isComponent recognizes the cluster's own parts, by names that only the
// cluster's authority and its token issuer give out.
func isComponent(u user.Info) bool {
	if u == nil {
		return false
	}
	name := u.GetName()
	switch name {
	case "system:kube-scheduler", "system:kube-controller-manager", "system:kube-proxy", user.APIServerUser:
		return true
	}
	return strings.HasPrefix(name, systemAccounts) || strings.HasPrefix(name, nodeUser) && slices.Contains(u.GetGroups(), user.NodesGroup)
}

// isReview: components ask the server whom they are dealing with.
func isReview(a Attributes) bool {
	switch a.GetAPIGroup() {
	case "authentication.k8s.io", "authorization.k8s.io":
		return a.GetVerb() == "create"
	}
	return false
}

func isEvent(a Attributes) bool {
	switch a.GetAPIGroup() {
	case "", "events.k8s.io":
		return a.GetResource() == "events" && (a.GetVerb() == "create" || a.GetVerb() == "patch" || a.GetVerb() == "update")
	}
	return false
}

// isOwn: a node's Node and CSINode, and a service account's own token.
func isOwn(a Attributes) bool {
	name := a.GetUser().GetName()
	if node, ok := strings.CutPrefix(name, nodeUser); ok {
		switch {
		case a.GetAPIGroup() == "" && a.GetResource() == "nodes", a.GetAPIGroup() == "storage.k8s.io" && a.GetResource() == "csinodes":
			return a.GetName() == node || a.GetName() == "" && a.GetVerb() == "create"
		}
		return false
	}
	account, ok := strings.CutPrefix(name, serviceAccountUser+a.GetNamespace()+":")
	return ok && a.GetAPIGroup() == "" && a.GetResource() == "serviceaccounts" && a.GetName() == account
}

var _ authorizer.UnconditionalAuthorizer = guard{}
