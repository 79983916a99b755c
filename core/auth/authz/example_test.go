// SPDX-License-Identifier: Apache-2.0

package authz_test

import (
	"context"
	"fmt"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/wasmplane/wasmplane/core/auth/authz"
)

// readers lets everybody read, and leaves the rest to others.
type readers struct{}

func (readers) Name() string { return "readers" }

func (readers) Authorize(_ context.Context, a authz.Attributes) (authz.Decision, string, error) {
	if a.IsReadOnly() {
		return authz.Allow, "everybody reads", nil
	}
	return authz.NoOpinion, "", nil
}

// Authorizers are asked in order until one of them allows or denies. Where nobody does,
// nothing is allowed.
func ExampleChain() {
	chain, err := authz.NewChain(readers{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, verb := range []string{"list", "create"} {
		decision, reason, err := chain.Authorize(context.Background(), authorizer.AttributesRecord{
			User: &user.DefaultInfo{Name: "jane"}, Verb: verb, Resource: "pods", APIVersion: "v1", Namespace: "default", ResourceRequest: true,
		})
		fmt.Println(verb, decision == authz.Allow, reason, err)
	}
	// Output:
	// list true everybody reads <nil>
	// create false  <nil>
}
