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

// TestTheCollectorFollowsWhatOthersFollowAnyway: each object is kept and decoded once for all controllers, and no kind is
// kept whole for the collector alone, which needs its metadata only.
func TestTheCollectorFollowsWhatOthersFollowAnyway(t *testing.T) {
	const collector = "garbage-collector-controller"
	nowhere := func(string) (*client.Set, error) { return client.New(&rest.Config{Host: "https://invalid.invalid"}) }
	declarations, err := Declared(t.Context(), Config{Clients: nowhere, Controllers: []string{"*"}})
	if err != nil {
		t.Fatal(err)
	}
	var own []schema.GroupResource
	others := map[schema.GroupResource]string{}
	for _, d := range declarations {
		if d.Name == collector {
			own = d.Informers
			continue
		}
		for _, r := range d.Informers {
			others[r] = d.Name
		}
	}
	for _, r := range own {
		if others[r] == "" {
			t.Errorf("%s is kept whole for the collector alone", r)
		}
	}
	for _, r := range []string{
		"podcertificaterequests.certificates.k8s.io", "storageversionmigrations.storagemigration.k8s.io",
		"devicetaintrules.resource.k8s.io",
	} { // not served in every cluster: an informer of them would ask in vain for ever
		delete(others, schema.ParseGroupResource(r))
	}
	for r, name := range others {
		if !slices.Contains(own, r) {
			t.Errorf("%s is kept for %s, and its metadata once more for the collector", r, name)
		}
	}
}
