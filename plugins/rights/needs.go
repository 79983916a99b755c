// SPDX-License-Identifier: Apache-2.0

package rights

import (
	"fmt"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/manifest"
)

// Needs lists the rights that an entry takes at some points. What no rule of RBAC
// speaks of (the network, deciding who may do what) takes Verb.
func Needs(e *manifest.Entry, points []string) []Need {
	out := grantNeeds("spec.grants", &e.Grants, e.Namespace)
	out = append(out, fetchNeeds("spec.fetch", &e.Fetch)...)
	if c := e.Candidate; c != nil && c.Fetch != nil {
		out = append(out, fetchNeeds("spec.candidate.fetch", c.Fetch)...)
	}
	if e.Group != nil {
		for name, m := range e.Group.Members {
			at := "spec.group.members." + name
			out = append(append(out, grantNeeds(at+".grants", &m.Grants, e.Namespace)...), fetchNeeds(at+".fetch", &m.Fetch)...)
		}
	}
	for _, p := range points {
		out = append(out, pointNeeds(e, abi.Point(p))...)
	}
	return out
}

// pointNeeds are those of taking part somewhere: an authorizer gives rights away, a
// converter rewrites everybody's objects, a reconciler writes as its service account.
func pointNeeds(e *manifest.Entry, p abi.Point) []Need {
	switch p {
	case abi.Authorization:
		return []Need{{Field: "spec.points", What: "decide who may do what (authorization)"}}
	case abi.CustomResourceConvert:
		return []Need{{Field: "spec.points", What: "convert everybody's custom resources (customresource.convert)"}}
	case abi.Reconcile:
		namespace, name, _ := strings.Cut(e.Reconcile.ServiceAccount, "/")
		return []Need{{Field: "spec.reconcile.serviceAccount", Attributes: &authorizationv1.ResourceAttributes{
			Verb: "impersonate", Resource: "serviceaccounts", Namespace: namespace, Name: name,
		}}}
	default:
		return nil
	}
}

func fetchNeeds(at string, f *manifest.Fetch) []Need {
	if f.Secret == "" {
		return nil
	}
	namespace, name, _ := strings.Cut(f.Secret, "/")
	return []Need{{Field: at + ".secret", Attributes: &authorizationv1.ResourceAttributes{Verb: "get", Resource: "secrets", Namespace: namespace, Name: name}}}
}

func grantNeeds(at string, g *manifest.Grants, own string) []Need {
	var out []Need
	for i := range g.Read {
		out = append(out, readNeeds(fmt.Sprintf("%s.read[%d]", at, i), &g.Read[i], own)...)
	}
	if g.AccessReview {
		a := &authorizationv1.ResourceAttributes{Verb: "create", Group: "authorization.k8s.io", Resource: "subjectaccessreviews"}
		if own != "" {
			a.Resource, a.Namespace = "localsubjectaccessreviews", own
		}
		out = append(out, Need{Field: at + ".accessReview", Attributes: a})
	}
	if g.Events {
		out = append(out, Need{Field: at + ".events", Attributes: &authorizationv1.ResourceAttributes{Verb: "create", Resource: "events", Namespace: own}})
	}
	for _, network := range []struct {
		field string
		asked bool
	}{
		{"http", len(g.HTTP) > 0},
		{"dns", len(g.DNS) > 0},
		{"images", len(g.Images.Registries)+len(g.Images.PlainHTTP) > 0},
		{"capabilities", len(g.Capabilities) > 0},
	} {
		if network.asked {
			out = append(out, Need{Field: at + "." + network.field, What: "send from the control plane's machines"})
		}
	}
	return out
}

func readNeeds(at string, r *manifest.ReadGrant, own string) []Need {
	groups, namespaces, names := r.APIGroups, r.Namespaces, r.Names
	if len(groups) == 0 {
		groups = []string{""}
	}
	if own != "" {
		namespaces = []string{own}
	}
	if len(namespaces) == 0 {
		namespaces = []string{""}
	}
	verbs := []string{"get", "list"}
	if len(names) == 0 {
		names = []string{""}
	} else {
		verbs = verbs[:1]
	}
	var out []Need
	for _, group := range groups {
		for _, resource := range r.Resources {
			for _, namespace := range namespaces {
				for _, name := range names {
					for _, verb := range verbs {
						out = append(out, Need{Field: at, Attributes: &authorizationv1.ResourceAttributes{
							Verb: verb, Group: group, Resource: resource, Namespace: namespace, Name: name,
						}})
					}
				}
			}
		}
	}
	return out
}
