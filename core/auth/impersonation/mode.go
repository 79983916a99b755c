// SPDX-License-Identifier: Apache-2.0

package impersonation

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/wasmplane/wasmplane/core/auth/authz"
)

// mode is a way to be allowed to impersonate.
type mode struct {
	name    string // empty: the oldest
	applies func(wanted *user.DefaultInfo, asker user.Info) bool
}

// associatedNode is the mode of a service account that acts as the node that its pod is on.
const associatedNode = "associated-node"

// modes are all of them, in the order in which they are asked.
func modes() []mode {
	return []mode{
		{associatedNode, func(wanted *user.DefaultInfo, asker user.Info) bool {
			node, ok := nodeOf(wanted)
			_, _, err := serviceaccount.SplitUsername(asker.GetName())
			return ok && bare(wanted) && err == nil && slices.Equal(asker.GetExtra()[serviceaccount.NodeNameKey], []string{node})
		}},
		{"arbitrary-node", func(wanted *user.DefaultInfo, _ user.Info) bool {
			_, ok := nodeOf(wanted)
			return ok && bare(wanted)
		}},
		{"serviceaccount", func(wanted *user.DefaultInfo, _ user.Info) bool { return isServiceAccount(wanted) && bare(wanted) }},
		{"user-info", func(wanted *user.DefaultInfo, _ user.Info) bool {
			_, node := nodeOf(wanted)
			return !node && !isServiceAccount(wanted)
		}},
		{"", func(*user.DefaultInfo, user.Info) bool { return true }},
	}
}

func (m mode) constrained() bool { return m.name != "" }

// constraint is the verb of the right to be somebody, as audit logs have it.
func (m mode) constraint() string {
	if !m.constrained() {
		return ""
	}
	return m.verb()
}

func (m mode) verb() string {
	if !m.constrained() {
		return "impersonate"
	}
	return "impersonate:" + m.name
}

// label is the mode in metrics.
func (m mode) label() string {
	if !m.constrained() {
		return "legacy"
	}
	return m.name
}

// asker is who a mode asks the chain about. Of a service account beside its node only the
// keys of what else is known count, so that the answer is the same on each node.
func (m mode) asker(asker user.Info) user.Info {
	if m.name != associatedNode {
		return asker
	}
	return &user.DefaultInfo{
		Name: asker.GetName(), UID: asker.GetUID(), Groups: asker.GetGroups(), Extra: map[string][]string{
			"authentication.kubernetes.io/associated-node-keys": slices.Sorted(maps.Keys(asker.GetExtra())),
		},
	}
}

// questions are those of one mode about one user.
type questions struct {
	mode  mode
	asker user.Info
}

// several are questions about values of one kind.
type several struct {
	mode     mode
	refused  error                         // without asking
	wildcard *authorizer.AttributesRecord  // about all of them at once
	each     []authorizer.AttributesRecord // about each
}

// question is about a thing that has belonged to the group of authentication always, as uids
// and extra do, or only in the constrained modes.
func (q questions) question(always bool, resource, name string) authorizer.AttributesRecord {
	group := authenticationv1.GroupName
	if !always && !q.mode.constrained() {
		group = ""
	}
	return authorizer.AttributesRecord{
		User: q.asker, Verb: q.mode.verb(), APIGroup: group, APIVersion: "v1", Resource: resource, Name: name, ResourceRequest: true,
	}
}

// username is the question about a name, and the groups that come with it.
func (q questions) username(wanted *user.DefaultInfo) (authorizer.AttributesRecord, []string) {
	if namespace, name, err := serviceaccount.SplitUsername(wanted.Name); err == nil {
		a := q.question(false, "serviceaccounts", name)
		a.Namespace = namespace
		return a, serviceaccount.MakeGroupNames(namespace)
	}
	node, ok := nodeOf(wanted)
	if !ok || !q.mode.constrained() {
		return q.question(false, "users", wanted.Name), nil
	}
	if q.mode.name == associatedNode {
		node = "*"
	}
	return q.question(false, "nodes", node), []string{user.NodesGroup}
}

func (q questions) uid(uid string) authorizer.AttributesRecord { return q.question(true, "uids", uid) }

// many is from how many values on one question about all of them is worth it.
const many = 4

func (q questions) groups(groups []string) several {
	s := several{mode: q.mode}
	if q.mode.constrained() {
		switch {
		case slices.Contains(groups, ""):
			s.refused = q.refusal("groups", "", "impersonating the empty string group is not allowed")
		case slices.Contains(groups, user.SystemPrivilegedGroup):
			s.refused = q.refusal("groups", user.SystemPrivilegedGroup, "impersonating the system:masters group is not allowed")
		case len(groups) >= many:
			a := q.question(false, "groups", "*")
			s.wildcard = &a
		}
	}
	for _, g := range groups {
		s.each = append(s.each, q.question(false, "groups", g))
	}
	return s
}

func (q questions) refusal(resource, name, reason string) error {
	a := q.question(resource == "userextras", resource, name)
	return authz.Forbidden(&a, reason)
}

func (q questions) extra(extra map[string][]string) several {
	s := several{mode: q.mode}
	values := 0
	for _, key := range slices.Sorted(maps.Keys(extra)) {
		if err := wellFormed(key, extra[key]); err != nil && q.mode.constrained() {
			s.refused = q.refusal("userextras", "", err.Error())
			return s
		}
		values += len(extra[key])
		for _, v := range extra[key] {
			a := q.question(true, "userextras", v)
			a.Subresource = key
			s.each = append(s.each, a)
		}
	}
	if q.mode.constrained() && values >= many {
		a := q.question(true, "userextras", "*")
		a.Subresource = "*"
		s.wildcard = &a
	}
	return s
}

// wellFormed says what is wrong with an extra, in upstream's words.
func wellFormed(key string, values []string) error {
	switch err := utilvalidation.IsDomainPrefixedPath(field.NewPath("extra", "key"), key).ToAggregate(); {
	case key == "":
		return errors.New("impersonating the empty string key in extra is not allowed")
	case err != nil:
		return fmt.Errorf("impersonating an invalid key in extra is not allowed: %w", err)
	case key != strings.ToLower(key):
		return fmt.Errorf("impersonating a non-lowercase key in extra is not allowed: %q", key)
	case len(values) == 0:
		return errors.New("impersonating empty values in extra is not allowed")
	case slices.Contains(values, ""):
		return errors.New("impersonating the empty string value in extra is not allowed")
	}
	return nil
}

// bare says that nothing but a name is wanted: in some modes the server knows the rest.
func bare(u *user.DefaultInfo) bool { return u.UID == "" && len(u.Groups) == 0 && len(u.Extra) == 0 }

// nodeOf is the node whose name a user has.
func nodeOf(u *user.DefaultInfo) (string, bool) {
	name, ok := strings.CutPrefix(u.Name, "system:node:")
	if !ok || len(validation.NameIsDNSSubdomain(name, false)) > 0 {
		return "", false
	}
	return name, true
}

func isServiceAccount(u *user.DefaultInfo) bool {
	_, _, err := serviceaccount.SplitUsername(u.Name)
	return err == nil
}
