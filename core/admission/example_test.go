// SPDX-License-Identifier: Apache-2.0

package admission_test

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/wasmplane/wasmplane/core/admission"
)

// frozen refuses deletions in a namespace.
type frozen struct{ namespace string }

func (f frozen) Name() string { return "frozen" }

func (f frozen) Handles(r *admission.Request) bool {
	return r.Operation == admission.Delete && r.Namespace == f.namespace
}

func (f frozen) Validate(_ context.Context, r *admission.Request) error {
	return fmt.Errorf("%s %q is in namespace %s, where nothing is deleted", r.Resource.Resource, r.Name, f.namespace)
}

// A plugin says what it wants to see, and refuses by an error.
func ExampleChain() {
	chain, err := admission.NewChain(frozen{namespace: "production"})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, namespace := range []string{"test", "production"} {
		r := &admission.Request{
			Operation: admission.Delete, Resource: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"},
			Kind: schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, Namespace: namespace, Name: "prices",
			User: &user.DefaultInfo{Name: "jane"},
		}
		if err := chain.Validate(context.Background(), r); err != nil {
			fmt.Println("refused:", err)
			continue
		}
		fmt.Println("admitted in", namespace)
	}
	// Output:
	// admitted in test
	// refused: configmaps "prices" is forbidden: admission plugin "frozen" denied the request: configmaps "prices" is in namespace production, where nothing is deleted
}
