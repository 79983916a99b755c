// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/wasmplane/wasmplane/core/auth/audit"
	"github.com/wasmplane/wasmplane/core/auth/authz"
)

// impersonate makes the request somebody else's where its headers say so and
// the asker may act as each thing that they name: user, groups, uid, extra.
func (s *Server) impersonate(ctx context.Context, req *http.Request, asker user.Info) (user.Info, error) {
	as := req.Header.Get(authenticationv1.ImpersonateUserHeader)
	groups := req.Header.Values(authenticationv1.ImpersonateGroupHeader)
	uid := req.Header.Get(authenticationv1.ImpersonateUIDHeader)
	extra, err := impersonatedExtra(req.Header)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if as == "" {
		if len(groups) > 0 || uid != "" || len(extra) > 0 {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("requested %v without impersonating a user", impersonationAsked(groups, uid, extra)))
		}
		return asker, nil
	}
	target := &user.DefaultInfo{Name: as, UID: uid, Groups: slices.Clone(groups), Extra: extra}
	for _, question := range impersonations(asker, target) {
		decision, reason, err := s.cfg.Authorizer.Authorize(ctx, question)
		if err != nil || decision != authorizer.DecisionAllow {
			return nil, authz.Forbidden(question, reason)
		}
	}
	complete(target, len(groups) > 0)
	for name := range req.Header {
		if strings.HasPrefix(name, "Impersonate-") {
			req.Header.Del(name)
		}
	}
	audit.From(ctx).Impersonated(target)
	return target, nil
}

func impersonationAsked(groups []string, uid string, extra map[string][]string) string {
	switch {
	case len(groups) > 0:
		return fmt.Sprintf("groups %q", groups)
	case uid != "":
		return fmt.Sprintf("uid %q", uid)
	}
	return fmt.Sprintf("extra %q", extra)
}

func impersonatedExtra(header http.Header) (map[string][]string, error) {
	var extra map[string][]string
	for name, values := range header {
		if !strings.HasPrefix(name, authenticationv1.ImpersonateUserExtraHeaderPrefix) {
			continue
		}
		key, err := url.PathUnescape(strings.ToLower(name[len(authenticationv1.ImpersonateUserExtraHeaderPrefix):]))
		if err != nil {
			return nil, fmt.Errorf("header %s: the key after %s is not well escaped", name, authenticationv1.ImpersonateUserExtraHeaderPrefix)
		}
		if extra == nil {
			extra = map[string][]string{}
		}
		extra[key] = append(extra[key], values...)
	}
	return extra, nil
}

// impersonations are the questions whether asker may act as target.
func impersonations(asker user.Info, target *user.DefaultInfo) []authorizer.AttributesRecord {
	question := func(group, resource, sub, namespace, name string) authorizer.AttributesRecord {
		return authorizer.AttributesRecord{
			User: asker, Verb: "impersonate", APIGroup: group, APIVersion: "v1", Resource: resource, Subresource: sub,
			Namespace: namespace, Name: name, ResourceRequest: true,
		}
	}
	var all []authorizer.AttributesRecord
	if namespace, name, err := serviceaccount.SplitUsername(target.Name); err == nil {
		all = append(all, question("", "serviceaccounts", "", namespace, name))
	} else {
		all = append(all, question("", "users", "", "", target.Name))
	}
	for _, g := range target.Groups {
		all = append(all, question("", "groups", "", "", g))
	}
	for key, values := range target.Extra {
		for _, v := range values {
			all = append(all, question(authenticationv1.GroupName, "userextras", key, "", v))
		}
	}
	if target.UID != "" {
		all = append(all, question(authenticationv1.GroupName, "uids", "", "", target.UID))
	}
	return all
}

// complete adds the groups that go without saying.
func complete(target *user.DefaultInfo, asked bool) {
	if namespace, _, err := serviceaccount.SplitUsername(target.Name); err == nil && !asked {
		target.Groups = serviceaccount.MakeGroupNames(namespace)
	}
	if target.Name == user.Anonymous {
		if !slices.Contains(target.Groups, user.AllUnauthenticated) {
			target.Groups = append(target.Groups, user.AllUnauthenticated)
		}
		return
	}
	if !slices.Contains(target.Groups, user.AllAuthenticated) && !slices.Contains(target.Groups, user.AllUnauthenticated) {
		target.Groups = append(target.Groups, user.AllAuthenticated)
	}
}
