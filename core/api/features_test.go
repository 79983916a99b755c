// SPDX-License-Identifier: Apache-2.0

package api

import (
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

func TestAFeatureThatNobodyHasIsAnError(t *testing.T) {
	err := EnableFeatures(map[string]bool{"GenericWorklod": true})
	if err == nil || !strings.Contains(err.Error(), "GenericWorklod") {
		t.Errorf("error %v", err)
	}
}
