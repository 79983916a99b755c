// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/admissiontest"
	"github.com/wasmplane/wasmplane/plugins/hostfn"
	"github.com/wasmplane/wasmplane/plugins/loader"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/plugintest"
)

var errNotExempt = errors.New("violates baseline")

// may is what users may do: "verb resource namespace", with the group behind a dot.
type may map[string][]string

func (m may) Review(_ context.Context, spec authorizationv1.SubjectAccessReviewSpec) (authorizationv1.SubjectAccessReviewStatus, error) {
	a := spec.ResourceAttributes
	resource := a.Resource
	if a.Group != "" {
		resource += "." + a.Group
	}
	if a.Subresource != "" {
		resource += "/" + a.Subresource
	}
	return authorizationv1.SubjectAccessReviewStatus{Allowed: slices.Contains(m[spec.User], a.Verb+" "+resource+" "+a.Namespace)}, nil
}

// owned loads a canned plugin that somebody wrote through the API; namespace "" is a Plugin.
func owned(t *testing.T, namespace, writer string, rights may, settings string, more ...string) *loader.Loader {
	t.Helper()
	dir := t.TempDir()
	replaceFile(t, filepath.Join(dir, "canned.wasm"), plugintest.Canned(t))
	text := "plugins:\n  - name: canned\n    source: file:canned.wasm\n    settings: " + settings + "\n"
	for _, line := range more {
		text += "    " + line + "\n"
	}
	list := entries(t, text)
	e := &list[0]
	e.FromAPI, e.Writer, e.Namespace = true, &user.DefaultInfo{Name: writer}, namespace
	from := loader.API
	if namespace != "" {
		e.Name, from = namespace+":canned", loader.Tenant
	}
	l := newLoader(t, loader.Config{InProcess: true, Dir: dir, Functions: hostfn.New(hostfn.Backend{Access: rights})})
	if err := l.Apply(t.Context(), from, list); err != nil {
		t.Fatal(err)
	}
	return l
}

// TestATenantsPluginReachesWorkloadsOnly is how a plugin of a namespace became root of
// the host: it changed the Namespace that an administrator annotated, and the RoleBinding
// that another one made.
func TestATenantsPluginReachesWorkloadsOnly(t *testing.T) {
	meta := metav1.ObjectMeta{Name: "x", Namespace: "red", Labels: map[string]string{"k": "v"}}
	everything := may{"tina": nil}
	for _, resource := range []string{
		"namespaces", "rolebindings.rbac.authorization.k8s.io", "roles.rbac.authorization.k8s.io", "resourcequotas", "limitranges",
		"networkpolicies.networking.k8s.io", "serviceaccounts", "serviceaccounts/token", "secrets", "configmaps", "pods", "pods/binding",
		"pods/status",
		"pods/eviction", "pods/ephemeralcontainers", "deployments.apps", "deployments.apps/status", "deployments.apps/scale", "endpoints",
	} {
		for _, verb := range []string{"get", "create", "update"} {
			everything["tina"] = append(everything["tina"], verb+" "+resource+" red")
		}
	}
	l := owned(t, "red", "tina", everything, labelling, mutates)
	admin := admissiontest.By(&user.DefaultInfo{Name: "ann", Groups: []string{"wasmplane:cluster-admins", user.AllAuthenticated}})
	for _, c := range []struct {
		resource, sub string
		o             runtime.Object
		reached       bool
	}{
		{"pods", "", &corev1.Pod{ObjectMeta: meta}, true},
		{"pods", "ephemeralcontainers", &corev1.Pod{ObjectMeta: meta}, true},
		{"configmaps", "", &corev1.ConfigMap{ObjectMeta: meta}, true},
		{"deployments", "", &appsv1.Deployment{ObjectMeta: meta}, true},
		{"ingresses", "", &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Name: "x", Namespace: "blue", Labels: meta.Labels}}, false},
		{"namespaces", "", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "red", Labels: meta.Labels}}, false},
		{"rolebindings", "", &rbacv1.RoleBinding{ObjectMeta: meta}, false},
		{"roles", "", &rbacv1.Role{ObjectMeta: meta}, false},
		{"resourcequotas", "", &corev1.ResourceQuota{ObjectMeta: meta}, false},
		{"limitranges", "", &corev1.LimitRange{ObjectMeta: meta}, false},
		{"networkpolicies", "", &networkingv1.NetworkPolicy{ObjectMeta: meta}, false},
		{"serviceaccounts", "", &corev1.ServiceAccount{ObjectMeta: meta}, false},
		{"endpoints", "", &corev1.Endpoints{ObjectMeta: meta}, false}, //nolint:staticcheck // it is still served
		{"secrets", "", &corev1.Secret{ObjectMeta: meta}, false},      // somebody else's: judged, not changed
		{"pods", "binding", &corev1.Pod{ObjectMeta: meta}, false},
		{"pods", "status", &corev1.Pod{ObjectMeta: meta}, false},
		{"pods", "eviction", &corev1.Pod{ObjectMeta: meta}, false},
		{"deployments", "status", &appsv1.Deployment{ObjectMeta: meta}, false},
	} {
		for _, update := range []bool{false, true} {
			r := admissiontest.Creating(c.resource, c.o.DeepCopyObject(), admin, admissiontest.Subresource(c.sub))
			if update {
				r = admissiontest.Updating(c.resource, c.o.DeepCopyObject(), c.o.DeepCopyObject(), admin, admissiontest.Subresource(c.sub))
			}
			if c.resource == "namespaces" {
				r.Namespace = "red" // as the API says of a Namespace
			}
			err := chain(t, l, r)
			if changed := labels(t, r)["a"] == "b"; err != nil || changed != c.reached {
				t.Errorf("%s/%s: changed %v, want %v (%v)", c.resource, c.sub, changed, c.reached, err)
			}
		}
	}
	// What the cluster's own parts and the break-glass identity do is left alone.
	for _, who := range []user.Info{
		&user.DefaultInfo{Name: "root", Groups: []string{user.SystemPrivilegedGroup}}, &user.DefaultInfo{Name: user.APIServerUser},
		&user.DefaultInfo{Name: "system:node:a", Groups: []string{user.NodesGroup}},
		&user.DefaultInfo{
			Name:   "system:serviceaccount:kube-system:replicaset-controller",
			Groups: []string{"system:serviceaccounts:kube-system"},
		},
	} {
		r := admissiontest.Creating("pods", &corev1.Pod{ObjectMeta: meta}, admissiontest.By(who))
		if err := chain(t, l, r); err != nil || labels(t, r)["a"] != "" {
			t.Errorf("%s: %v %v", who.GetName(), err, labels(t, r))
		}
	}
}

