// SPDX-License-Identifier: Apache-2.0

package authz

import (
	"reflect"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apiserver/pkg/authentication/user"
)

func TestUserInfo(t *testing.T) {
	for _, tc := range []struct {
		u    user.Info
		want authenticationv1.UserInfo
	}{
		{nil, authenticationv1.UserInfo{}},
		{&user.DefaultInfo{Name: "jane", UID: "1", Groups: []string{"g"}}, authenticationv1.UserInfo{Username: "jane", UID: "1", Groups: []string{"g"}}},
		{
			&user.DefaultInfo{Name: "jane", Extra: map[string][]string{"k": {"v", "w"}}},
			authenticationv1.UserInfo{Username: "jane", Extra: map[string]authenticationv1.ExtraValue{"k": {"v", "w"}}},
		},
	} {
		if got := UserInfo(tc.u); !reflect.DeepEqual(got, tc.want) {
			t.Errorf("%v: %v, want %v", tc.u, got, tc.want)
		}
	}
}
