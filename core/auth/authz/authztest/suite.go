// SPDX-License-Identifier: Apache-2.0

// Package authztest is the conformance suite of authz.Authorizer: every
// implementation passes it, native or in Wasm.
package authztest

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/wasmplane/wasmplane/core/auth/authz"
	"github.com/wasmplane/wasmplane/core/run"
)

// Case is one question with its answer.
type Case struct {
	Name     string
	Question authorizer.AttributesRecord
	Want     authz.Decision
	// Reason is a part of the reason given.
	Reason string
}

// Run holds a to the contract and to the cases, alone and many at a time.
func Run(t *testing.T, a authz.Authorizer, cases ...Case) {
	t.Helper()
	t.Run("has a name", func(t *testing.T) {
		if name := a.Name(); name == "" || a.Name() != name {
			t.Error("the name is empty or changes")
		}
	})
	t.Run("copes with odd questions", func(t *testing.T) { copes(t, a) })
	t.Run("returns when the caller has gone", func(t *testing.T) { returns(t, a, cases) })
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			// Twice: an answer does not depend on what was asked before.
			for range 2 {
				c.ask(t, a)
			}
		})
	}
	t.Run("many at a time", func(t *testing.T) {
		var wg sync.WaitGroup
		for range 8 {
			for _, c := range cases {
				wg.Go(func() { c.ask(t, a) })
			}
		}
		wg.Wait()
	})
}

func (c Case) ask(t *testing.T, a authz.Authorizer) {
	t.Helper()
	d, reason, err := a.Authorize(t.Context(), c.Question)
	if d != c.Want || !strings.Contains(reason, c.Reason) {
		t.Errorf("%s: %s, reason %q, error %v; want %s, reason %q", c.Name, authz.Text(d), reason, err, authz.Text(c.Want), c.Reason)
	}
	if d == authz.Allow && err != nil {
		t.Errorf("%s: allowed in spite of an error: %v", c.Name, err)
	}
}

// copes asks what careless code trips over. Nobody at all is allowed nothing.
func copes(t *testing.T, a authz.Authorizer) {
	nobody := &user.DefaultInfo{}
	for _, q := range []authorizer.AttributesRecord{
		{User: nobody},
		{User: nobody, Verb: "get", Path: "/metrics"},
		{User: nobody, Verb: "get", Path: "", ResourceRequest: false},
		{User: nobody, Verb: "*", APIGroup: "*", Resource: "*", APIVersion: "*", ResourceRequest: true},
		{User: nobody, Verb: "get", Resource: "pods", Namespace: "../kube-system", Name: "a/b", APIVersion: "v1", ResourceRequest: true},
		{User: nobody, Verb: "list", Resource: strings.Repeat("x", 1<<16), APIVersion: "v1", ResourceRequest: true},
	} {
		if d, _, _ := a.Authorize(t.Context(), q); d == authz.Allow {
			t.Errorf("a user without a name or groups was allowed %q %q%q", q.Verb, q.Resource, q.Path)
		}
	}
}

func returns(t *testing.T, a authz.Authorizer, cases []Case) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range cases {
		done := run.Go("authztest: question", func() error {
			_, _, err := a.Authorize(ctx, c.Question)
			return err
		})
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			t.Fatalf("%s: no answer 10 s after the caller was gone", c.Name)
		}
	}
}
