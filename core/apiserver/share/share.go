// SPDX-License-Identifier: Apache-2.0

// Package share says whose share of the server a request takes: where something is bounded for each user, a user
// must not get more of it by being many.
package share

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
)

// Of is the name under which a request's share is counted. It is the user's name; the accounts of a namespace share
// under the name of their group, system:serviceaccounts:NAMESPACE, because whoever may make one may make a hundred.
// Those of kube-system are the cluster's own, and each has a share.
func Of(who user.Info) string {
	name := who.GetName()
	if !strings.HasPrefix(name, serviceaccount.ServiceAccountUsernamePrefix) {
		return name
	}
	namespace, _, err := serviceaccount.SplitUsername(name)
	if err != nil || namespace == metav1.NamespaceSystem {
		return name
	}
	return serviceaccount.ServiceAccountGroupPrefix + namespace
}
