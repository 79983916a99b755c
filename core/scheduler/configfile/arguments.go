// SPDX-License-Identifier: Apache-2.0

package configfile

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/kube-scheduler/config/v1"

	"github.com/wasmplane/wasmplane/core/scheduler/native"
	"github.com/wasmplane/wasmplane/core/scheduler/native/shape"
)

// arguments of the native plugins of a profile.
func (f *File) arguments(path string, list []v1.PluginConfig, into *native.Config) error {
	seen := map[string]bool{}
	for i, c := range list {
		at := fmt.Sprintf("%s.pluginConfig[%d]", path, i)
		if seen[c.Name] {
			return f.wrong(at+".name", "%s is configured twice", c.Name)
		}
		seen[c.Name] = true
		a := &argument{file: f, path: at + ".args", data: c.Args.Raw, into: into}
		read := map[string]func() error{
			"NodeResourcesFit": a.fit, "NodeResourcesBalancedAllocation": a.balance, "PodTopologySpread": a.spread,
			"InterPodAffinity": a.affinity, "DefaultPreemption": a.preemption, "NodeAffinity": a.nodes, "VolumeBinding": a.volumes,
			"DynamicResources": a.devices,
		}[c.Name]
		if read == nil {
			return f.wrong(at+".name", "%q takes no arguments here; a plugin in Wasm has the settings of its entry in plugins:", c.Name)
		}
		if err := read(); err != nil {
			return err
		}
	}
	return nil
}

// argument is the arguments of one plugin.
type argument struct {
	file *File
	path string
	data []byte
	into *native.Config
}

// read decodes; the kind may be left out, as in upstream's.
func (a *argument) read(into any, kind *string, want string) error {
	if len(a.data) == 0 {
		return nil
	}
	if err := a.file.strictly(a.data, into, a.path); err != nil {
		return err
	}
	if *kind != "" && *kind != want {
		return a.file.wrong(a.path+".kind", "expected %s, found %s", want, *kind)
	}
	return nil
}

func (a *argument) wrong(field, format string, args ...any) error {
	return a.file.wrong(a.path+"."+field, format, args...)
}

func (a *argument) fit() error {
	var x v1.NodeResourcesFitArgs
	if err := a.read(&x, &x.Kind, "NodeResourcesFitArgs"); err != nil {
		return err
	}
	a.into.Fit.Ignored, a.into.Fit.IgnoredGroups = x.IgnoredResources, x.IgnoredResourceGroups
	for i, name := range x.IgnoredResources {
		if problems := content.IsLabelKey(name); len(problems) > 0 {
			return a.wrong(fmt.Sprintf("ignoredResources[%d]", i), "expected the name of an extended resource, such as example.com/gpu, found %q: %s", name, problems[0])
		}
	}
	for i, group := range x.IgnoredResourceGroups {
		if strings.Contains(group, "/") {
			return a.wrong(fmt.Sprintf("ignoredResourceGroups[%d]", i), "expected what stands before the / in the names of resources, such as example.com, found %q", group)
		}
		if problems := content.IsLabelKey(group); len(problems) > 0 {
			return a.wrong(fmt.Sprintf("ignoredResourceGroups[%d]", i), "expected what stands before the / in the names of resources, such as example.com, found %q: %s", group, problems[0])
		}
	}
	s := x.ScoringStrategy
	if s == nil {
		return nil
	}
	var err error
	if a.into.Fit.Resources, err = a.resources("scoringStrategy.resources", s.Resources); err != nil {
		return err
	}
	if s.RequestedToCapacityRatio != nil && s.Type != v1.RequestedToCapacityRatio {
		return a.wrong("scoringStrategy.requestedToCapacityRatio", "needs type: RequestedToCapacityRatio")
	}
	switch s.Type {
	case "", v1.LeastAllocated:
	case v1.MostAllocated:
		a.into.Fit.Shape = shape.Shape{{Utilization: 0, Score: 0}, {Utilization: 100, Score: 100}}
	case v1.RequestedToCapacityRatio:
		if s.RequestedToCapacityRatio == nil || len(s.RequestedToCapacityRatio.Shape) == 0 {
			return a.wrong("scoringStrategy.requestedToCapacityRatio", "expected a shape with at least one point")
		}
		a.into.Fit.Ratio = true
		if a.into.Fit.Shape, err = a.shape("scoringStrategy.requestedToCapacityRatio.shape", s.RequestedToCapacityRatio.Shape); err != nil {
			return err
		}
	default:
		return a.wrong("scoringStrategy.type", "expected LeastAllocated, MostAllocated or RequestedToCapacityRatio, found %q", s.Type)
	}
	return nil
}

