// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/wasmplane/wasmplane/plugins/abi"
)

// Group is several plugins with one verdict. Its entry has no source of its own;
// match, mode and failure policy are the group's.
type Group struct {
	// Expression is CEL over the members' names: signed || (trusted && !latest). A
	// member is true where it allows the request; it is asked only where that matters. signed() is the same as signed.
	Expression string `yaml:"expression"`
	// Message tells the user what is wanted, where the expression is false.
	Message string `yaml:"message"`
	// Members by name: letters, digits and underscores.
	Members map[string]Member `yaml:"members"`
}

// Member is a plugin of a group: it validates.
type Member struct {
	Source     string      `yaml:"source"`
	ABI        ABI         `yaml:"abi"`
	Entrypoint string      `yaml:"entrypoint"`
	Digest     string      `yaml:"digest"`
	Fetch      Fetch       `yaml:"fetch"`
	Signatures []Signature `yaml:"signatures"`
	Settings   yaml.Node   `yaml:"settings"`
	Limits     Limits      `yaml:"limits"`
	Grants     Grants      `yaml:"grants"`
	Isolation  Isolation   `yaml:"isolation"`
}

var memberForm = regexp.MustCompile(`^[a-z][a-z0-9_]{0,30}$`)

// mostMembers bounds a group.
const mostMembers = 16

// MemberEntries are the entries of a group's members, by the members' names. A
// member's plugin is called by the group's name, a dot, and its own.
func (e *Entry) MemberEntries() map[string]Entry {
	if e.Group == nil {
		return nil
	}
	out := map[string]Entry{}
	for name, m := range e.Group.Members {
		out[name] = Entry{
			Name: e.Name + "." + strings.ReplaceAll(name, "_", "-"), Source: m.Source, ABI: m.ABI, Entrypoint: m.Entrypoint, Digest: m.Digest,
			Fetch: m.Fetch, Signatures: m.Signatures,
			Settings: m.Settings, Limits: m.Limits, Grants: m.Grants, Isolation: m.Isolation,
			Points: []string{string(abi.AdmissionValidate)}, Mode: Enforce, FailurePolicy: Fail, Order: e.Order, Disabled: e.Disabled,
			Namespace: e.Namespace, FromAPI: e.FromAPI, Writer: e.Writer, MemberOf: e.Name, Line: e.Line,
		}
	}
	return out
}

func (e *Entry) checkGroup(n *yaml.Node, path string) error {
	g := e.Group
	switch {
	case e.Source != "":
		return fault(n, path, "source", "a group has no source of its own; its members have")
	case e.Bundle != nil:
		return fault(n, path, "bundle", "a group has no source of its own; its members are no bundles")
	case e.Candidate != nil:
		return fault(n, path, "candidate", "a group has no candidate")
	case strings.TrimSpace(g.Expression) == "":
		return fault(n, path, "group", "expression is missing, such as: signed || trusted")
	case len(g.Members) == 0 || len(g.Members) > mostMembers:
		return fault(n, path, "group.members", fmt.Sprintf("expected 1 to %d members, found %d", mostMembers, len(g.Members)))
	case len(e.Points) > 0 && !slices.Equal(e.Points, []string{string(abi.AdmissionValidate)}):
		return fault(n, path, "points", "a group takes part in admission.validate only")
	}
	e.Points = []string{string(abi.AdmissionValidate)}
	for name, member := range e.MemberEntries() {
		at := "group.members." + name
		if !memberForm.MatchString(name) {
			return fault(n, path, at, "expected a name of lower-case letters, digits and underscores")
		}
		if err := member.checkSource(n, path); err != nil {
			return fault(n, path, at, problemOf(err))
		}
		if err := member.HostLimits().Validate(); err != nil {
			return fault(n, path, at+".limits", err.Error())
		}
		if field, problem := member.Grants.check(); field != "" {
			return fault(n, path, at, field+": "+problem)
		}
		m := g.Members[name]
		m.Fetch = member.Fetch // with its defaults
		if m.Isolation == "" {
			m.Isolation = Shared
		}
		g.Members[name] = m
	}
	return nil
}

// Exception leaves requests alone that a plugin would see otherwise. Everything
// that it gives has to match; in a list, any of it.
type Exception struct {
	// Users and Groups of who asks; a service account is the user system:serviceaccount:NAMESPACE:NAME.
	Users  []string `yaml:"users"`
	Groups []string `yaml:"groups"`
	// Namespaces of the object.
	Namespaces []string `yaml:"namespaces"`
	// Names of the object.
	Names []string `yaml:"names"`
	// Reason is recorded in the audit log with each request that is let through.
	Reason string `yaml:"reason"`
}

func (e *Entry) checkExceptions(n *yaml.Node, path string) error {
	for i, x := range e.Match.Exceptions {
		if len(x.Users)+len(x.Groups)+len(x.Namespaces)+len(x.Names) == 0 {
			return fault(n, path, fmt.Sprintf("match.exceptions[%d]", i), "users, groups, namespaces or names are missing: it would be an exception for everything")
		}
	}
	return nil
}