// TestASecretsTokenIsOutOfReach, be the writer allowed to read it or not.
func TestASecretsTokenIsOutOfReach(t *testing.T) {
	l := owned(t, "red", "tina", may{"tina": {"get secrets red", "create secrets red"}}, `{allowed: false, message: seen}`, validates)
	secret := func(kind corev1.SecretType, who string) error {
		return chain(t, l,
			admissiontest.Creating("secrets", &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "red"}, Type: kind},
				admissiontest.By(&user.DefaultInfo{Name: who})))
	}
	if err := secret(corev1.SecretTypeOpaque, "ann"); err == nil || !strings.Contains(err.Error(), "seen") {
		t.Errorf("a Secret that the writer may read: %v", err)
	}
	if err := secret(corev1.SecretTypeServiceAccountToken, "ann"); err != nil {
		t.Errorf("a token: %v", err)
	}
}

// TestAPluginDoesNoMoreThanItsWriter: what its writer could not see is not shown to it,
// what he could not write it does not change, by the failure policy.
func TestAPluginDoesNoMoreThanItsWriter(t *testing.T) {
	meta := metav1.ObjectMeta{Name: "x", Namespace: "red", Labels: map[string]string{"k": "v"}}
	ann := admissiontest.By(&user.DefaultInfo{Name: "ann"})
	for _, c := range []struct {
		name      string
		namespace string
		rights    []string
		more      string
		problem   string
		changed   bool
	}{
		{"all", "red", []string{"get pods red", "create pods red"}, mutates, "", true},
		{"he may not create", "red", []string{"get pods red"}, mutates, `may do no more than its writer, and "tina" may not create pods in namespace red`, false},
		{"he may not create, and it does not matter", "red", []string{"get pods red"}, mutates + "\n    failurePolicy: Ignore", "", false},
		{"he may not read", "red", nil, mutates, `"tina" may not get pods in namespace red`, false},
		{"he may give more than he has", "red", []string{"grant tenantplugins.plugins.wasmplane.dev red"}, mutates, "", true},
		{"a Plugin of the cluster, too", "", []string{"get pods red"}, mutates, `"tina" may not create pods in namespace red`, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := owned(t, c.namespace, "tina", may{"tina": c.rights}, labelling, c.more)
			r := admissiontest.Creating("pods", &corev1.Pod{ObjectMeta: meta}, ann)
			err := chain(t, l, r)
			if (err == nil) != (c.problem == "") || err != nil && !strings.Contains(err.Error(), c.problem) {
				t.Errorf("%v, want %q", err, c.problem)
			}
			if changed := labels(t, r)["a"] == "b"; changed != c.changed {
				t.Errorf("changed: %v", changed)
			}
		})
	}
}