// shape reads points; scores are of 10 there.
func (a *argument) shape(field string, points []v1.UtilizationShapePoint) (out shape.Shape, err error) {
	before := int32(-1)
	for i, p := range points {
		if p.Utilization <= before || p.Utilization > 100 || p.Score < 0 || p.Score > 10 {
			return nil, a.wrong(fmt.Sprintf("%s[%d]", field, i), "expected utilization up to 100 in growing order, and a score of 0 to 10; found %d and %d", p.Utilization, p.Score)
		}
		before = p.Utilization
		out = append(out, shape.Point{Utilization: int64(p.Utilization), Score: int64(p.Score) * 10})
	}
	return out, nil
}

func (a *argument) resources(field string, list []v1.ResourceSpec) (out []native.ResourceWeight, err error) {
	for i, r := range list {
		weight := r.Weight
		if weight == 0 {
			weight = 1
		}
		if r.Name == "" || weight < 1 || weight > 100 {
			return nil, a.wrong(fmt.Sprintf("%s[%d]", field, i), "expected a name and a weight of 1 to 100, found %q and %d", r.Name, r.Weight)
		}
		out = append(out, native.ResourceWeight{Name: corev1.ResourceName(r.Name), Weight: weight})
	}
	return out, nil
}

func (a *argument) balance() error {
	var x v1.NodeResourcesBalancedAllocationArgs
	if err := a.read(&x, &x.Kind, "NodeResourcesBalancedAllocationArgs"); err != nil {
		return err
	}
	for i, r := range x.Resources {
		at, name := fmt.Sprintf("resources[%d]", i), corev1.ResourceName(r.Name)
		switch {
		case name == "":
			return a.wrong(at+".name", "expected the name of a resource, such as cpu")
		case slices.Contains(a.into.Balance.Resources, name):
			return a.wrong(at+".name", "%s is listed twice", name)
		case r.Weight != 0 && r.Weight != 1:
			return a.wrong(at+".weight", "expected 1: all resources are balanced alike; found %d", r.Weight)
		}
		a.into.Balance.Resources = append(a.into.Balance.Resources, name)
	}
	return nil
}

func (a *argument) spread() error {
	var x v1.PodTopologySpreadArgs
	if err := a.read(&x, &x.Kind, "PodTopologySpreadArgs"); err != nil {
		return err
	}
	switch x.DefaultingType {
	case "", v1.SystemDefaulting:
		if len(x.DefaultConstraints) > 0 {
			return a.wrong("defaultConstraints", "these need defaultingType: List; System has its own")
		}
		a.into.Spread = nil
		return nil
	case v1.ListDefaulting:
	default:
		return a.wrong("defaultingType", "expected System or List, found %q", x.DefaultingType)
	}
	for i, c := range x.DefaultConstraints {
		at := fmt.Sprintf("defaultConstraints[%d]", i)
		switch {
		case c.MaxSkew < 1 || c.TopologyKey == "":
			return a.wrong(at, "expected a topologyKey and a maxSkew of at least 1, found %q and %d", c.TopologyKey, c.MaxSkew)
		case len(content.IsLabelKey(c.TopologyKey)) > 0:
			return a.wrong(at+".topologyKey", "expected the name of a label, found %q: %s", c.TopologyKey, content.IsLabelKey(c.TopologyKey)[0])
		case slices.ContainsFunc(x.DefaultConstraints[:i], func(o corev1.TopologySpreadConstraint) bool {
			return o.TopologyKey == c.TopologyKey && o.WhenUnsatisfiable == c.WhenUnsatisfiable
		}):
			return a.wrong(at, "there is one with topologyKey %s and whenUnsatisfiable %s already", c.TopologyKey, c.WhenUnsatisfiable)
		case c.WhenUnsatisfiable != corev1.DoNotSchedule && c.WhenUnsatisfiable != corev1.ScheduleAnyway:
			return a.wrong(at+".whenUnsatisfiable", "expected DoNotSchedule or ScheduleAnyway, found %q", c.WhenUnsatisfiable)
		case c.LabelSelector != nil:
			return a.wrong(at+".labelSelector", "has to be left out: pods are counted that the same Services and owners select")
		}
	}
	a.into.Spread = append([]corev1.TopologySpreadConstraint{}, x.DefaultConstraints...)
	return nil
}

