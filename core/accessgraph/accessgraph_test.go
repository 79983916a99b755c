// SPDX-License-Identifier: Apache-2.0

package accessgraph

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func sample() *Graph {
	return New([]Actor{
		{Name: "twin", Role: Plugin, Identity: "kube-system/twin", Watches: []string{"jobs.batch"}, Writes: []string{"jobs.batch"}},
		{Name: "job", Role: Controller, Watches: []string{"jobs.batch", "pods"}, Reads: []string{"pods"}, Writes: []string{"pods", "jobs.batch"}},
		{Name: "scheduler", Role: Scheduler, Watches: []string{"pods", "nodes"}, Writes: []string{"pods"}},
		{Name: "garbage", Role: Controller, Watches: []string{Every}, Writes: []string{Every}},
		{Name: "reader", Role: Plugin, Watches: []string{"secrets"}, Reads: []string{"pods"}},
	})
}

func TestWhoWakesWhom(t *testing.T) {
	g := sample()
	want := []Loop{
		{A: "job", B: "twin", There: []string{"jobs.batch"}, Back: []string{"jobs.batch"}, Contested: []string{"jobs.batch"}, Plugin: true},
		{A: "job", B: "scheduler", There: []string{"pods"}, Back: []string{"pods"}, Contested: []string{"pods"}},
	}
	if !reflect.DeepEqual(g.Loops, want) {
		t.Errorf("loops %+v, want %+v", g.Loops, want)
	}
	var names []string
	for _, a := range g.Actors {
		names = append(names, a.Name)
	}
	if got := strings.Join(names, " "); got != "garbage job scheduler reader twin" {
		t.Errorf("order: %s", got)
	}
	if job := g.Actors[1]; len(job.Reads) != 0 {
		t.Errorf("pods are watched, and read besides: %v", job.Reads)
	}
}

// Two that only look at what the other one writes, in one direction, are no loop.
func TestOneWayIsNoLoop(t *testing.T) {
	g := New([]Actor{
		{Name: "a", Watches: []string{"x"}, Writes: []string{"y"}},
		{Name: "b", Watches: []string{"y"}, Writes: []string{"z"}},
		{Name: "c", Reads: []string{"z"}, Watches: []string{"y"}, Writes: []string{"z"}},
	})
	if len(g.Loops) != 0 {
		t.Errorf("loops %+v", g.Loops)
	}
	var out bytes.Buffer
	if err := g.Write(&out, ""); err != nil || !strings.Contains(out.String(), "There are no loops: ") {
		t.Errorf("%v\n%s", err, &out)
	}
}

func TestOnlyWhatIsNamed(t *testing.T) {
	part, err := sample().Only([]string{"nodes", "twin"})
	if err != nil || len(part.Actors) != 2 || part.Actors[0].Name != "scheduler" || part.Actors[1].Name != "twin" || len(part.Loops) != 1 {
		t.Errorf("%+v, %v", part, err)
	}
	if _, err := sample().Only([]string{"jobs"}); err == nil || !strings.Contains(err.Error(), `nobody is called "jobs"`) ||
		!strings.Contains(err.Error(), "expected a name such as garbage, ") {
		t.Errorf("a name that is none: %v", err)
	}
}

func TestTable(t *testing.T) {
	part, err := sample().Only([]string{"jobs.batch"})
	if err != nil {
		t.Fatal(err)
	}
	part.Actors[1].Notes = []string{"not all is known"}
	var out bytes.Buffer
	if err := part.Write(&out, ""); err != nil {
		t.Fatal(err)
	}
	const want = `ACTOR   ROLE         IDENTITY           WATCHES           READS   WRITES
job     controller   -                  jobs.batch,pods   -       jobs.batch,pods
twin    plugin       kube-system/twin   jobs.batch        -       jobs.batch
twin: not all is known

Loops: each of the two writes what the other one watches. "!": both write the same kind, and may undo each other's work.
    ONE   WRITES       THE OTHER   WRITES
!   job   jobs.batch   twin        jobs.batch
`
	if out.String() != want {
		t.Errorf("%s\nwant\n%s", &out, want)
	}
}

// The built-in parts have loops by the hundred: they are counted, until somebody names one.
func TestTheWholeTableShowsLoopsOfPlugins(t *testing.T) {
	var out bytes.Buffer
	if err := sample().Write(&out, ""); err != nil {
		t.Fatal(err)
	}
	if s := out.String(); !strings.Contains(s, "\n1 loops among the built-in parts are not listed: name ") ||
		!strings.Contains(s, "!   job   jobs.batch   twin ") ||
		strings.Contains(s, "!   job   pods ") {
		t.Error(s)
	}
}

