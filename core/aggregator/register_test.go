// SPDX-License-Identifier: Apache-2.0

package aggregator

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

func TestWhoMayChangeAnAPIService(t *testing.T) {
	apps := schema.GroupVersion{Group: "apps", Version: "v1"}
	builtIn := local(apps, onStart, 17800, 15)
	defined := local(apps, always, 1000, 100)
	served := func(s *apiregistrationv1.APIService) *apiregistrationv1.APIService {
		s = s.DeepCopy()
		s.Spec.Service = &apiregistrationv1.ServiceReference{Namespace: "a", Name: "b"}
		return s
	}
	foreign := &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: "v1.apps"}}
	for name, c := range map[string]struct {
		has, want   *apiregistrationv1.APIService
		doneAtStart bool
		then        step
	}{
		"nothing there, nothing wanted":                      {then: leave},
		"built in and missing":                               {want: builtIn, then: create},
		"built in and deleted by an administrator":           {want: builtIn, doneAtStart: true, then: leave},
		"built in and as it should be":                       {has: builtIn, want: builtIn, then: leave},
		"built in and changed before the start":              {has: served(builtIn), want: builtIn, then: update},
		"built in and changed by an administrator":           {has: served(builtIn), want: builtIn, doneAtStart: true, then: leave},
		"built in once":                                      {has: builtIn, then: remove},
		"defined and missing":                                {want: defined, then: create},
		"defined and changed":                                {has: served(defined), want: defined, then: update},
		"defined and gone":                                   {has: defined, then: remove},
		"somebody's, and not wanted":                         {has: foreign, then: leave},
		"somebody's, where a definition says something else": {has: foreign, want: defined, then: leave},
	} {
		t.Run(name, func(t *testing.T) {
			if got := decide(c.has, c.want, c.doneAtStart); got != c.then {
				t.Errorf("decided to %s, expected to %s", got, c.then)
			}
		})
	}
}

func TestDiscoveryOrder(t *testing.T) {
	a := &Aggregator{cfg: Config{BuiltIn: []schema.GroupVersion{{Group: "apps", Version: "v1"}}}}
	r := &Remote{
		aggregator: a, gv: schema.GroupVersion{Group: "metrics.example.com", Version: "v1"}, GroupPriority: 17800,
		VersionPriority: 15,
	}
	for ours, before := range map[string]bool{
		"apiregistration.k8s.io": false, "apps": false, "events.k8s.io": true,
		"defined.example.com": true,
	} {
		if got := r.GroupBefore(ours); got != before {
			t.Errorf("before %s: %t, expected %t", ours, got, before)
		}
	}
	r.gv = schema.GroupVersion{Group: "apps", Version: "v2"}
	if !r.VersionBefore("v1") {
		t.Error("apps/v2 has the priority of v1 and is newer: it comes first")
	}
	if r.VersionBefore("v3alpha1") {
		t.Error("a version of a definition has priority 100, which is more than 15")
	}
}

func TestPlainDiscoveryIsAggregated(t *testing.T) {
	gv := schema.GroupVersion{Group: "g", Version: "v1"}
	out := aggregateResources(gv, []metav1.APIResource{
		{Name: "things/status", Kind: "Thing", Verbs: []string{"get"}},
		{Name: "things", SingularName: "thing", Kind: "Thing", Namespaced: true, Verbs: []string{"list"}, ShortNames: []string{"t"}},
		{Name: "things/scale", Group: "autoscaling", Version: "v1", Kind: "Scale", Verbs: []string{"get"}},
	})
	if len(out) != 1 || out[0].Resource != "things" || out[0].Scope != "Namespaced" || out[0].ResponseKind.Group != "g" ||
		len(out[0].Subresources) != 2 ||
		out[0].Subresources[1].ResponseKind.Kind != "Scale" || out[0].Subresources[1].ResponseKind.Group != "autoscaling" {
		t.Errorf("aggregated: %+v", out)
	}
}

func FuzzDiscoveryDocument(f *testing.F) {
	f.Add([]byte(`{"items":[{"metadata":{"name":"g"},"versions":[{"version":"v1","resources":[{"resource":"a","subresources":[{"subresource":"b"}]}]}]}]}`))
	f.Add([]byte(`{"items":[{}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var k known
		if err := k.read(schema.GroupVersion{Group: "g", Version: "v1"}, data, "e"); err != nil {
			return
		}
		for _, r := range k.version.Resources {
			if r.ResponseKind == nil {
				t.Error("a resource has no response kind")
			}
		}
	})
}
