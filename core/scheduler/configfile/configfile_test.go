// SPDX-License-Identifier: Apache-2.0

package configfile_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/informers"

	"github.com/wasmplane/wasmplane/core/dial"
	"github.com/wasmplane/wasmplane/core/scheduler"
	"github.com/wasmplane/wasmplane/core/scheduler/configfile"
	"github.com/wasmplane/wasmplane/core/scheduler/extender"
	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/core/scheduler/native"
	"github.com/wasmplane/wasmplane/core/scheduler/native/devices"
)

const head = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"

// gold is a plugin as one in Wasm looks.
type gold struct{}

func (gold) Name() string { return "gold" }

func (gold) Judge(_ context.Context, _ *framework.PodInfo, snap *framework.Snapshot) ([]framework.Verdict, *framework.Status) {
	return make([]framework.Verdict, len(snap.Nodes)), nil
}

func profiles(text string) ([]scheduler.Profile, error) {
	f, err := configfile.Parse("s.yaml", []byte(text))
	if err != nil {
		return nil, err
	}
	inf := informers.NewSharedInformerFactory(nil, 0)
	wasm := []scheduler.Weighted{{Plugin: gold{}, Weight: 5}}
	return f.Profiles(wasm, native.Config{Informers: inf}, extender.Reach{Dial: dial.Operator(nil)})
}

// find is how a plugin takes part in the first profile; "" = not at all.
func find(list []scheduler.Profile, name string) string {
	for _, w := range list[0].Plugins {
		if w.Name() == name {
			skip := ""
			if len(w.Skip) > 0 {
				skip = fmt.Sprint(" without ", w.Skip)
			}
			return fmt.Sprint(w.Weight, skip)
		}
	}
	return ""
}

func TestProfilesAreAsUpstreamReadsThem(t *testing.T) {
	for _, c := range []struct{ text, plugin, want string }{
		{head, "NodeResourcesFit", "1"},
		{head, "gold", ""},
		{head + "profiles:\n- plugins: {multiPoint: {enabled: [{name: gold}]}}", "gold", "5"},
		{head + "profiles:\n- plugins: {multiPoint: {enabled: [{name: gold, weight: 7}]}}", "gold", "7"},
		{head + "profiles:\n- plugins: {multiPoint: {enabled: [{name: gold}]}}", "NodeResourcesFit", "1"},
		{head + "profiles:\n- plugins: {multiPoint: {disabled: [{name: '*'}], enabled: [{name: gold}]}}", "NodeResourcesFit", ""},
		{head + "profiles:\n- plugins: {multiPoint: {disabled: [{name: ImageLocality}]}}", "ImageLocality", ""},
		{head + "profiles:\n- plugins: {score: {disabled: [{name: NodeResourcesFit}]}}", "NodeResourcesFit", "1 without [Score]"},
		{head + "profiles:\n- plugins: {score: {disabled: [{name: '*'}], enabled: [{name: NodeResourcesFit, weight: 9}]}}", "NodeResourcesFit", "9"},
		{head + "profiles:\n- plugins: {score: {disabled: [{name: '*'}], enabled: [{name: NodeResourcesFit, weight: 9}]}}", "TaintToleration", "3 without [Score]"},
		{head + "profiles:\n- plugins: {multiPoint: {disabled: [{name: VolumeZone}]}, bind: {enabled: [{name: DefaultBinder}]}}", "NodeName", "0"},
	} {
		list, err := profiles(c.text)
		if err != nil {
			t.Errorf("%s\n%v", c.text, err)
			continue
		}
		if got := find(list, c.plugin); got != c.want {
			t.Errorf("%s\n%s takes part %q, want %q", c.text, c.plugin, got, c.want)
		}
	}
}

