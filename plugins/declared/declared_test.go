// SPDX-License-Identifier: Apache-2.0

package declared

import (
	"reflect"
	"testing"

	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/manifest"
)

func TestKindsOfEachPoint(t *testing.T) {
	jobs := abi.Rule{Groups: []string{"batch"}, Resources: []string{"jobs", "jobs/status"}}
	for name, c := range map[string]struct {
		hooks []abi.Hook
		entry manifest.Entry
		want  Kinds
	}{
		"a reconciler makes what it owns, under its account": {
			[]abi.Hook{{
				Point: abi.Reconcile, Primary: &abi.Watch{Group: "batch", Resource: "jobs"}, Owned: []abi.Watch{{Resource: "pods"}},
			}},
			manifest.Entry{Reconcile: manifest.Reconcile{ServiceAccount: "a/b"}},
			Kinds{Watches: []string{"jobs.batch", "pods"}, Writes: []string{"pods"}, Account: "a/b"},
		},
		"who mutates is called by what it changes": {
			[]abi.Hook{{Point: abi.AdmissionMutate, Match: []abi.Rule{jobs}}},
			manifest.Entry{},
			Kinds{Watches: []string{"jobs.batch"}, Writes: []string{"jobs.batch"}},
		},
		"who validates only reads": {
			[]abi.Hook{{Point: abi.AdmissionValidate, Match: []abi.Rule{jobs}}},
			manifest.Entry{},
			Kinds{Reads: []string{"jobs.batch"}},
		},
		"the entry narrows what takes everything": {
			[]abi.Hook{{Point: abi.AdmissionValidate}},
			manifest.Entry{Match: manifest.Match{Rules: []manifest.Rule{{APIGroups: []string{""}, Resources: []string{"pods"}}}}},
			Kinds{Reads: []string{"pods"}},
		},
		"no rules at all are everything": {[]abi.Hook{{Point: abi.AdmissionValidate}}, manifest.Entry{}, Kinds{Reads: []string{"*"}}},
		"a point that the entry leaves out": {
			[]abi.Hook{{Point: abi.AdmissionMutate, Match: []abi.Rule{jobs}}, {Point: abi.SchedulingFilter}},
			manifest.Entry{Points: []string{"scheduling.filter"}},
			Kinds{Reads: []string{"nodes", "pods"}},
		},
		"who binds writes pods; grants are read": {
			[]abi.Hook{{Point: abi.SchedulingBind}},
			manifest.Entry{Grants: manifest.Grants{Read: []manifest.ReadGrant{
				{APIGroups: []string{"apps"}, Resources: []string{"deployments"}},
				{Resources: []string{"pods"}},
			}}},
			Kinds{Reads: []string{"deployments.apps", "nodes", "pods"}, Writes: []string{"pods"}},
		},
		"an authorizer touches nothing": {[]abi.Hook{{Point: abi.Authorization}}, manifest.Entry{}, Kinds{}},
	} {
		if got := Of(&abi.Manifest{Hooks: c.hooks}, &c.entry); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}
