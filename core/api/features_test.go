// SPDX-License-Identifier: Apache-2.0

package api

import (
	"maps"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/api/live"
)

// With their gates, pod groups are what upstream's are: in discovery, in the store, in
// tables. The gates are the process's own, so no test runs beside this one.
func TestPodGroupsAreUpstreams(t *testing.T) {
	if err := EnableFeatures(map[string]bool{"GenericWorkload": true, "TopologyAwareWorkloadScheduling": true}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := EnableFeatures(map[string]bool{"TopologyAwareWorkloadScheduling": false, "GenericWorkload": false}); err != nil {
			t.Error(err)
		}
	})
	c, err := New()
	if err != nil {
		t.Fatal(err)
	}
	c.Connect(live.Server{Authorizer: allowAll{}})
	gv := schema.GroupVersion{Group: "scheduling.k8s.io", Version: "v1beta1"}
	want := recorded(t, upstreamFile(t, "api/discovery/apis__scheduling.k8s.io__v1beta1.json"))
	compareMaps(t, gv.String(), want, c.discovered(gv))
	upstream := upstreamStorage(t)
	for _, r := range c.InVersion(gv) {
		t.Run(r.GroupResource.Resource, func(t *testing.T) {
			story := rowStory{t: t, c: c, r: r, version: gv.Version, upstream: upstream[r.GroupResource.WithVersion(gv.Version)]}
			story.run()
		})
	}
	if got := len(c.InVersion(gv)); got != 2 {
		t.Errorf("%d resources in %s, want podgroups and workloads", got, gv)
	}
}

// Requests for the state of pools of devices are upstream's, and nothing else of its alpha version is served.
func TestPoolStatusRequestsAreUpstreams(t *testing.T) {
	gate := func(on bool) {
		t.Helper()
		if err := EnableFeatures(map[string]bool{"DRAResourcePoolStatus": on}); err != nil {
			t.Fatal(err)
		}
	}
	gv := schema.GroupVersion{Group: "resource.k8s.io", Version: "v1alpha3"}
	without, err := New()
	if err != nil {
		t.Fatal(err)
	}
	if got := without.InVersion(gv); len(got) != 0 {
		t.Errorf("%d resources in %s without the gate", len(got), gv)
	}
	gate(true)
	t.Cleanup(func() { gate(false) })
	c, err := New()
	if err != nil {
		t.Fatal(err)
	}
	c.Connect(live.Server{Authorizer: allowAll{}})
	want := recorded(t, upstreamFile(t, "api/discovery/apis__resource.k8s.io__v1alpha3.json"))
	maps.DeleteFunc(want, func(name string, _ any) bool { return strings.HasPrefix(name, "devicetaintrules") }) // in v1
	compareMaps(t, gv.String(), want, c.discovered(gv))
	served := c.InVersion(gv)
	if len(served) != 1 || len(c.InVersion(schema.GroupVersion{Group: gv.Group, Version: "v1"})) != 5 {
		t.Fatalf("%d resources in %s", len(served), gv)
	}
	upstream := upstreamStorage(t)[served[0].GroupResource.WithVersion(gv.Version)]
	story := rowStory{t: t, c: c, r: served[0], version: gv.Version, upstream: upstream}
	story.run()
}

func TestAFeatureThatNobodyHasIsAnError(t *testing.T) {
	err := EnableFeatures(map[string]bool{"GenericWorklod": true})
	if err == nil || !strings.Contains(err.Error(), "GenericWorklod") {
		t.Errorf("error %v", err)
	}
}
