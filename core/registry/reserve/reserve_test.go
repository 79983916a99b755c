// SPDX-License-Identifier: Apache-2.0

package reserve

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
)

func TestWhatAFullStoreKeepsBackIsGrantedToFew(t *testing.T) {
	maps := schema.GroupResource{Resource: "configmaps"}
	leases := schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}
	tenant := &user.DefaultInfo{Name: "tenant"}
	node := &user.DefaultInfo{Name: "system:node:a", Groups: []string{user.NodesGroup}}
	for name, c := range map[string]struct {
		write Write
		want  bool
	}{
		"a tenant's object":                      {Write{User: tenant, Resource: maps, Bytes: 10}, false},
		"an administrator's":                     {Write{User: &user.DefaultInfo{Name: "a", Groups: []string{"admins"}}, Resource: maps, Bytes: 10}, true},
		"a deletion begins":                      {Write{User: tenant, Resource: maps, Deleting: true, Bytes: 10 + small, Before: 10}, true},
		"a deletion begins, with a present":      {Write{User: tenant, Resource: maps, Deleting: true, Bytes: 11 + small, Before: 10}, false},
		"a deletion goes on, and nothing grows":  {Write{User: tenant, Resource: maps, Deleting: true, WasDeleting: true, Bytes: 10, Before: 10}, true},
		"a deletion goes on, and something does": {Write{User: tenant, Resource: maps, Deleting: true, WasDeleting: true, Bytes: 11, Before: 10}, false},
		"a lease is renewed":                     {Write{User: tenant, Resource: leases, Bytes: small, Before: 10}, true},
		"a lease becomes a store":                {Write{User: tenant, Resource: leases, Bytes: small + 1, Before: 10}, false},
		"a tenant makes a lease":                 {Write{User: tenant, Resource: leases, Bytes: 10}, false},
		"a node makes a lease":                   {Write{User: node, Resource: leases, Bytes: 10}, true},
		"a node reports":                         {Write{User: node, Resource: schema.GroupResource{Resource: "pods"}, Subresource: "status", Bytes: 20, Before: 10}, true},
		"a node makes a pod":                     {Write{User: node, Resource: schema.GroupResource{Resource: "pods"}, Bytes: 20}, false},
		"nobody":                                 {Write{Resource: leases, Bytes: 10}, false},
	} {
		if got := c.write.Granted([]string{"admins"}); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
