// SPDX-License-Identifier: Apache-2.0

package story

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/kubernetes"

	"github.com/wasmplane/wasmplane/core/api/rbac"
	"github.com/wasmplane/wasmplane/core/bootstrap/roles"
	"github.com/wasmplane/wasmplane/test/internal/harness"
)

// right is what a request needs.
type right struct{ verb, group, resource string }

func (r right) String() string {
	return strings.TrimSpace(r.verb + " " + r.resource + " " + r.group)
}

// attributes are those of a request that needs the right, in a namespace.
func (r right) attributes(u user.Info) authorizer.Attributes {
	resource, sub, _ := strings.Cut(r.resource, "/")
	return authorizer.AttributesRecord{User: u, Verb: r.verb, APIGroup: r.group, Resource: resource, Subresource: sub, ResourceRequest: true}
}

// watched is a cluster whose every request is recorded.
type watched struct {
	*harness.Cluster
	t      *testing.T
	client kubernetes.Interface
	audit  string
	flags  []string
}

func newWatched(t *testing.T, nodes ...string) *watched {
	t.Helper()
	c := harness.NewFor(t, built.Binary, built.Dir)
	w := &watched{Cluster: c, t: t, audit: filepath.Join(c.Dir, "audit.log")}
	configuration := filepath.Join(c.Dir, "wasmplane.yaml")
	text := "apiVersion: wasmplane.dev/v1alpha1\nkind: Configuration\napiserver: {auditLogFile: " + w.audit + "}\n"
	if err := os.WriteFile(configuration, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	w.flags = append([]string{"--config", configuration}, nodes...)
	if _, err := c.Up(w.flags...); err != nil {
		t.Fatal(err)
	}
	var err error
	if w.client, err = c.Client(); err != nil {
		t.Fatal(err)
	}
	return w
}

// requests reads the audit log.
func (w *watched) requests() []auditv1.Event {
	w.t.Helper()
	file, err := os.Open(w.audit)
	if err != nil {
		w.t.Fatal(err)
	}
	defer file.Close()
	var events []auditv1.Event
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 4<<20)
	for lines.Scan() {
		var e auditv1.Event
		if err := json.Unmarshal(lines.Bytes(), &e); err == nil { // the last line may be on its way
			events = append(events, e)
		}
	}
	return events
}

func forbidden(e *auditv1.Event) bool { return e.ResponseStatus != nil && e.ResponseStatus.Code == 403 }

func rightOf(e *auditv1.Event) (right, bool) {
	if e.ObjectRef == nil || e.ObjectRef.Resource == "" {
		return right{}, false
	}
	r := right{e.Verb, e.ObjectRef.APIGroup, e.ObjectRef.Resource}
	if e.ObjectRef.Subresource != "" {
		r.resource += "/" + e.ObjectRef.Subresource
	}
	return r, true
}

// used collects which identity needed which rights.
func used(events []auditv1.Event) map[string]map[right]bool {
	out := map[string]map[right]bool{}
	for i := range events {
		if r, ok := rightOf(&events[i]); ok {
			name := events[i].User.Username
			if out[name] == nil {
				out[name] = map[right]bool{}
			}
			out[name][r] = true
		}
	}
	return out
}