// TestARoleIsNotChangedThroughAPlugin: not for somebody who may write roles, which RBAC
// lets do no more than he has; only for whoever may give plugins more than he has.
func TestARoleIsNotChangedThroughAPlugin(t *testing.T) {
	binding := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "x", Namespace: "red", Labels: map[string]string{"k": "v"}}}
	rights := []string{"get rolebindings.rbac.authorization.k8s.io red", "create rolebindings.rbac.authorization.k8s.io red"}
	for _, more := range []string{"", "grant plugins.plugins.wasmplane.dev "} {
		l := owned(t, "", "tina", may{"tina": append(slices.Clone(rights), more)}, labelling, mutates)
		r := admissiontest.Creating("rolebindings", binding.DeepCopy(), admissiontest.By(&user.DefaultInfo{Name: "ann"}))
		if err := chain(t, l, r); (err == nil) != (more != "") || err != nil && !strings.Contains(err.Error(), "may not change who may do what") {
			t.Errorf("with %q: %v", more, err)
		}
	}
}

// TestWhatAPluginChangesIsValidatedAsItsWriter: an administrator's exemption from a
// policy is not his plugin's writer's.
func TestWhatAPluginChangesIsValidatedAsItsWriter(t *testing.T) {
	l := owned(t, "red", "tina", may{"tina": {"get pods red", "create pods red"}}, labelling, mutates)
	var asked []string
	exempting := admissiontest.Validating("podsecurity", func(_ context.Context, r *admission.Request) error {
		asked = append(asked, r.User.GetName())
		if r.User.GetName() == "ann" {
			return nil
		}
		return admission.Forbidden(r, errNotExempt)
	})
	c, err := admission.NewChain(append([]admission.Plugin{exempting}, l.AdmissionPlugins()...)...)
	if err != nil {
		t.Fatal(err)
	}
	r := admissiontest.Creating("pods",
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "x", Namespace: "red", Labels: map[string]string{"k": "v"}}},
		admissiontest.By(&user.DefaultInfo{Name: "ann"}))
	if err := c.Mutate(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	err = c.Validate(t.Context(), r)
	if err == nil || !strings.Contains(err.Error(), `on behalf of its writer, "tina"`) || !slices.Equal(asked, []string{"ann", "tina"}) {
		t.Errorf("%v, asked as %v", err, asked)
	}
}

// TestNoWriterNoRights: an object that came past the server's record acts for nobody.
func TestNoWriterNoRights(t *testing.T) {
	dir := t.TempDir()
	replaceFile(t, filepath.Join(dir, "canned.wasm"), plugintest.Canned(t))
	list := entries(t, "plugins:\n  - {name: canned, source: 'file:canned.wasm', settings: {}, points: [admission.validate], grants: {read: [{resources: [secrets]}]}}\n")
	list[0].FromAPI = true
	l := newLoader(t, loader.Config{InProcess: true, Dir: dir, Functions: hostfn.New(hostfn.Backend{Access: may{}})})
	if err := l.Apply(t.Context(), loader.API, list); err == nil || !strings.Contains(err.Error(),
		"who wrote plugin \"canned\" is not recorded") {
		t.Errorf("%v", err)
	}
}

// TestLoadingTakesTheWritersRights: what is granted, and where the module takes part.
func TestLoadingTakesTheWritersRights(t *testing.T) {
	for _, c := range []struct{ more, right, problem string }{
		{validates, "", ""},
		{validates + "\n    grants: {read: [{resources: [secrets], namespaces: [red]}]}", "get secrets red", `spec.grants.read[0]: plugin "canned" may do no more than its writer, and "tina" may not list secrets in namespace red`},
		{validates + "\n    grants: {http: [{hosts: [a.example]}]}", "", "spec.grants.http"},
		{"points: [authorization]", "", "may not decide who may do what"},
		{"points: [authorization]", "grant plugins.plugins.wasmplane.dev ", ""},
		{"points: [reconcile]\n    reconcile: {serviceAccount: kube-system/root}", "", `may not impersonate serviceaccounts "root" in namespace kube-system`},
	} {
		dir := t.TempDir()
		replaceFile(t, filepath.Join(dir, "canned.wasm"), plugintest.Canned(t))
		list := entries(t, "plugins:\n  - name: canned\n    source: file:canned.wasm\n    settings: {}\n    "+c.more+"\n")
		list[0].FromAPI, list[0].Writer = true, &user.DefaultInfo{Name: "tina"}
		l := newLoader(t, loader.Config{InProcess: true, Dir: dir, Functions: hostfn.New(hostfn.Backend{Access: may{"tina": {c.right}}})})
		if err := l.Apply(t.Context(), loader.API, []manifest.Entry{list[0]}); (err == nil) != (c.problem == "") ||
			err != nil && !strings.Contains(err.Error(), c.problem) {
			t.Errorf("%s with %q: %v, want %q", c.more, c.right, err, c.problem)
		}
	}
}