// Names come from configurations and clusters: none of them breaks out of a format.
func TestEveryFormatTakesEveryName(t *testing.T) {
	const bad = `a"]-->b<script>&'` + "\n"
	g := New([]Actor{{Name: bad, Role: Plugin, Watches: []string{bad}, Reads: []string{"r"}, Writes: []string{bad}}})
	for _, format := range Formats() {
		var out bytes.Buffer
		if err := g.Write(&out, format); err != nil {
			t.Fatal(err)
		}
		switch format {
		case "svg":
			elements := 0
			d := xml.NewDecoder(&out)
			for {
				token, err := d.Token()
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Fatalf("no XML: %v", err)
				}
				if e, ok := token.(xml.StartElement); ok {
					elements++
					if e.Name.Local == "script" {
						t.Error("a name became an element")
					}
				}
			}
			if elements < 10 {
				t.Errorf("%d elements", elements)
			}
		case "json":
			var back Graph
			if err := json.Unmarshal(out.Bytes(), &back); err != nil || back.Actors[0].Name != bad {
				t.Errorf("%v, %+v", err, back)
			}
		case "dot":
			if !strings.Contains(out.String(), `a\"]-->b<script>&'\n`) || strings.Contains(out.String(), `"a"]`) {
				t.Errorf("dot:\n%s", &out)
			}
		case "mermaid":
			if !strings.Contains(out.String(), `a0["a']--)b(script)&' "]`) || !strings.Contains(out.String(), "a0 ==> k0") ||
				!strings.Contains(out.String(), "k1 -.-> a0") || !strings.Contains(out.String(), "k0 --> a0") {
				t.Errorf("mermaid:\n%s", &out)
			}
		}
	}
	if err := g.Write(io.Discard, "png"); err == nil || !strings.Contains(err.Error(), `expected dot, svg, json, mermaid, found "png"`) {
		t.Errorf("a format that is none: %v", err)
	}
}

func TestRightsAreWhatIsBoundToTheIdentity(t *testing.T) {
	rule := func(group, resource string, verbs ...string) []rbacv1.PolicyRule {
		return []rbacv1.PolicyRule{{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}}
	}
	account := []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "kube-system", Name: "twin"}}
	r := Rights{
		ClusterRoles: []rbacv1.ClusterRole{
			{ObjectMeta: metav1.ObjectMeta{Name: "jobs"}, Rules: rule("batch", "jobs/status", "get", "watch", "patch")},
			{ObjectMeta: metav1.ObjectMeta{Name: "others"}, Rules: rule("", "nodes", "*")},
			{ObjectMeta: metav1.ObjectMeta{Name: "edit"}, Rules: rule("", "events", "create")},
		},
		ClusterRoleBindings: []rbacv1.ClusterRoleBinding{
			{RoleRef: rbacv1.RoleRef{Name: "jobs"}, Subjects: account},
			{RoleRef: rbacv1.RoleRef{Name: "others"}, Subjects: []rbacv1.Subject{{Kind: "User", Name: "jane"}, {Kind: "Group", Name: "twin"}}},
		},
		Roles: []rbacv1.Role{
			{ObjectMeta: metav1.ObjectMeta{Name: "maps", Namespace: "shop"}, Rules: rule("", "configmaps", "list")},
			{ObjectMeta: metav1.ObjectMeta{Name: "maps", Namespace: "other"}, Rules: rule("", "secrets", "list")},
		},
		RoleBindings: []rbacv1.RoleBinding{
			{ObjectMeta: metav1.ObjectMeta{Namespace: "shop"}, RoleRef: rbacv1.RoleRef{Kind: "Role", Name: "maps"}, Subjects: account},
			{ObjectMeta: metav1.ObjectMeta{Namespace: "shop"}, RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: "edit"}, Subjects: account},
		},
	}
	var a Actor
	a.Allow(r.Of(ServiceAccount("kube-system/twin")))
	want := Actor{Watches: []string{"jobs.batch"}, Reads: []string{"jobs.batch", "configmaps"}, Writes: []string{"jobs.batch"}}
	if !reflect.DeepEqual(a, want) {
		t.Errorf("%+v, want %+v", a, want)
	}
	var jane Actor
	jane.Allow(r.Of("jane"))
	if !reflect.DeepEqual(jane.Writes, []string{"nodes"}) || !reflect.DeepEqual(jane.Watches, []string{"nodes"}) {
		t.Errorf("every verb: %+v", jane)
	}
	// A plugin's own word on what it watches stands.
	p := Actor{Watches: []string{"pods"}}
	p.AllowBesides(r.Of("jane"))
	if !reflect.DeepEqual(p, Actor{Watches: []string{"pods"}, Reads: []string{"nodes", "pods", "nodes"}, Writes: []string{"nodes"}}) {
		t.Errorf("%+v", p)
	}
}

func TestWhatStoresNothingIsNoKind(t *testing.T) {
	var a Actor
	a.Allow([]rbacv1.PolicyRule{
		{APIGroups: []string{"", "events.k8s.io"}, Resources: []string{"events", "pods/exec", "serviceaccounts/token", "pods/binding"}, Verbs: []string{"create"}},
		{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}},
	})
	if !reflect.DeepEqual(a.Writes, []string{"pods", "pods.events.k8s.io"}) || a.Reads != nil {
		t.Errorf("%+v", a)
	}
}

func TestNamesOfKinds(t *testing.T) {
	for _, c := range []struct{ group, resource, want string }{
		{"", "pods", "pods"}, {"batch", "jobs/status", "jobs.batch"}, {Every, "jobs", "jobs"}, {"apps", Every, Every}, {Every, "*/scale", Every},
	} {
		if got := Kind(c.group, c.resource); got != c.want {
			t.Errorf("%s of group %q is called %s, want %s", c.resource, c.group, got, c.want)
		}
	}
}