func TestWhatIsSaidBesidesProfiles(t *testing.T) {
	f, err := configfile.Parse("s.yaml", []byte(head+`parallelism: 4
percentageOfNodesToScore: 30
podInitialBackoffSeconds: 2
podMaxBackoffSeconds: 20
leaderElection: {leaderElect: true}
profiles:
- schedulerName: default-scheduler
- schedulerName: all
  percentageOfNodesToScore: 100
`))
	if err != nil {
		t.Fatal(err)
	}
	list, err := f.Profiles(nil, native.Config{Informers: informers.NewSharedInformerFactory(nil, 0)}, extender.Reach{})
	if err != nil {
		t.Fatal(err)
	}
	if q := f.Queue(); q.InitialBackoff != 2*time.Second || q.MaxBackoff != 20*time.Second || f.Workers() != 4 {
		t.Errorf("%+v, %d workers", q, f.Workers())
	}
	if len(list) != 2 || list[0].PercentageOfNodes != 30 || list[1].PercentageOfNodes != 100 || list[1].Name != "all" {
		t.Errorf("profiles %+v", list)
	}
}

func TestArgumentsReachThePlugins(t *testing.T) {
	list, err := profiles(head + `profiles:
- pluginConfig:
  - name: NodeResourcesFit
    args:
      ignoredResources: [example.com/foo]
      scoringStrategy: {type: MostAllocated, resources: [{name: cpu, weight: 3}, {name: nvidia.com/gpu}]}
  - name: DefaultPreemption
    args: {apiVersion: kubescheduler.config.k8s.io/v1, kind: DefaultPreemptionArgs,
      minCandidateNodesPercentage: 5, minCandidateNodesAbsolute: 7}
  - name: PodTopologySpread
    args: {defaultingType: List, defaultConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway}]}
  - name: InterPodAffinity
    args: {hardPodAffinityWeight: 5, ignorePreferredTermsOfExistingPods: true}
  - name: NodeResourcesBalancedAllocation
    args: {resources: [{name: cpu}, {name: nvidia.com/gpu, weight: 1}]}
  - name: DynamicResources
    args: {filterTimeout: 3s, bindingTimeout: 30s}
  - name: NodeAffinity
    args: {addedAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [
      {matchExpressions: [{key: disk, operator: Exists}]}]}}}
`)
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, w := range list[0].Plugins {
		switch p := w.Plugin.(type) {
		case native.Fit:
			seen++
			if fmt.Sprint(p.Ignored, p.Resources, p.Shape) != "[example.com/foo] [{cpu 3} {nvidia.com/gpu 1}] [{0 0} {100 100}]" {
				t.Errorf("%+v", p)
			}
		case native.Preemption:
			seen++
			if *p.Percent != 5 || *p.Least != 7 || p.Budgets == nil {
				t.Errorf("%+v", p)
			}
		case native.PodAffinity:
			seen++
			if *p.HardWeight != 5 || !p.IgnorePreferred || p.Namespaces == nil {
				t.Errorf("%+v", p)
			}
		case native.Balance:
			seen++
			if fmt.Sprint(p.Resources) != "[cpu nvidia.com/gpu]" {
				t.Errorf("%+v", p)
			}
		case *devices.Plugin:
			seen++
			if p.Patience() != 90*time.Second {
				t.Errorf("it waits for devices for %s", p.Patience())
			}
		case native.Affinity:
			seen++
			if p.Required == nil || p.Preferred != nil {
				t.Errorf("%+v", p)
			}
		case native.Spread:
			seen++
			if len(p.Defaults.Constraints) != 1 || p.Defaults.Constraints[0].TopologyKey != "zone" {
				t.Errorf("%+v", p.Defaults)
			}
		}
	}
	if seen != 7 {
		t.Errorf("%d of 7 plugins are there", seen)
	}
}

