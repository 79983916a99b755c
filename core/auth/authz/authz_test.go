// SPDX-License-Identifier: Apache-2.0

package authz_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/wasmplane/wasmplane/core/auth/authz"
	"github.com/wasmplane/wasmplane/core/auth/authz/authztest"
	"github.com/wasmplane/wasmplane/core/trace"
)

// says always gives one answer.
type says struct {
	name   string
	d      authz.Decision
	reason string
	err    error
}

func (s says) Name() string { return s.name }
func (s says) Authorize(context.Context, authz.Attributes) (authz.Decision, string, error) {
	return s.d, s.reason, s.err
}

func chain(t *testing.T, list ...authz.Authorizer) *authz.Chain {
	t.Helper()
	c, err := authz.NewChain(list...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func jane() *user.DefaultInfo { return &user.DefaultInfo{Name: "jane"} }

func getPod(u user.Info) authorizer.AttributesRecord {
	return authorizer.AttributesRecord{
		User: u, Verb: "get", APIVersion: "v1", Resource: "pods", Namespace: "ns", Name: "p",
		ResourceRequest: true,
	}
}

func TestTheFirstOpinionDecides(t *testing.T) {
	yes, no, shrug := says{"yes", authz.Allow, "", nil}, says{"no", authz.Deny, "policy forbids", nil}, says{
		"shrug", authz.NoOpinion,
		"not mine", errors.New("store is away"),
	}
	for _, c := range []struct {
		name   string
		list   []authz.Authorizer
		want   authz.Decision
		reason string
		err    string
	}{
		{"nobody", nil, authz.NoOpinion, "", ""},
		{"deny before allow", []authz.Authorizer{no, yes}, authz.Deny, "policy forbids", ""},
		{"allow before deny", []authz.Authorizer{yes, no}, authz.Allow, "", ""},
		{"an error lets the next decide", []authz.Authorizer{shrug, yes}, authz.Allow, "", ""},
		{"nobody has an opinion", []authz.Authorizer{shrug, says{"s2", authz.NoOpinion, "nor mine", nil}}, authz.NoOpinion, "not mine\nnor mine", "store is away"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, reason, err := chain(t, c.list...).Authorize(t.Context(), getPod(jane()))
			if d != c.want || reason != c.reason || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s, %q, %v", authz.Text(d), reason, err)
			}
		})
	}
}

func TestBreakGlassIsAboveEveryPolicy(t *testing.T) {
	c := chain(t, says{"no", authz.Deny, "", nil})
	if d, _, _ := c.Authorize(t.Context(), getPod(&user.DefaultInfo{Name: "root", Groups: []string{"system:masters"}})); d != authz.Allow {
		t.Error("locked out")
	}
}

func TestPoliciesCannotReachWhatKeepsTheClusterAlive(t *testing.T) {
	guarded := chain(t, authz.Guard(says{"no", authz.Deny, "", nil}), says{"rbac", authz.Allow, "", nil})
	node := &user.DefaultInfo{Name: "system:node:n1", Groups: []string{"system:nodes"}}
	fakeNode := &user.DefaultInfo{Name: "system:node:n1"}
	scheduler := &user.DefaultInfo{Name: "system:kube-scheduler"}
	account := &user.DefaultInfo{Name: "system:serviceaccount:kube-system:job-controller"}
	theirs := &user.DefaultInfo{Name: "system:serviceaccount:team:default"}
	resource := func(u user.Info, verb, group, resource, sub, ns, name string) authorizer.AttributesRecord {
		return authorizer.AttributesRecord{
			User: u, Verb: verb, APIGroup: group, Resource: resource, Subresource: sub, Namespace: ns, Name: name,
			ResourceRequest: true,
		}
	}
	authztest.Run(t, guarded.Authorizers()[0],
		authztest.Case{Name: "a user's pod", Question: getPod(jane()), Want: authz.Deny},
		authztest.Case{Name: "break-glass", Question: getPod(&user.DefaultInfo{Groups: []string{"system:masters"}}), Want: authz.NoOpinion},
		authztest.Case{
			Name: "a lease", Question: resource(jane(), "update", "coordination.k8s.io", "leases", "", "kube-node-lease", "n1"),
			Want: authz.NoOpinion,
		},
		authztest.Case{Name: "status", Question: resource(scheduler, "patch", "", "pods", "status", "ns", "p"), Want: authz.NoOpinion},
		authztest.Case{
			Name: "health", Question: authorizer.AttributesRecord{User: jane(), Verb: "get", Path: "/readyz/etcd"},
			Want: authz.NoOpinion,
		},
		authztest.Case{
			Name: "another path", Question: authorizer.AttributesRecord{User: jane(), Verb: "get", Path: "/readyzz"},
			Want: authz.Deny,
		},
		authztest.Case{Name: "a node's own Node", Question: resource(node, "update", "", "nodes", "", "", "n1"), Want: authz.NoOpinion},
		authztest.Case{Name: "a node registers", Question: resource(node, "create", "", "nodes", "", "", ""), Want: authz.NoOpinion},
		authztest.Case{Name: "another's Node", Question: resource(node, "update", "", "nodes", "", "", "n2"), Want: authz.Deny},
		authztest.Case{Name: "who only calls itself a node", Question: resource(fakeNode, "update", "", "nodes", "", "", "n1"), Want: authz.Deny},
		authztest.Case{
			Name: "a component's event", Question: resource(scheduler, "create", "events.k8s.io", "events", "", "ns", ""),
			Want: authz.NoOpinion,
		},
		authztest.Case{Name: "a user's event", Question: resource(jane(), "create", "events.k8s.io", "events", "", "ns", ""), Want: authz.Deny},
		authztest.Case{
			Name: "a component deletes events", Question: resource(scheduler, "delete", "", "events", "", "ns", "e"),
			Want: authz.Deny,
		},
		authztest.Case{Name: "a component asks who is who", Question: resource(account, "create", "authentication.k8s.io", "tokenreviews", "",
			"", ""), Want: authz.NoOpinion},
		authztest.Case{Name: "a controller's own account", Question: resource(account, "get", "", "serviceaccounts", "token", "kube-system",
			"job-controller"), Want: authz.NoOpinion},
		authztest.Case{Name: "another's account", Question: resource(account, "create", "", "serviceaccounts", "token", "kube-system",
			"default"), Want: authz.Deny},
		authztest.Case{
			Name:     "a workload's account is no component",
			Question: resource(theirs, "create", "authentication.k8s.io", "tokenreviews", "", "", ""), Want: authz.Deny,
		},
	)
}