// story is a day of a cluster: a namespace with a Deployment that grows, rolls
// and goes, a Job, a Service, and the namespace's end.
func (w *watched) story(ctx context.Context, namespace string) error {
	c := w.client
	zero := int64(0)
	pods := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: &zero,
			Containers:                    []corev1.Container{{Name: "web", Image: "wasmplane.local/toolbox:1"}},
		},
	}
	replicas := int32(2)
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: appsv1.DeploymentSpec{
		Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, Template: pods,
	}}
	once := *pods.DeepCopy()
	once.Labels = nil
	once.Spec.RestartPolicy = corev1.RestartPolicyNever
	once.Spec.Containers[0].Command = []string{"exit", "0"}
	steps := []func() error{
		func() error {
			_, err := c.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
			return err
		},
		func() error { // the service account that pods need
			return w.eventually(ctx, func() bool {
				_, err := c.CoreV1().ServiceAccounts(namespace).Get(ctx, "default", metav1.GetOptions{})
				return err == nil
			})
		},
		func() error {
			_, err := c.CoreV1().Services(namespace).Create(ctx,
				&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.ServiceSpec{
					Selector: pods.Labels, Ports: []corev1.ServicePort{{Port: 80}},
				}}, metav1.CreateOptions{})
			return err
		},
		func() error {
			_, err := c.BatchV1().Jobs(namespace).Create(ctx,
				&batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "once"}, Spec: batchv1.JobSpec{Template: once}}, metav1.CreateOptions{})
			return err
		},
		func() error {
			_, err := c.AppsV1().Deployments(namespace).Create(ctx, d, metav1.CreateOptions{})
			return err
		},
		func() error { return w.available(ctx, namespace, 2, 1) },
		func() error {
			patch := `{"spec":{"replicas":3,"template":{"spec":{"containers":[{"name":"web","env":[{"name":"A","value":"B"}]}]}}}}`
			_, err := c.AppsV1().Deployments(namespace).Patch(ctx, "web", "application/strategic-merge-patch+json", []byte(patch),
				metav1.PatchOptions{})
			return err
		},
		func() error { return w.available(ctx, namespace, 3, 2) },
		func() error { return c.AppsV1().Deployments(namespace).Delete(ctx, "web", metav1.DeleteOptions{}) },
		func() error {
			return w.eventually(ctx, func() bool {
				list, err := c.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=web"})
				return err == nil && len(list.Items) == 0
			})
		},
		func() error { return c.CoreV1().Namespaces().Delete(ctx, namespace, metav1.DeleteOptions{}) },
		func() error {
			return w.eventually(ctx, func() bool {
				_, err := c.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
				return apierrors.IsNotFound(err)
			})
		},
	}
	for i, step := range steps {
		if err := step(); err != nil {
			return fmt.Errorf("step %d of the story in %s: %w", i+1, namespace, err)
		}
	}
	return nil
}

func (w *watched) available(ctx context.Context, namespace string, replicas int32, generation int64) error {
	return w.eventually(ctx, func() bool {
		d, err := w.client.AppsV1().Deployments(namespace).Get(ctx, "web", metav1.GetOptions{})
		return err == nil && d.Status.ObservedGeneration >= generation && d.Status.Replicas == replicas &&
			d.Status.UpdatedReplicas == replicas && d.Status.AvailableReplicas == replicas
	})
}

func (w *watched) eventually(ctx context.Context, is func() bool) error {
	return harness.Poll(ctx, 200*time.Millisecond, func() error {
		if !is() {
			return errors.New("it did not come so far")
		}
		return nil
	})
}

