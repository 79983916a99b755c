// SPDX-License-Identifier: Apache-2.0

package rbac

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	listers "k8s.io/client-go/listers/rbac/v1"
	"k8s.io/client-go/tools/cache"
)

func newAuthorizer(t *testing.T, objects ...runtime.Object) *Authorizer {
	t.Helper()
	index := func() cache.Indexer {
		return cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	}
	roles, bindings, clusterRoles, clusterBindings := index(), index(), index(), index()
	p := BootstrapPolicy()
	for i := range p.ClusterRoles {
		objects = append(objects, &p.ClusterRoles[i])
	}
	for i := range p.ClusterRoleBindings {
		objects = append(objects, &p.ClusterRoleBindings[i])
	}
	for _, o := range objects {
		to := roles
		switch o.(type) {
		case *rbacv1.RoleBinding:
			to = bindings
		case *rbacv1.ClusterRole:
			to = clusterRoles
		case *rbacv1.ClusterRoleBinding:
			to = clusterBindings
		}
		if err := to.Add(o); err != nil {
			t.Fatal(err)
		}
	}
	return NewAuthorizer(nil, listers.NewRoleLister(roles), listers.NewRoleBindingLister(bindings),
		listers.NewClusterRoleLister(clusterRoles), listers.NewClusterRoleBindingLister(clusterBindings))
}

func bind(kind, role, namespace, name string) *rbacv1.RoleBinding {
	return &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name + "-" + role, Namespace: namespace},
		Subjects:   []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: name}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: role},
	}
}

func TestBootstrapPolicyRules(t *testing.T) {
	a := newAuthorizer(t, bind("ClusterRole", "cluster-admin", "shop", "jane"))
	jane, admin := &user.DefaultInfo{Name: "jane"}, &user.DefaultInfo{Name: "root", Groups: []string{"system:masters"}}
	for _, tc := range []struct {
		u         user.Info
		verb, ns  string
		resource  string
		allowed   bool
		reasonHas string
	}{
		{admin, "delete", "kube-system", "pods", true, `ClusterRoleBinding "cluster-admin"`},
		{jane, "delete", "shop", "pods", true, `RoleBinding "jane-cluster-admin/shop" of ClusterRole "cluster-admin"`},
		{jane, "delete", "other", "pods", false, ""},
		{&user.DefaultInfo{Name: "system:kube-scheduler"}, "create", "x", "bindings", true, "system:kube-scheduler"},
		{&user.DefaultInfo{Name: "system:kube-scheduler"}, "delete", "x", "secrets", false, ""},
	} {
		d, reason, err := a.Authorize(t.Context(), authorizer.AttributesRecord{
			User: tc.u, Verb: tc.verb, Namespace: tc.ns,
			Resource: tc.resource, ResourceRequest: true,
		})
		if (d == authorizer.DecisionAllow) != tc.allowed || !strings.Contains(reason, tc.reasonHas) {
			t.Errorf("%s %s %s in %s: %v %q %v", tc.u.GetName(), tc.verb, tc.resource, tc.ns, d, reason, err)
		}
		if !tc.allowed && d != authorizer.DecisionNoOpinion {
			t.Errorf("%v: RBAC never denies", d)
		}
	}
	if rules, err := a.PolicyRulesFor(t.Context(), jane, "shop"); err != nil || len(rules) == 0 {
		t.Errorf("%v %v", rules, err)
	}
}

type verbs map[string]bool // "verb resource name"

func (v verbs) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if v[a.GetVerb()+" "+a.GetResource()+" "+a.GetName()] {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

func TestNobodyHandsOutMoreThanTheyHave(t *testing.T) {
	a := newAuthorizer(t, bind("ClusterRole", "system:aggregate-to-view", "shop", "jane"))
	jane := &user.DefaultInfo{Name: "jane"}
	role := func(verb, resource string) *rbacv1.Role {
		return &rbacv1.Role{
			ObjectMeta: metav1.ObjectMeta{Name: "r", Namespace: "shop"},
			Rules:      []rbacv1.PolicyRule{{Verbs: []string{verb}, APIGroups: []string{""}, Resources: []string{resource}}},
		}
	}
	aggregating := &rbacv1.ClusterRole{
		ObjectMeta:      metav1.ObjectMeta{Name: "all"},
		AggregationRule: &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{{}}},
	}
	owned := role("delete", "secrets")
	owned.Finalizers = []string{"a"}
	for name, tc := range map[string]struct {
		may      verbs
		u        user.Info
		obj, old runtime.Object
		err      string
	}{
		"what she has":      {obj: role("list", "pods")},
		"more":              {obj: role("delete", "pods"), err: `roles.rbac.authorization.k8s.io "r" is forbidden: user "jane" (groups=[]) is attempting to grant RBAC permissions not currently held:`},
		"escalate":          {obj: role("delete", "pods"), may: verbs{"escalate roles r": true}},
		"masters":           {obj: role("delete", "pods"), u: &user.DefaultInfo{Name: "x", Groups: []string{"system:masters"}}},
		"finalizer removed": {obj: role("delete", "secrets"), old: owned},
		"binds view":        {obj: bind("ClusterRole", "system:aggregate-to-view", "shop", "joe")},
		"binds admin":       {obj: bind("ClusterRole", "system:aggregate-to-admin", "shop", "joe"), err: "attempting to grant RBAC permissions not currently held"},
		"may bind admin":    {obj: bind("ClusterRole", "admin", "shop", "joe"), may: verbs{"bind clusterroles admin": true}},
		"aggregates":        {obj: aggregating, err: "must have cluster-admin privileges to use the aggregationRule"},
		"something else":    {obj: &metav1.Status{}},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.u == nil {
				tc.u = jane
			}
			err := Guard{RBAC: a, Chain: tc.may}.Check(t.Context(), tc.u, "shop", "r", tc.obj, tc.old)
			switch {
			case tc.err == "" && err != nil:
				t.Error(err)
			case tc.err != "" && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), tc.err)):
				t.Errorf("got %v", err)
			}
		})
	}
}

