// SPDX-License-Identifier: Apache-2.0

package rights

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/manifest"
)

// Kinds of what an entry asks for.
const (
	reads = "read"
	calls = "call"
	sends = "send"
)

// ask is one thing that an entry asks for, in words, with the rights that it takes.
type ask struct {
	kind  string
	what  string
	needs []Need
}

// Needs lists the rights that an entry takes at some points. What no rule of RBAC
// speaks of (the network, deciding who may do what) takes Verb.
func Needs(e *manifest.Entry, points []string) []Need {
	var out []Need
	for _, a := range asks(e, points) {
		out = append(out, a.needs...)
	}
	return out
}

func asks(e *manifest.Entry, points []string) []ask {
	out := grantAsks("spec.grants", &e.Grants, e.Namespace)
	out = append(out, fetchAsks("spec.fetch", &e.Fetch)...)
	if c := e.Candidate; c != nil && c.Fetch != nil {
		out = append(out, fetchAsks("spec.candidate.fetch", c.Fetch)...)
	}
	if e.Group != nil {
		for _, name := range slices.Sorted(maps.Keys(e.Group.Members)) {
			m, at := e.Group.Members[name], "spec.group.members."+name
			out = append(append(out, grantAsks(at+".grants", &m.Grants, e.Namespace)...), fetchAsks(at+".fetch", &m.Fetch)...)
		}
	}
	for _, p := range points {
		out = append(out, pointAsks(e, abi.Point(p))...)
	}
	return out
}

// pointAsks are those of taking part somewhere: an authorizer gives rights away, a
// converter rewrites everybody's objects, a reconciler writes as its service account.
func pointAsks(e *manifest.Entry, p abi.Point) []ask {
	verbatim := func(what string) []ask {
		return []ask{{calls, what, []Need{{Field: "spec.points", What: what}}}}
	}
	switch p {
	case abi.Authorization:
		return verbatim("decide who may do what (authorization)")
	case abi.CustomResourceConvert:
		return verbatim("convert everybody's custom resources (customresource.convert)")
	case abi.Reconcile:
		namespace, name, _ := strings.Cut(e.Reconcile.ServiceAccount, "/")
		return []ask{{
			calls, "write as service account " + e.Reconcile.ServiceAccount,
			[]Need{{Field: "spec.reconcile.serviceAccount", Attributes: &authorizationv1.ResourceAttributes{
				Verb: "impersonate", Resource: "serviceaccounts", Namespace: namespace, Name: name,
			}}},
		}}
	default:
		return nil
	}
}

func fetchAsks(at string, f *manifest.Fetch) []ask {
	if f.Secret == "" {
		return nil
	}
	namespace, name, _ := strings.Cut(f.Secret, "/")
	return []ask{{
		reads, "Secret " + f.Secret + ", to be fetched with",
		[]Need{{Field: at + ".secret", Attributes: &authorizationv1.ResourceAttributes{
			Verb: "get", Resource: "secrets", Namespace: namespace,
			Name: name,
		}}},
	}}
}

func grantAsks(at string, g *manifest.Grants, own string) []ask {
	var out []ask
	for i := range g.Read {
		out = append(out, readAsk(fmt.Sprintf("%s.read[%d]", at, i), &g.Read[i], own))
	}
	if g.AccessReview {
		a := &authorizationv1.ResourceAttributes{Verb: "create", Group: "authorization.k8s.io", Resource: "subjectaccessreviews"}
		if own != "" {
			a.Resource, a.Namespace = "localsubjectaccessreviews", own
		}
		out = append(out, ask{calls, "access reviews", []Need{{Field: at + ".accessReview", Attributes: a}}})
	}
	for _, own := range []struct { // what takes nobody's rights
		what  string
		asked bool
	}{
		{"the time", g.Clock},
		{"random numbers", g.Random},
		{"the log", g.Log},
		{"certificates: whether a chain signs one", g.Certificates},
		{fmt.Sprintf("a store of its own of %d bytes", g.State.Size), g.State.Size > 0},
	} {
		if own.asked {
			out = append(out, ask{kind: calls, what: own.what})
		}
	}
	if highest := g.Reclaim.HighestPriority; highest != nil {
		out = append(out, ask{calls, fmt.Sprintf("remove pods of a priority up to %d where others need their room", *highest), []Need{{
			Field: at + ".reclaim", Attributes: &authorizationv1.ResourceAttributes{Verb: "delete", Resource: "pods", Namespace: own},
		}}})
	}
	if g.Events {
		out = append(out,
			ask{
				sends, "events",
				[]Need{{Field: at + ".events", Attributes: &authorizationv1.ResourceAttributes{Verb: "create", Resource: "events", Namespace: own}}},
			})
	}
	return append(out, networkAsks(at, g)...)
}

func networkAsks(at string, g *manifest.Grants) []ask {
	var out []ask
	send := func(field, what string) {
		out = append(out, ask{sends, what, []Need{{Field: at + "." + field, What: "send from the control plane's machines"}}})
	}
	for _, h := range g.HTTP {
		what := fmt.Sprintf("%s to https://%s", listed(h.Methods, "GET and HEAD"), listed(h.Hosts, "nowhere"))
		if len(h.Paths) > 0 {
			what += ", paths " + listed(h.Paths, "")
		}
		if h.Private {
			what += ", private addresses too"
		}
		send("http", what)
	}
	if len(g.DNS) > 0 {
		send("dns", "look-ups of "+listed(g.DNS, ""))
	}
	if registries := slices.Concat(g.Images.Registries, g.Images.PlainHTTP); len(registries) > 0 {
		send("images", "look-ups of images at "+listed(registries, ""))
	}
	if len(g.Capabilities) > 0 {
		send("capabilities", "host calls "+listed(g.Capabilities, ""))
	}
	return out
}

// listed are some values for people, or what none of them means.
func listed(values []string, none string) string {
	const most = 8
	if len(values) == 0 {
		return none
	}
	if more := len(values) - most; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(values[:most], ", "), more)
	}
	return strings.Join(values, ", ")
}

func readAsk(at string, r *manifest.ReadGrant, own string) ask {
	groups, namespaces, names := r.APIGroups, r.Namespaces, r.Names
	if len(groups) == 0 {
		groups = []string{""}
	}
	if own != "" {
		namespaces = []string{own}
	}
	what := listed(r.Resources, "nothing")
	if groups := slices.DeleteFunc(slices.Clone(groups), func(g string) bool { return g == "" }); len(groups) > 0 {
		what += " of " + listed(groups, "")
	}
	if len(names) > 0 {
		what += " named " + listed(names, "")
	}
	if len(namespaces) == 0 {
		namespaces = []string{""}
		what += " in all namespaces"
	} else {
		what += " in " + listed(namespaces, "")
	}
	if len(r.Fields) > 0 {
		what += ", fields " + listed(r.Fields, "")
	}
	verbs := []string{"get", "list"}
	if len(names) == 0 {
		names = []string{""}
	} else {
		verbs = verbs[:1]
	}
	out := ask{kind: reads, what: what}
	for _, group := range groups {
		for _, resource := range r.Resources {
			for _, namespace := range namespaces {
				for _, name := range names {
					for _, verb := range verbs {
						out.needs = append(out.needs, Need{Field: at, Attributes: &authorizationv1.ResourceAttributes{
							Verb: verb, Group: group, Resource: resource, Namespace: namespace, Name: name,
						}})
					}
				}
			}
		}
	}
	return out
}