func TestTheSpanNamesWhoDecided(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	ctx, root := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)).Tracer("t").Start(t.Context(), trace.Request)
	_, _, _ = chain(t, says{"node", authz.NoOpinion, "", nil}, says{"rbac", authz.Allow, "by role x", nil}).Authorize(ctx, getPod(jane()))
	root.End()
	s := recorder.Ended()[0]
	var got []string
	for _, a := range s.Attributes() {
		got = append(got, a.Value.AsString())
	}
	if s.Name() != trace.Authorize || !slices.Equal(got, []string{"rbac", "allow", "by role x"}) || len(s.Events()) != 2 {
		t.Errorf("span %s %q, %d events", s.Name(), got, len(s.Events()))
	}
}

func TestRefusalsAreWordedLikeUpstreams(t *testing.T) {
	for _, c := range []struct {
		q    authorizer.AttributesRecord
		want string
	}{
		{getPod(jane()), `pods "p" is forbidden: User "jane" cannot get resource "pods" in API group "" in the namespace "ns": why`},
		{authorizer.AttributesRecord{User: jane(), Verb: "list", Resource: "nodes", ResourceRequest: true}, `nodes is forbidden: User "jane" cannot list resource "nodes" in API group "" at the cluster scope: why`},
		{authorizer.AttributesRecord{User: jane(), Verb: "get", Path: "/<x>"}, `forbidden: User "jane" cannot get path "/&lt;x&gt;": why`},
	} {
		if got := authz.Forbidden(c.q, "why").Error(); got != c.want {
			t.Errorf("%s\nwant %s", got, c.want)
		}
	}
}

// seesSelector has an opinion only if the selectors are there.
type seesSelector struct{ got *authorizer.AttributesRecord }

func (seesSelector) Name() string { return "selector" }
func (s seesSelector) Authorize(_ context.Context, a authz.Attributes) (authz.Decision, string, error) {
	*s.got = a.(authorizer.AttributesRecord)
	return authz.NoOpinion, "because", nil
}

func TestReviewAsksTheWholeQuestion(t *testing.T) {
	var got authorizer.AttributesRecord
	status := authz.Review(t.Context(), seesSelector{&got}, authorizationv1.SubjectAccessReviewSpec{
		User: "jane", Groups: []string{"g"}, Extra: map[string]authorizationv1.ExtraValue{"k": {"v"}},
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: "list", Resource: "pods", Namespace: "ns",
			FieldSelector: &authorizationv1.FieldSelectorAttributes{Requirements: []metav1.FieldSelectorRequirement{
				{Key: "spec.nodeName", Operator: metav1.FieldSelectorOpIn, Values: []string{"n1"}}, {Key: "x", Operator: "Weird", Values: []string{"y"}},
			}},
			LabelSelector: &authorizationv1.LabelSelectorAttributes{RawSelector: "app=web"},
		},
	})
	if status.Allowed || status.Denied || status.Reason != "because" || !strings.Contains(status.EvaluationError, "Weird") {
		t.Errorf("status %+v", status)
	}
	if got.APIVersion != "*" || len(got.FieldSelectorRequirements) != 1 || len(got.LabelSelectorRequirements) != 1 || got.User.GetExtra()["k"][0] != "v" {
		t.Errorf("asked %+v", got)
	}
}