func (a *argument) affinity() error {
	var x v1.InterPodAffinityArgs
	if err := a.read(&x, &x.Kind, "InterPodAffinityArgs"); err != nil {
		return err
	}
	if w := x.HardPodAffinityWeight; w != nil && (*w < 0 || *w > 100) {
		return a.wrong("hardPodAffinityWeight", "expected 0 to 100, found %d", *w)
	}
	a.into.PodAffinity.HardWeight, a.into.PodAffinity.IgnorePreferred = x.HardPodAffinityWeight, x.IgnorePreferredTermsOfExistingPods
	return nil
}

func (a *argument) nodes() error {
	var x v1.NodeAffinityArgs
	if err := a.read(&x, &x.Kind, "NodeAffinityArgs"); err != nil || x.AddedAffinity == nil {
		return err
	}
	var err error
	if r := x.AddedAffinity.RequiredDuringSchedulingIgnoredDuringExecution; r != nil {
		if a.into.Affinity.Required, err = nodeaffinity.NewNodeSelector(r); err != nil {
			return a.wrong("addedAffinity.requiredDuringSchedulingIgnoredDuringExecution", "%v", err)
		}
	}
	if p := x.AddedAffinity.PreferredDuringSchedulingIgnoredDuringExecution; len(p) > 0 {
		if a.into.Affinity.Preferred, err = nodeaffinity.NewPreferredSchedulingTerms(p); err != nil {
			return a.wrong("addedAffinity.preferredDuringSchedulingIgnoredDuringExecution", "%v", err)
		}
	}
	return nil
}

func (a *argument) preemption() error {
	var x v1.DefaultPreemptionArgs
	if err := a.read(&x, &x.Kind, "DefaultPreemptionArgs"); err != nil {
		return err
	}
	if p := x.MinCandidateNodesPercentage; p != nil {
		if *p < 0 || *p > 100 {
			return a.wrong("minCandidateNodesPercentage", "expected 0 to 100, found %d", *p)
		}
		a.into.Preemption.Percent = p
	}
	if n := x.MinCandidateNodesAbsolute; n != nil {
		if *n < 0 {
			return a.wrong("minCandidateNodesAbsolute", "expected 0 or more, found %d", *n)
		}
		a.into.Preemption.Least = n
	}
	if p, n := x.MinCandidateNodesPercentage, x.MinCandidateNodesAbsolute; p != nil && n != nil && *p == 0 && *n == 0 {
		return a.wrong("minCandidateNodesAbsolute", "both are 0: no node would be looked at")
	}
	return nil
}

func (a *argument) volumes() error {
	var x v1.VolumeBindingArgs
	if err := a.read(&x, &x.Kind, "VolumeBindingArgs"); err != nil {
		return err
	}
	var err error
	if a.into.VolumeShape, err = a.shape("shape", x.Shape); err != nil {
		return err
	}
	if s := x.BindTimeoutSeconds; s != nil {
		if *s < 1 || *s > maxSeconds {
			return a.wrong("bindTimeoutSeconds", "expected 1 to %d, found %d", maxSeconds, *s)
		}
		a.into.VolumeTimeout = time.Duration(*s) * time.Second
	}
	return nil
}

// maxSeconds is a year: longer than anybody waits, and short enough for a time.Duration.
const maxSeconds = 365 * 24 * 3600

func (a *argument) devices() error {
	var x v1.DynamicResourcesArgs
	if err := a.read(&x, &x.Kind, "DynamicResourcesArgs"); err != nil {
		return err
	}
	if t := x.BindingTimeout; t != nil {
		if t.Duration < time.Second {
			return a.wrong("bindingTimeout", "expected 1s or more, found %s", t.Duration)
		}
		a.into.DeviceSettings.Timeout = t.Duration
	}
	if t := x.FilterTimeout; t != nil {
		if t.Duration <= 0 {
			return a.wrong("filterTimeout", "expected more than 0s, found %s: without an end one pod's claims could hold up all others", t.Duration)
		}
		a.into.DeviceSettings.Search = t.Duration
	}
	return nil
}
