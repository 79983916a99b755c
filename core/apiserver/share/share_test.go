// SPDX-License-Identifier: Apache-2.0

package share_test

import (
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/wasmplane/wasmplane/core/apiserver/share"
)

func TestTheAccountsOfANamespaceHaveOneShare(t *testing.T) {
	for name, want := range map[string]string{
		"alice":                                            "alice",
		"system:node:worker-1":                             "system:node:worker-1",
		"system:anonymous":                                 "system:anonymous",
		"system:serviceaccount:team-a:web":                 "system:serviceaccounts:team-a",
		"system:serviceaccount:team-a:worker":              "system:serviceaccounts:team-a",
		"system:serviceaccount:team-b:web":                 "system:serviceaccounts:team-b",
		"system:serviceaccount:kube-system:job-controller": "system:serviceaccount:kube-system:job-controller",
		"system:serviceaccount:no-account":                 "system:serviceaccount:no-account", // of another authenticator: no account of ours
	} {
		if got := share.Of(&user.DefaultInfo{Name: name}); got != want {
			t.Errorf("%s counts as %s, want %s", name, got, want)
		}
	}
}