// Each component works under an identity of its own, with the rights of its roles
// and no more; none is in system:masters.
func TestComponentsWorkWithTheirOwnRights(t *testing.T) {
	t.Parallel()
	simulated := newWatched(t, "--nodes", "simulated:2")
	ctx, cancel := context.WithTimeout(t.Context(), harness.Patience)
	defer cancel()
	if err := simulated.story(ctx, "day"); err != nil {
		t.Fatal(err)
	}
	onMachine := newWatched(t, "--nodes", "real", "--node-name", "here")
	if out, err := exec.Command(built.Binary, "image", "import", built.toolbox, "--data-dir", onMachine.Data).CombinedOutput(); err != nil {
		t.Fatalf("import the image: %v\n%s", err, out)
	}
	// A fresh deadline; a namespace of the cluster's name, by which leftovers are told.
	ctx, cancel = context.WithTimeout(t.Context(), harness.Patience)
	defer cancel()
	if err := onMachine.story(ctx, onMachine.Name); err != nil {
		t.Fatal(err)
	}
	events := append(simulated.requests(), onMachine.requests()...)
	identities := map[string]roles.Component{}
	for _, c := range append(roles.Components("here"), roles.Components("simulated-1")...) {
		identities[c.User.GetName()] = c
	}
	identities[roles.SimulatedNodes().GetName()] = roles.Component{Name: "simulated nodes", User: roles.SimulatedNodes()}

	policy := roles.Policy()
	served := map[string]bool{}
	for i := range events {
		if e := &events[i]; e.ResponseStatus != nil && e.ResponseStatus.Code < 300 {
			served[e.User.Username+" "+e.Verb+" "+e.RequestURI] = true
		}
	}
	for i := range events {
		e := &events[i]
		c, known := identities[e.User.Username]
		if known && slices.Contains(e.User.Groups, user.SystemPrivilegedGroup) {
			t.Errorf("%s is in %s", c.Name, user.SystemPrivilegedGroup)
		}
		if !known || !forbidden(e) {
			continue
		}
		if c.ByNode && served[e.User.Username+" "+e.Verb+" "+e.RequestURI] {
			continue // it was quicker than what the Node authorizer knew of its pods, and asked again
		}
		// Admission says no with the same code, such as to objects of a namespace that ends.
		if r, ok := rightOf(e); !ok || c.ByNode || !granted(policy, c, r) {
			t.Errorf("%s lacks a right: %s %s", c.Name, e.Verb, e.RequestURI)
		}
	}
	rights := used(events)
	for _, name := range []string{
		"system:kube-scheduler", "system:kube-controller-manager", "system:kube-proxy", "system:node:here", "system:node:simulated-1",
		roles.CoreDNS().GetName(), roles.SimulatedNodes().GetName(),
		"system:serviceaccount:kube-system:deployment-controller", "system:serviceaccount:kube-system:replicaset-controller",
		"system:serviceaccount:kube-system:job-controller", "system:serviceaccount:kube-system:endpointslice-controller",
		"system:serviceaccount:kube-system:namespace-controller", "system:serviceaccount:kube-system:service-account-controller",
		"system:serviceaccount:kube-system:root-ca-cert-publisher", "system:serviceaccount:kube-system:generic-garbage-collector",
		"system:serviceaccount:kube-system:node-controller", trustPublisher,
	} {
		if len(rights[name]) == 0 {
			t.Errorf("nothing was asked as %s: either it has no work, or it works under another's name", name)
		}
	}
	for name, c := range identities {
		if c.ByNode { // the Node authorizer judges it by what its pods need
			continue
		}
		for r := range rights[name] {
			if !granted(policy, c, r) {
				t.Errorf("%s used %q, which no role gives it", c.Name, r)
			}
		}
	}
	// Of the roles that are ours alone, nothing is given that is not needed.
	for _, own := range []struct{ role, user string }{
		{roles.CoreDNSRole, roles.CoreDNS().GetName()}, {roles.SimulatedNodesRole, roles.SimulatedNodes().GetName()},
	} {
		for _, r := range rightsOf(policy, own.role) {
			if r.verb == "list" { // what a watch falls back to, at a server that streams no lists
				r.verb = "watch"
			}
			if !rights[own.user][r] {
				t.Errorf("role %s gives %q, which %s did not use", own.role, r, own.user)
			}
		}
	}
}

// trustPublisher publishes the authorities of the API servers' certificates.
const trustPublisher = "system:serviceaccount:kube-system:kube-apiserver-serving-clustertrustbundle-publisher"

// What is done once in a year, or only after somebody's mistake, is in no day's audit log.
func TestRareWorkHasItsRights(t *testing.T) {
	t.Parallel()
	policy := roles.Policy()
	components := map[string]roles.Component{}
	for _, c := range roles.Components("here") {
		components[c.User.GetName()] = c
	}
	for name, needed := range map[string][]right{
		"system:serviceaccount:kube-system:legacy-service-account-token-cleaner": {
			{"get", "", "configmaps"}, {"patch", "", "secrets"}, {"delete", "", "secrets"},
		},
		trustPublisher: {
			{"create", "certificates.k8s.io", "clustertrustbundles"},
			{"update", "certificates.k8s.io", "clustertrustbundles"},
			{"delete", "certificates.k8s.io", "clustertrustbundles"},
			{"attest", "certificates.k8s.io", "signers"},
		},
	} {
		c, ok := components[name]
		if !ok {
			t.Errorf("%s has no role", name)
			continue
		}
		for _, r := range needed {
			if !granted(policy, c, r) {
				t.Errorf("%s needs %q, which no role gives it", c.Name, r)
			}
		}
		for _, r := range []right{{"get", "", "secrets"}, {"create", "", "pods"}, {"create", "", "serviceaccounts/token"}} {
			if granted(policy, c, r) {
				t.Errorf("%s is given %q, which it does not need", c.Name, r)
			}
		}
	}
}

