// SPDX-License-Identifier: Apache-2.0

// The production-access plugin denies everything in production namespaces, but
// for what the settings list: a role that is too wide opens nothing there.
package main

import (
	"slices"
	"strings"

	wasmplane "github.com/wasmplane/wasmplane/sdk/go"
)

// entry lets some people do some things.
type entry struct{ users, groups, verbs, resources []string }

var (
	prefixes []string
	entries  []entry
)

func settings(s wasmplane.Value) error {
	prefixes = s.Get("namespacePrefixes").Strings()
	list := s.Get("allow")
	for i := range list.Len() {
		e := list.At(i)
		entries = append(entries, entry{
			e.Get("users").Strings(), e.Get("groups").Strings(), e.Get("verbs").Strings(),
			e.Get("resources").Strings(),
		})
	}
	return nil
}

func production(namespace string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(namespace, p) })
}

func (e *entry) covers(user string, groups []string, verb, resource string) bool {
	who := slices.Contains(e.users, user) || slices.ContainsFunc(groups, func(g string) bool { return slices.Contains(e.groups, g) })
	has := func(list []string, v string) bool { return slices.Contains(list, v) || slices.Contains(list, "*") }
	return who && has(e.verbs, verb) && has(e.resources, resource)
}

var _ = wasmplane.Register(wasmplane.Plugin{
	Name: "production-access", Version: "1.0.0", Settings: settings,
	Authorize: &wasmplane.Authorizer{
		Fields: []string{"user", "groups", "resourceAttributes.namespace", "resourceAttributes.verb", "resourceAttributes.resource"},
		Decide: func(in wasmplane.Input) wasmplane.Verdict {
			user, namespace := in.Get("user").String(), in.Get("resourceAttributes.namespace").String()
			if !production(namespace) || strings.HasPrefix(user, "system:") {
				return wasmplane.NoOpinion()
			}
			verb, resource := in.Get("resourceAttributes.verb").String(), in.Get("resourceAttributes.resource").String()
			for i := range entries {
				if entries[i].covers(user, in.Get("groups").Strings(), verb, resource) {
					return wasmplane.NoOpinion() // the roles decide
				}
			}
			return wasmplane.Deny(namespace + " is production: nobody has let " + user + " " + verb + " " + resource + " there")
		},
	},
})

func main() {}