func TestWhatIsWrongOrNotDoneIsSaidWithFileAndLine(t *testing.T) {
	one := head + "profiles:\n- "
	for _, c := range []struct{ text, want string }{
		{"", "s.yaml: the document is empty"},
		{"apiVersion: kubescheduler.config.k8s.io/v1beta3\nkind: KubeSchedulerConfiguration", "s.yaml:1: apiVersion: expected apiVersion: kubescheduler.config.k8s.io/v1 "},
		{head + "paralelism: 3", `s.yaml:3: paralelism: unknown field "paralelism"`},
		{head + "parallelism: many", "s.yaml:3: parallelism: "},
		{head + "parallelism: 0", "s.yaml:3: parallelism: expected 1 to 10000, found 0"},
		{head + "podInitialBackoffSeconds: 0", "s.yaml:3: podInitialBackoffSeconds: expected 1 or more, found 0"},
		{head + "podInitialBackoffSeconds: 5\npodMaxBackoffSeconds: 2", "s.yaml:4: podMaxBackoffSeconds: expected at least podInitialBackoffSeconds"},
		{head + "clientConnection: {kubeconfig: /etc/x}", "s.yaml:3: clientConnection: is not read"},
		{head + "extenders: [{urlPrefix: http://x}]", "s.yaml:3: extenders[0]: expected a verb: filterVerb"},
		{head + "extenders: [{urlPrefix: x, filterVerb: f}]", `s.yaml:3: extenders[0].urlPrefix: expected a URL such as https://extender.example.com/scheduler, found "x"`},
		{head + "extenders: [{urlPrefix: http://a:b@x, filterVerb: f}]", "s.yaml:3: extenders[0].urlPrefix: expected a URL without user"},
		{head + "extenders: [{urlPrefix: http://x, filterVerb: f, enableHTTPS: true}]", "s.yaml:3: extenders[0].urlPrefix: expected https:// beside enableHTTPS"},
		{head + "extenders: [{urlPrefix: https://x, filterVerb: f, enableHTTPS: true}]", "s.yaml:3: extenders[0].enableHTTPS: needs tlsConfig.caFile or caData"},
		{head + "extenders: [{urlPrefix: https://x, filterVerb: f, tlsConfig: {insecure: true, caFile: ca}}]", "s.yaml:3: extenders[0].tlsConfig.insecure: cannot be beside"},
		{head + "extenders: [{urlPrefix: https://x, filterVerb: f, tlsConfig: {certFile: a}}]", "s.yaml:3: extenders[0].tlsConfig: a client certificate needs"},
		{head + "extenders: [{urlPrefix: https://x, filterVerb: f, tlsConfig: {caFile: not-there}}]", "s.yaml:3: extenders[0].tlsConfig.caFile: open not-there"},
		{head + "extenders: [{urlPrefix: http://x, filterVerb: f, httpTimeout: 2m}]", "s.yaml:3: extenders[0].httpTimeout: expected up to 1m0s (0: 5s), found 2m0s"},
		{head + "extenders: [{urlPrefix: http://x, filterVerb: 'f?a'}]", "s.yaml:3: extenders[0].filterVerb: expected a path"},
		{head + "extenders: [{urlPrefix: http://x, prioritizeVerb: p}]", "s.yaml:3: extenders[0].weight: expected 1 to 1048576 beside a prioritizeVerb, found 0"},
		{head + "extenders:\n- {urlPrefix: http://x, bindVerb: b}\n- {urlPrefix: http://x, bindVerb: b}", "s.yaml:5: extenders[1].bindVerb: only one extender can bind, and extenders[0] does"},
		{head + "extenders: [{urlPrefix: http://x, filterVerb: f, managedResources: [{name: cpu}]}]", `s.yaml:3: extenders[0].managedResources[0].name: expected the name of an extended resource, such as example.com/gpu, found "cpu"`},
		{head + "extenders: [{urlPrefix: http://x, filterVerb: f, managedResources: [{name: a.b/c}, {name: a.b/c}]}]", "s.yaml:3: extenders[0].managedResources[1].name: a.b/c is managed twice"},
		{head + "extenders: [{urlPrefix: http://x, filterVerb: f, filterverb: g}]", `s.yaml:3: extenders[0].filterverb: unknown field`},
		{head + "leaderElection:\n  leaderElect: false", "s.yaml:4: leaderElection.leaderElect: is not read"},
		{one + "schedulerName: a\n- schedulerName: a", `s.yaml:5: profiles[1].schedulerName: every profile needs a name of its own, found "a" twice`},
		{one + "percentageOfNodesToScore: 101", "s.yaml:4: profiles[0].percentageOfNodesToScore: expected 0 to 100, found 101"},
		{one + "plugins: {scores: {}}", `s.yaml:4: profiles[0].plugins.scores: unknown field`},
		{one + "plugins: {score: {enabled: [{name: goldd}]}}", `s.yaml:4: profiles[0].plugins.score.enabled[0].name: there is no plugin "goldd"; there are NodeUnschedulable, `},
		{one + "plugins: {multiPoint: {enabled: [{name: DeferredPodScheduling}]}}", "s.yaml:4: profiles[0].plugins.multiPoint.enabled[0].name: this scheduler has no plugin DeferredPodScheduling"},
		{one + "plugins: {filter: {enabled: [{name: gold}]}}", "s.yaml:4: profiles[0].plugins: plugin gold filters and scores all nodes in one call"},
		{one + "plugins: {preFilter: {disabled: [{name: '*'}]}}", "s.yaml:4: profiles[0].plugins: plugin NodeName is enabled at Filter and not at PreFilter"},
		{one + "plugins: {queueSort: {disabled: [{name: PrioritySort}]}}", "s.yaml:4: profiles[0].plugins.queueSort.disabled[0].name: PrioritySort cannot be left out"},
		{one + "plugins: {filter: {enabled: [{name: NodeName, weight: 3}]}}", "s.yaml:4: profiles[0].plugins.filter.enabled[0].weight: expected 1 or more, at score and multiPoint only, found 3"},
		{one + "plugins: {placementScore: {enabled: [{name: x}]}}", "s.yaml:4: profiles[0].plugins.placementScore: groups of pods are not placed as one"},
		{one + "pluginConfig: [{name: gold, args: {}}]", `s.yaml:4: profiles[0].pluginConfig[0].name: "gold" takes no arguments here`},
		{one + "pluginConfig:\n  - name: NodeResourcesFit\n    args:\n      scoringStrategi: {}", `s.yaml:7: profiles[0].pluginConfig[0].args.scoringStrategi: unknown field`},
		{one + "pluginConfig:\n  - name: NodeResourcesFit\n    args:\n      scoringStrategy: {type: Best}", `s.yaml:7: profiles[0].pluginConfig[0].args.scoringStrategy.type: expected LeastAllocated, MostAllocated or RequestedToCapacityRatio, found "Best"`},
		{one + "pluginConfig:\n  - name: NodeResourcesFit\n    args:\n      ignoredResources: [a b]", `s.yaml:7: profiles[0].pluginConfig[0].args.ignoredResources[0]: expected the name of an extended resource, such as example.com/gpu, found "a b"`},
		{one + "pluginConfig:\n  - name: NodeResourcesFit\n    args:\n      ignoredResourceGroups: [example.com/gpu]", `s.yaml:7: profiles[0].pluginConfig[0].args.ignoredResourceGroups[0]: expected what stands before the /`},
		{one + "pluginConfig:\n  - name: NodeResourcesFit\n    args:\n      scoringStrategy: {type: MostAllocated, requestedToCapacityRatio: {shape: []}}", "s.yaml:7: profiles[0].pluginConfig[0].args.scoringStrategy.requestedToCapacityRatio: needs type: RequestedToCapacityRatio"},
		{one + "pluginConfig:\n  - name: NodeResourcesBalancedAllocation\n    args:\n      resources: [{name: cpu}, {name: cpu}]", "s.yaml:7: profiles[0].pluginConfig[0].args.resources[1].name: cpu is listed twice"},
		{one + "pluginConfig:\n  - name: NodeResourcesBalancedAllocation\n    args:\n      resources: [{name: cpu, weight: 2}]", "s.yaml:7: profiles[0].pluginConfig[0].args.resources[0].weight: expected 1: all resources are balanced alike; found 2"},
		{one + "pluginConfig:\n  - name: NodeResourcesBalancedAllocation\n    args:\n      resources: [{weight: 1}]", "s.yaml:7: profiles[0].pluginConfig[0].args.resources[0].name: expected the name of a resource"},
		{one + "pluginConfig:\n  - name: PodTopologySpread\n    args:\n      defaultingType: List\n      defaultConstraints: [{maxSkew: 1, topologyKey: a b, whenUnsatisfiable: DoNotSchedule}]", `s.yaml:8: profiles[0].pluginConfig[0].args.defaultConstraints[0].topologyKey: expected the name of a label, found "a b"`},
		{one + "pluginConfig:\n  - name: PodTopologySpread\n    args:\n      defaultingType: List\n      defaultConstraints:\n      - {maxSkew: 1, topologyKey: a, whenUnsatisfiable: DoNotSchedule}\n      - {maxSkew: 2, topologyKey: a, whenUnsatisfiable: DoNotSchedule}", "s.yaml:10: profiles[0].pluginConfig[0].args.defaultConstraints[1]: there is one with topologyKey a and whenUnsatisfiable DoNotSchedule already"},
		{one + "pluginConfig:\n  - name: InterPodAffinity\n    args: {hardPodAffinityWeight: 101}", "s.yaml:6: profiles[0].pluginConfig[0].args.hardPodAffinityWeight: expected 0 to 100, found 101"},
		{one + "pluginConfig:\n  - name: DynamicResources\n    args: {bindingTimeout: 100ms}", "s.yaml:6: profiles[0].pluginConfig[0].args.bindingTimeout: expected 1s or more, found 100ms"},
		{one + "pluginConfig:\n  - name: DynamicResources\n    args: {filterTimeout: 0s}", "s.yaml:6: profiles[0].pluginConfig[0].args.filterTimeout: expected more than 0s"},
		{one + "pluginConfig:\n  - name: NodeAffinity\n    args: {kind: NodeNameArgs}", "s.yaml:6: profiles[0].pluginConfig[0].args.kind: expected NodeAffinityArgs, found NodeNameArgs"},
		{one + "pluginConfig:\n  - name: VolumeBinding\n    args: {bindTimeoutSeconds: 0}", "s.yaml:6: profiles[0].pluginConfig[0].args.bindTimeoutSeconds: expected 1 to 31536000, found 0"},
		{one + "pluginConfig:\n  - name: VolumeBinding\n    args:\n      shape: [{utilization: 50, score: 1}, {utilization: 50, score: 2}]", "s.yaml:7: profiles[0].pluginConfig[0].args.shape[1]: expected utilization up to 100 in growing order"},
		{one + "pluginConfig:\n  - name: VolumeBinding\n    args:\n      shape: [{utilization: 0, score: 11}]", "s.yaml:7: profiles[0].pluginConfig[0].args.shape[0]: expected utilization up to 100"},
	} {
		_, err := profiles(c.text)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s\ngave %v\nwant %s", c.text, err, c.want)
		}
	}
}

// A plugin that is not asked at a point is not asked there, whatever it could do.
func TestWhatIsLeftOutIsNotAsked(t *testing.T) {
	list, err := profiles(head + "profiles:\n- plugins: {score: {disabled: [{name: '*'}]}}")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(list[0].Plugins, func(w scheduler.Weighted) bool { return slices.Contains(w.Skip, framework.AtScore) }) {
		t.Fatal("nobody is left out")
	}
	trial, err := scheduler.NewTrial(list[0])
	if err != nil {
		t.Fatal(err)
	}
	d := trial.Decide(t.Context(), podInfo(), twoNodes(), 1)
	if d.Node == "" || len(d.Scores) != 0 {
		t.Errorf("node %q, scores %v", d.Node, d.Scores)
	}
}
