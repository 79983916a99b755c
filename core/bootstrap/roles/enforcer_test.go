// SPDX-License-Identifier: Apache-2.0

package roles

import (
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/dynamic"

	"github.com/wasmplane/wasmplane/core/apiserver/apiservertest"
)

// A node may see whether ClusterNetworkPolicies are defined, and read them; it sees no other definition.
func TestNodesReadOneDefinition(t *testing.T) {
	const definition = "clusternetworkpolicies.policy.networking.k8s.io"
	node := &user.DefaultInfo{Name: "system:node:n1", Groups: []string{user.NodesGroup, user.AllAuthenticated}}
	s := apiservertest.Start(t, apiservertest.Options{Authorizer: GrantsOf(Policy(), node).Authorizer()})
	client, err := dynamic.NewForConfig(s.Config(node.Name, node.Groups...))
	if err != nil {
		t.Fatal(err)
	}
	definitions := client.Resource(
		schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"},
	)
	policies := client.Resource(
		schema.GroupVersionResource{Group: "policy.networking.k8s.io", Version: "v1alpha2", Resource: "clusternetworkpolicies"},
	)
	own := metav1.ListOptions{FieldSelector: "metadata.name=" + definition}
	watching := func(o metav1.ListOptions) error {
		w, err := definitions.Watch(t.Context(), o)
		if err == nil {
			w.Stop()
		}
		return err
	}
	list := func(of dynamic.ResourceInterface, o metav1.ListOptions) error {
		_, err := of.List(t.Context(), o)
		return err
	}
	get := func(name string) error {
		_, err := definitions.Get(t.Context(), name, metav1.GetOptions{})
		return err
	}
	for what, c := range map[string]struct {
		err     error
		allowed bool
	}{
		"get its own":          {get(definition), true},
		"get another":          {get("others.example.com"), false},
		"list its own":         {list(definitions, own), true},
		"list all":             {list(definitions, metav1.ListOptions{}), false},
		"watch its own":        {watching(own), true},
		"watch all":            {watching(metav1.ListOptions{}), false},
		"list policies":        {list(policies, metav1.ListOptions{}), true},
		"delete a policy":      {policies.Delete(t.Context(), "a", metav1.DeleteOptions{}), false},
		"delete a definition":  {definitions.Delete(t.Context(), definition, metav1.DeleteOptions{}), false},
		"read nodes":           {list(client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "nodes"}), metav1.ListOptions{}), true},
		"read others' secrets": {list(client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "secrets"}), metav1.ListOptions{}), false},
	} {
		if forbidden := apierrors.IsForbidden(c.err); forbidden == c.allowed {
			t.Errorf("%s: %v", what, c.err)
		}
	}
}
