// SPDX-License-Identifier: Apache-2.0

// Package impersonation decides whether a request may be somebody else's.
//
// There are several modes. The constrained ones (KEP-5284) take two rights: to be the
// other one (impersonate:MODE) and to do as them what the request does
// (impersonate-on:MODE:VERB). The oldest mode takes the right to impersonate, and then
// everything is allowed that the other one may; it is asked last.
package impersonation

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters/impersonation/metrics"
	"k8s.io/utils/lru"

	"github.com/wasmplane/wasmplane/core/auth/authz"
)

// Authorizer is the server's chain.
type Authorizer interface {
	Authorize(ctx context.Context, a authz.Attributes) (authz.Decision, string, error)
}

// Decider asks an authorizer. It may be used by many at once.
type Decider struct {
	authorizer Authorizer
	worked     *lru.Cache // the mode that each user had last
}

// usersRemembered bounds for how many users the mode is known that they had last.
const usersRemembered = 10_000

// New returns a Decider of a chain.
func New(a Authorizer) *Decider {
	metrics.RegisterMetrics()
	return &Decider{authorizer: a, worked: lru.New(usersRemembered)}
}

// Granted is who a request's user is from now on.
type Granted struct {
	User *user.DefaultInfo
	// Constraint is the verb of the right that allowed it; empty in the oldest mode.
	Constraint string
}

// Decide says who the request is of if its user, request.User, may act as wanted. Else the
// error is upstream's: of the mode that the user had last, or of the first that applies.
func (d *Decider) Decide(ctx context.Context, wanted *user.DefaultInfo, request *authorizer.AttributesRecord) (Granted, error) {
	began := time.Now()
	m, granted, err := d.decide(ctx, wanted, request)
	if err != nil {
		metrics.RecordImpersonationAttempt("", "denied", time.Since(began))
		return Granted{}, err
	}
	metrics.RecordImpersonationAttempt(m.label(), "allowed", time.Since(began))
	return granted, nil
}

func (d *Decider) decide(ctx context.Context, wanted *user.DefaultInfo, request *authorizer.AttributesRecord) (mode, Granted, error) {
	order := modes()
	if last, ok := d.worked.Get(request.User.GetName()); ok {
		at := slices.IndexFunc(order, func(m mode) bool { return m.name == last })
		order = slices.Concat(order[at:at+1], order[:at], order[at+1:])
	}
	var first error
	for _, m := range order {
		if !m.applies(wanted, request.User) {
			continue
		}
		as, err := d.try(ctx, m, wanted, request)
		if err == nil {
			d.worked.Add(request.User.GetName(), m.name)
			return m, Granted{User: as, Constraint: m.constraint()}, nil
		}
		if first == nil {
			first = err
		}
	}
	return mode{}, Granted{}, first
}

// try asks for every right that a mode takes.
func (d *Decider) try(
	ctx context.Context, m mode, wanted *user.DefaultInfo, request *authorizer.AttributesRecord,
) (*user.DefaultInfo, error) {
	asker := m.asker(request.User)
	if m.constrained() {
		on := *request
		on.User, on.Verb = asker, "impersonate-on:"+m.name+":"+request.Verb
		if err := d.may(ctx, m, on); err != nil {
			return nil, err
		}
	}
	as := *wanted
	as.Groups = slices.Clone(wanted.Groups)
	q := questions{mode: m, asker: asker}
	username, implied := q.username(wanted)
	if len(implied) > 0 && len(wanted.Groups) == 0 {
		as.Groups = implied
	}
	if err := d.may(ctx, m, username); err != nil {
		return nil, err
	}
	if wanted.UID != "" {
		if err := d.may(ctx, m, q.uid(wanted.UID)); err != nil {
			return nil, err
		}
	}
	if err := d.all(ctx, q.groups(wanted.Groups)); err != nil {
		return nil, err
	}
	if err := d.all(ctx, q.extra(wanted.Extra)); err != nil {
		return nil, err
	}
	complete(&as)
	return &as, nil
}

// all asks about many values: by one question about all of them first where there is
// one, then one by one.
func (d *Decider) all(ctx context.Context, s several) error {
	if s.refused != nil {
		return s.refused
	}
	if s.wildcard != nil && d.may(ctx, s.mode, *s.wildcard) == nil {
		return nil
	}
	for _, q := range s.each {
		if err := d.may(ctx, s.mode, q); err != nil {
			return err
		}
	}
	return nil
}

// may asks the chain. An authorizer may fail in part and allow all the same.
func (d *Decider) may(ctx context.Context, m mode, q authorizer.AttributesRecord) error {
	began := time.Now()
	decision, reason, err := d.authorizer.Authorize(ctx, &q)
	outcome := "denied"
	if decision == authorizer.DecisionAllow {
		outcome = "allowed"
	}
	metrics.RecordImpersonationAuthorizationCall(m.label(), outcome, time.Since(began))
	if decision == authorizer.DecisionAllow {
		return nil
	}
	var known *apierrors.StatusError
	switch {
	case errors.As(err, &known) && apierrors.IsForbidden(known):
		return known
	case err != nil && reason != "":
		reason = fmt.Sprintf("%v: %s", err, reason)
	case err != nil:
		reason = err.Error()
	}
	return authz.Forbidden(&q, reason)
}

// complete adds the groups that go without saying.
func complete(u *user.DefaultInfo) {
	add := user.AllAuthenticated
	if u.Name == user.Anonymous || slices.Contains(u.Groups, user.AllUnauthenticated) {
		add = user.AllUnauthenticated
	}
	if !slices.Contains(u.Groups, add) {
		u.Groups = append(u.Groups, add)
	}
}