// A role of some kilobytes can be millions of permissions, each of which upstream makes a rule of: ten gigabytes.
func TestRulesThatMultiplyAreRefusedBeforeTheyAreCompared(t *testing.T) {
	a := newAuthorizer(t, bind("ClusterRole", "system:aggregate-to-view", "shop", "jane"))
	several := func(n int) []string { return slices.Repeat([]string{"x"}, n) }
	for name, tc := range map[string]struct {
		rules []rbacv1.PolicyRule
		err   string
	}{
		"verbs, groups, resources": {
			[]rbacv1.PolicyRule{{Verbs: several(333), APIGroups: several(333), Resources: several(333)}},
			"its rules are 36926037 permissions",
		},
		"names too": {
			[]rbacv1.PolicyRule{{Verbs: several(1e5), APIGroups: several(1e5), Resources: several(1e5), ResourceNames: several(1e5)}},
			"at most 100000 can be compared",
		},
		"paths":      {[]rbacv1.PolicyRule{{Verbs: several(1000), NonResourceURLs: several(1000)}}, "its rules are 1000000 permissions"},
		"many rules": {slices.Repeat([]rbacv1.PolicyRule{{Verbs: several(10), APIGroups: several(10), Resources: several(10)}}, 101), "its rules are 101000 permissions"},
		"as many as people write": {
			slices.Repeat([]rbacv1.PolicyRule{{Verbs: several(8), APIGroups: several(1), Resources: several(10)}}, 30),
			"permissions not currently held",
		},
	} {
		err := a.ConfirmNoEscalation(t.Context(), &user.DefaultInfo{Name: "jane"}, "shop", tc.rules)
		if err == nil || !strings.Contains(err.Error(), tc.err) {
			t.Errorf("%s: %.300v", name, err)
		}
	}
	long := slices.Repeat([]rbacv1.PolicyRule{{Verbs: several(1), APIGroups: several(1), Resources: several(1000)}}, 90)
	a = newAuthorizer(t, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "long", Namespace: "shop"}, Rules: long},
		bind("Role", "long", "shop", "jane"))
	err := a.ConfirmNoEscalation(t.Context(), &user.DefaultInfo{Name: "jane"}, "shop", long)
	if err == nil || !strings.Contains(err.Error(), "at most 50000000 comparisons") {
		t.Errorf("a writer with many rules: %.300v", err)
	}
}

// While the server starts, a question waits for the roles: a refusal would be wrong.
func TestAQuestionWaitsForTheRoles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		synced := make(chan struct{})
		empty := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
		roles := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
		bindings := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
		a := NewAuthorizer(synced, listers.NewRoleLister(empty), listers.NewRoleBindingLister(empty), listers.NewClusterRoleLister(roles),
			listers.NewClusterRoleBindingLister(bindings))
		question := authorizer.AttributesRecord{User: &user.DefaultInfo{Name: "ann"}, Verb: "get", Resource: "pods", ResourceRequest: true}
		if _, _, err := a.Authorize(t.Context(), question); !apierrors.IsTimeout(err) {
			t.Errorf("roles that never come: %v, want a timeout", err)
		}
		time.AfterFunc(time.Second, func() {
			_ = roles.Add(&rbacv1.ClusterRole{
				ObjectMeta: metav1.ObjectMeta{Name: "reader"},
				Rules:      []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"pods"}}},
			})
			_ = bindings.Add(&rbacv1.ClusterRoleBinding{
				ObjectMeta: metav1.ObjectMeta{Name: "ann"}, RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: "reader"},
				Subjects: []rbacv1.Subject{{Kind: "User", Name: "ann", APIGroup: rbacv1.GroupName}},
			})
			close(synced)
		})
		if d, reason, err := a.Authorize(t.Context(), question); d != authorizer.DecisionAllow || err != nil {
			t.Errorf("decision %v (%s), %v", d, reason, err)
		}
	})
}