// granted says whether roles give a component a right.
func granted(p rbac.Policy, c roles.Component, r right) bool {
	grants := roles.GrantsOf(p, c.User)
	rules := slices.Clone(grants.Cluster)
	for _, more := range grants.Namespaces {
		rules = append(rules, more...)
	}
	return rbac.RulesAllow(named(r, c.User, rules), rules...)
}

// named adds the name that a rule is narrowed to, where it is: the audit's rights
// are without names.
func named(r right, u user.Info, rules []rbacv1.PolicyRule) authorizer.Attributes {
	a := r.attributes(u).(authorizer.AttributesRecord)
	for i := range rules {
		for _, n := range rules[i].ResourceNames {
			with := a
			with.Name = n
			if rbac.RulesAllow(with, rules[i]) {
				return with
			}
		}
	}
	return a
}

func rightsOf(p rbac.Policy, role string) []right {
	var out []right
	for _, r := range p.ClusterRoles {
		if r.Name != role {
			continue
		}
		for _, rule := range r.Rules {
			for _, g := range rule.APIGroups {
				for _, resource := range rule.Resources {
					for _, v := range rule.Verbs {
						out = append(out, right{v, g, resource})
					}
				}
			}
		}
	}
	return out
}

// One right too few, and the component that needs it fails; given back, its work
// is done.
func TestOneRightTooFew(t *testing.T) {
	t.Parallel()
	w := newWatched(t, "--nodes", "simulated:2")
	account := func(name string) string { return "system:serviceaccount:kube-system:" + name }
	for i, c := range []struct {
		user, role string
		without    right
		provoke    func(context.Context) error // nil = the day of a cluster needs the right
	}{
		{"system:kube-scheduler", "system:kube-scheduler", right{"create", "", "pods/binding"}, nil},
		{account("deployment-controller"), "system:controller:deployment-controller", right{"create", "apps", "replicasets"}, nil},
		{account("replicaset-controller"), "system:controller:replicaset-controller", right{"create", "", "pods"}, nil},
		{account("job-controller"), "system:controller:job-controller", right{"update", "batch", "jobs/status"}, nil},
		{account("endpointslice-controller"), "system:controller:endpointslice-controller", right{"create", "discovery.k8s.io", "endpointslices"}, nil},
		{account("service-account-controller"), "system:controller:service-account-controller", right{"create", "", "serviceaccounts"}, nil},
		{account("root-ca-cert-publisher"), "system:controller:root-ca-cert-publisher", right{"create", "", "configmaps"}, nil},
		{account("namespace-controller"), "system:controller:namespace-controller", right{"update", "", "namespaces/finalize"}, nil},
		{account("generic-garbage-collector"), "system:controller:generic-garbage-collector", right{"delete", "apps", "replicasets"}, nil},
		{
			trustPublisher, "system:controller:kube-apiserver-serving-clustertrustbundle-publisher",
			right{"create", "certificates.k8s.io", "clustertrustbundles"},
			w.loseTrustBundles,
		},
	} {
		t.Run(strings.TrimPrefix(c.user, "system:serviceaccount:kube-system:"), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), harness.Patience/2)
			defer cancel()
			giveBack := w.takeAway(ctx, t, c.role, c.user, c.without)
			defer giveBack()
			namespace := fmt.Sprintf("few-%d", i)
			if c.provoke != nil {
				if err := c.provoke(ctx); err != nil {
					t.Fatal(err)
				}
			}
			told := make(chan error, 1)
			go func() { told <- w.story(ctx, namespace) }() // ends with ctx
			if err := w.eventually(ctx, func() bool { return w.refused(c.user, c.without) }); err != nil {
				t.Fatalf("%s never missed %q: %v", c.user, c.without, err)
			}
			giveBack()
			if err := <-told; err != nil {
				t.Errorf("with the right given back: %v", err)
			}
		})
	}
	// Those that only read notice at the next start.
	t.Run("readers", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), harness.Patience/2)
		defer cancel()
		r := right{"watch", "", "pods"}
		name := roles.SimulatedNodes().GetName()
		w.takeAway(ctx, t, roles.SimulatedNodesRole, name, r)
		if err := w.Stop(); err != nil {
			t.Error(err)
		}
		if _, err := w.Launch(w.flags...); err != nil {
			t.Fatal(err)
		}
		if err := w.eventually(ctx, func() bool { return w.refused(name, r) }); err != nil {
			t.Errorf("%s never missed %q: %v", name, r, err)
		}
	})
}

