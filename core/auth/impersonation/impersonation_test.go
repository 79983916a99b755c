// SPDX-License-Identifier: Apache-2.0

package impersonation_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/wasmplane/wasmplane/core/auth/authz"
	"github.com/wasmplane/wasmplane/core/auth/impersonation"
)

// rights allows questions by their words, "VERB GROUP/RESOURCE[/SUB] [NAMESPACE/]NAME", and
// remembers those that it was asked.
type rights struct {
	allowed []string
	fails   error
	asked   []string
}

func (r *rights) Authorize(_ context.Context, a authz.Attributes) (authz.Decision, string, error) {
	q := fmt.Sprintf("%s %s/%s", a.GetVerb(), a.GetAPIGroup(), a.GetResource())
	if a.GetSubresource() != "" {
		q += "/" + a.GetSubresource()
	}
	q += " " + strings.TrimPrefix(a.GetNamespace()+"/"+a.GetName(), "/")
	if extra := a.GetUser().GetExtra(); len(extra["authentication.kubernetes.io/associated-node-keys"]) > 0 {
		q += " beside its node"
	}
	r.asked = append(r.asked, q)
	if slices.Contains(r.allowed, q) {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", r.fails
}

const getPod = "get /pods ns/p"

func request(asker *user.DefaultInfo) *authorizer.AttributesRecord {
	return &authorizer.AttributesRecord{
		User: asker, Verb: "get", APIVersion: "v1", Resource: "pods", Namespace: "ns", Name: "p", ResourceRequest: true,
	}
}

func on(mode string) string {
	return strings.Replace(getPod, "get ", "impersonate-on:"+mode+":get ", 1)
}

// Every mode, with each of its rights and with each of them missing.
func TestModes(t *testing.T) {
	sa := &user.DefaultInfo{
		Name: "system:serviceaccount:ns:agent", Extra: map[string][]string{"authentication.kubernetes.io/node-name": {"n1"}},
	}
	bob := &user.DefaultInfo{Name: "bob"}
	const authn = "authentication.k8s.io/"
	for name, c := range map[string]struct {
		asker      *user.DefaultInfo
		wanted     user.DefaultInfo
		rights     []string
		constraint string
		groups     string
	}{
		"the node of the pod": {
			sa,
			user.DefaultInfo{Name: "system:node:n1"},
			[]string{on("associated-node") + " beside its node", "impersonate:associated-node " + authn + "nodes * beside its node"},
			"impersonate:associated-node", "system:nodes system:authenticated",
		},
		"any node": {
			bob,
			user.DefaultInfo{Name: "system:node:n1"},
			[]string{on("arbitrary-node"), "impersonate:arbitrary-node " + authn + "nodes n1"},
			"impersonate:arbitrary-node", "system:nodes system:authenticated",
		},
		"a service account": {
			bob,
			user.DefaultInfo{Name: "system:serviceaccount:ns:sa"},
			[]string{on("serviceaccount"), "impersonate:serviceaccount " + authn + "serviceaccounts ns/sa"},
			"impersonate:serviceaccount", "system:serviceaccounts system:serviceaccounts:ns system:authenticated",
		},
		"a user with all that there is": {
			bob,
			user.DefaultInfo{Name: "alice", UID: "7", Groups: []string{"devs"}, Extra: map[string][]string{"a.example/k": {"v"}}},
			[]string{
				on("user-info"), "impersonate:user-info " + authn + "users alice", "impersonate:user-info " + authn + "uids 7",
				"impersonate:user-info " + authn + "groups devs", "impersonate:user-info " + authn + "userextras/a.example/k v",
			},
			"impersonate:user-info", "devs system:authenticated",
		},
		"many groups by one right": {
			bob,
			user.DefaultInfo{Name: "alice", Groups: []string{"a", "b", "c", "d"}},
			[]string{on("user-info"), "impersonate:user-info " + authn + "users alice", "impersonate:user-info " + authn + "groups *"},
			"impersonate:user-info", "a b c d system:authenticated",
		},
		"the oldest mode": {
			bob,
			user.DefaultInfo{Name: "alice", UID: "7", Groups: []string{"system:masters"}},
			[]string{"impersonate /users alice", "impersonate " + authn + "uids 7", "impersonate /groups system:masters"},
			"", "system:masters system:authenticated",
		},
		"a node in the oldest mode is a user": {
			bob, user.DefaultInfo{Name: "system:node:n1"}, []string{"impersonate /users system:node:n1"}, "", "system:authenticated",
		},
		"nobody": {
			bob, user.DefaultInfo{Name: "system:anonymous"}, []string{"impersonate /users system:anonymous"}, "", "system:unauthenticated",
		},
	} {
		granted, err := impersonation.New(&rights{allowed: c.rights}).Decide(t.Context(), &c.wanted, request(c.asker))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if granted.Constraint != c.constraint || strings.Join(granted.User.Groups, " ") != c.groups || granted.User.Name != c.wanted.Name {
			t.Errorf("%s: got %q, %+v", name, granted.Constraint, granted.User)
		}
		for i := range c.rights {
			less := slices.Delete(slices.Clone(c.rights), i, i+1)
			if granted, err := impersonation.New(&rights{allowed: less}).Decide(t.Context(), &c.wanted, request(c.asker)); err == nil {
				t.Errorf("%s, without %q: granted %+v", name, c.rights[i], granted)
			}
		}
	}
}

// What the constrained modes do not let anybody be, whatever rights they have.
func TestNeverConstrained(t *testing.T) {
	everything := rightsToAll{}
	for name, wanted := range map[string]user.DefaultInfo{
		"the privileged group":  {Name: "alice", Groups: []string{"system:masters"}},
		"a group without name":  {Name: "alice", Groups: []string{""}},
		"an extra without name": {Name: "alice", Extra: map[string][]string{"": {"v"}}},
		"an extra of no domain": {Name: "alice", Extra: map[string][]string{"k": {"v"}}},
		"an extra of nothing":   {Name: "alice", Extra: map[string][]string{"a.example/k": {""}}},
		"a node with groups":    {Name: "system:node:n", Groups: []string{"system:nodes"}},
		"an account with a uid": {Name: "system:serviceaccount:ns:sa", UID: "1"},
	} {
		if granted, err := impersonation.New(everything).Decide(t.Context(), &wanted, request(&user.DefaultInfo{Name: "bob"})); err == nil {
			t.Errorf("%s: granted %+v", name, granted)
		}
	}
	// A pod of one node is not the other node.
	asker := &user.DefaultInfo{
		Name: "system:serviceaccount:ns:agent", Extra: map[string][]string{"authentication.kubernetes.io/node-name": {"n2"}},
	}
	r := &rights{allowed: []string{
		on("associated-node") + " beside its node", "impersonate:associated-node authentication.k8s.io/nodes * beside its node",
	}}
	if granted, err := impersonation.New(r).Decide(t.Context(), &user.DefaultInfo{Name: "system:node:n1"}, request(asker)); err == nil {
		t.Errorf("granted %+v to a pod of n2", granted)
	}
}

// rightsToAll has every right of the constrained modes.
type rightsToAll struct{}

func (rightsToAll) Authorize(_ context.Context, a authz.Attributes) (authz.Decision, string, error) {
	if a.GetVerb() == "impersonate" {
		return authorizer.DecisionNoOpinion, "", nil
	}
	return authorizer.DecisionAllow, "", nil
}

// The mode that somebody had last is asked first, and its refusal is what they read.
func TestTheLastModeIsFirst(t *testing.T) {
	r := &rights{allowed: []string{"impersonate /users alice"}}
	d := impersonation.New(r)
	decide := func() error {
		r.asked = nil
		_, err := d.Decide(t.Context(), &user.DefaultInfo{Name: "alice"}, request(&user.DefaultInfo{Name: "bob"}))
		return err
	}
	if err := decide(); err != nil || len(r.asked) != 2 {
		t.Fatalf("first: %v, asked %q", err, r.asked)
	}
	if err := decide(); err != nil || len(r.asked) != 1 {
		t.Errorf("again: %v, asked %q", err, r.asked)
	}
	r.allowed, r.fails = nil, errors.New("the webhook is away")
	const says = `users "alice" is forbidden: User "bob" cannot impersonate resource "users" in API group "" at the cluster scope: the webhook is away`
	if err := decide(); err == nil || err.Error() != says {
		t.Errorf("got %v, expected %s", err, says)
	}
}

func TestWanted(t *testing.T) {
	header := http.Header{
		"Impersonate-User": {"alice"}, "Impersonate-Group": {"a", "b"}, "Impersonate-Extra-Acme.com%2fscope": {"x"}, "Impersonate-Uid": {"7"}, "Accept": {"*/*"},
	}
	w, err := impersonation.Wanted(header)
	if err != nil || w.Name != "alice" || w.UID != "7" || len(w.Groups) != 2 || w.Extra["acme.com/scope"][0] != "x" {
		t.Errorf("got %+v, %v", w, err)
	}
	if len(header) != 1 {
		t.Errorf("headers are left: %v", header)
	}
	if w, err := impersonation.Wanted(http.Header{"Accept": {"*/*"}}); w != nil || err != nil {
		t.Errorf("nobody is wanted: got %v, %v", w, err)
	}
	const says = `requested &user.DefaultInfo{Name:"", UID:"7", Groups:[]string(nil), Extra:map[string][]string(nil)} without impersonating a user name`
	if _, err := impersonation.Wanted(http.Header{"Impersonate-Uid": {"7"}}); err == nil || err.Error() != says {
		t.Errorf("got %v", err)
	}
	if _, err := impersonation.Wanted(http.Header{"Impersonate-User": {"a"}, "Impersonate-Extra-%zz": {"x"}}); err == nil {
		t.Error("an extra key that is not escaped well was taken")
	}
}
