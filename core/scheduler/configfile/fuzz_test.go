// SPDX-License-Identifier: Apache-2.0

package configfile_test

import (
	"strings"
	"testing"
)

// FuzzConfiguration: any file makes profiles, or an error that names it.
func FuzzConfiguration(f *testing.F) {
	f.Add(head)
	f.Add(head + "profiles: [{schedulerName: a, plugins: {score: {enabled: [{name: gold, weight: 3}], disabled: [{name: '*'}]}}}]")
	f.Add(head + "profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {scoringStrategy: {type: MostAllocated, resources: [{name: cpu, weight: 1}]}}}]}]")
	f.Add(head + "profiles: [{pluginConfig: [{name: PodTopologySpread, args: {defaultingType: List, defaultConstraints: [{maxSkew: 1, topologyKey: z, whenUnsatisfiable: ScheduleAnyway}]}}]}]")
	f.Add(head + "podMaxBackoffSeconds: -1\npercentageOfNodesToScore: 101\nextenders: [{}]")
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 1<<14 {
			return
		}
		list, err := profiles(text)
		switch {
		case err != nil && !strings.Contains(err.Error(), "s.yaml"):
			t.Errorf("%q: an error without the file: %v", text, err)
		case err == nil && len(list) == 0:
			t.Errorf("%q: no profile", text)
		}
	})
}