// loseTrustBundles deletes what is published of the API servers' authorities.
func (w *watched) loseTrustBundles(ctx context.Context) error {
	return w.client.CertificatesV1().ClusterTrustBundles().DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{FieldSelector: "spec.signerName=kubernetes.io/kube-apiserver-serving"})
}

// refused says whether the audit log has a refusal of the right.
func (w *watched) refused(name string, r right) bool {
	return slices.ContainsFunc(w.requests(), func(e auditv1.Event) bool {
		got, ok := rightOf(&e)
		return ok && got == r && e.User.Username == name && forbidden(&e)
	})
}

// takeAway takes one right out of a role, and waits until that is in force.
func (w *watched) takeAway(ctx context.Context, t *testing.T, role, name string, r right) (giveBack func()) {
	t.Helper()
	api := w.client.RbacV1().ClusterRoles()
	before, err := api.Get(ctx, role, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	after := before.DeepCopy()
	after.Annotations = maps.Clone(before.Annotations)
	after.Annotations[rbacv1.AutoUpdateAnnotationKey] = "false"
	after.Rules = nil
	for _, rule := range before.Rules {
		after.Rules = append(after.Rules, without(rule, r)...)
	}
	if _, err := api.Update(ctx, after, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.awaitAccess(ctx, t, name, r, false)
	done := false
	return func() {
		if done {
			return
		}
		done = true
		now, err := api.Get(ctx, role, metav1.GetOptions{})
		if err == nil {
			now.Rules = before.Rules
			_, err = api.Update(ctx, now, metav1.UpdateOptions{})
		}
		if err != nil {
			t.Errorf("give the right back: %v", err)
			return
		}
		w.awaitAccess(ctx, t, name, r, true)
	}
}

func (w *watched) awaitAccess(ctx context.Context, t *testing.T, name string, r right, allowed bool) {
	t.Helper()
	resource, sub, _ := strings.Cut(r.resource, "/")
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User:               name,
		ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: r.verb, Group: r.group, Resource: resource, Subresource: sub},
	}}
	if err := w.eventually(ctx, func() bool {
		answer, err := w.client.AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		return err == nil && answer.Status.Allowed == allowed
	}); err != nil {
		t.Fatalf("%s: %q allowed = %v: %v", name, r, allowed, err)
	}
}

// without is a rule less one right. Where resources are a wildcard, the verb goes
// for all of them.
func without(rule rbacv1.PolicyRule, r right) []rbacv1.PolicyRule {
	if !rbac.RulesAllow(r.attributes(&user.DefaultInfo{}), rule) {
		return []rbacv1.PolicyRule{rule}
	}
	verbs := slices.DeleteFunc(slices.Clone(rule.Verbs), func(v string) bool { return v == r.verb })
	less := *rule.DeepCopy()
	less.Verbs = verbs
	rest := *rule.DeepCopy()
	rest.Resources = slices.DeleteFunc(rest.Resources, func(s string) bool { return s == r.resource })
	var out []rbacv1.PolicyRule
	if len(verbs) > 0 {
		out = append(out, less)
	}
	if len(rest.Resources) > 0 && !slices.Contains(rule.Resources, "*") {
		out = append(out, rest)
	}
	return out
}
