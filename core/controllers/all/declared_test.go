// SPDX-License-Identifier: Apache-2.0

package all

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/wasmplane/wasmplane/core/client"
)

// TestControllersDeclareWhatTheyListenTo without a server, and nothing of them stays (see TestMain).
func TestControllersDeclareWhatTheyListenTo(t *testing.T) {
	nowhere := func(string) (*client.Set, error) { return client.New(&rest.Config{Host: "https://invalid.invalid"}) }
	got, err := Declared(t.Context(), Config{Clients: nowhere, Controllers: []string{"*", "-ttl-after-finished-controller"}})
	if err != nil {
		t.Fatal(err)
	}
	by := map[string]Declaration{}
	for _, d := range got {
		by[d.Name] = d
	}
	if _, ok := by["ttl-after-finished-controller"]; ok {
		t.Error("a controller that is switched off declares something")
	}
	for name, want := range map[string]Declaration{
		"job-controller": {Account: "job-controller", Informers: []schema.GroupResource{{Group: "batch", Resource: "jobs"}, {Resource: "pods"}}},
		"deployment-controller": {Account: "deployment-controller", Informers: []schema.GroupResource{
			{Group: "apps", Resource: "deployments"}, {Group: "apps", Resource: "replicasets"}, {Resource: "pods"},
		}},
	} {
		d := by[name]
		if d.Account != want.Account {
			t.Errorf("%s works as %q", name, d.Account)
		}
		for _, r := range want.Informers {
			if !slices.Contains(d.Informers, r) {
				t.Errorf("%s does not listen to %s: %v", name, r, d.Informers)
			}
		}
	}
	if len(got) < 30 {
		t.Errorf("%d controllers", len(got))
	}
}
