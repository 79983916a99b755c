// SPDX-License-Identifier: Apache-2.0

// Package podcost bounds what upstream's validation of pods, and of what has a template of
// them, costs where the time grows with the square of a list.
package podcost

import (
	"fmt"
	"strings"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/apis/apps"
	"k8s.io/kubernetes/pkg/apis/batch"
	"k8s.io/kubernetes/pkg/apis/core"
)

const (
	// MaxPaths is how many paths the items and sources of one volume may have, each of which
	// upstream compares with all others, to warn of those that overlap: 20,000 take a minute.
	// Several volumes may have so many together that as many comparisons are made.
	MaxPaths = 3000
	// maxDiffed is how many entries the lists of two specs may have for an update that is
	// refused to say what it would have changed: to find the difference takes a minute for 15,000.
	maxDiffed = 2000
)

// Check refuses an object that would cost too much to validate; old is what it replaces,
// nil = nothing. Volumes that an update leaves as they are are not looked at.
func Check(o, old runtime.Object) field.ErrorList {
	spec, path := specOf(o)
	if spec == nil {
		return nil
	}
	before, _ := specOf(old)
	if before == nil || !apiequality.Semantic.DeepEqual(spec.Volumes, before.Volumes) {
		if errs := checkPaths(spec.Volumes, path.Child("volumes")); len(errs) > 0 {
			return errs
		}
	}
	if _, pod := o.(*core.Pod); pod && before != nil {
		return checkUpdate(spec, before)
	}
	return nil
}

// specOf is the spec of a pod or of a template; nil where there is none.
func specOf(o runtime.Object) (*core.PodSpec, *field.Path) {
	spec := field.NewPath("spec")
	below := spec.Child("template", "spec")
	switch o := o.(type) {
	case *core.Pod:
		return &o.Spec, spec
	case *core.PodTemplate:
		return &o.Template.Spec, field.NewPath("template", "spec")
	case *core.ReplicationController:
		if o.Spec.Template != nil {
			return &o.Spec.Template.Spec, below
		}
	case *apps.ReplicaSet:
		return &o.Spec.Template.Spec, below
	case *apps.Deployment:
		return &o.Spec.Template.Spec, below
	case *apps.DaemonSet:
		return &o.Spec.Template.Spec, below
	case *apps.StatefulSet:
		return &o.Spec.Template.Spec, below
	case *batch.Job:
		return &o.Spec.Template.Spec, below
	case *batch.CronJob:
		return &o.Spec.JobTemplate.Spec.Template.Spec, spec.Child("jobTemplate", "spec", "template", "spec")
	}
	return nil, nil
}

func checkPaths(volumes []core.Volume, path *field.Path) field.ErrorList {
	left := MaxPaths * MaxPaths
	for i := range volumes {
		n := paths(&volumes[i])
		if left -= n * n; left < 0 {
			return field.ErrorList{field.Forbidden(path.Index(i), fmt.Sprintf("the items and sources of this volume and "+
				"those before it have too many paths, each of which is compared with all others of its volume: this one has %d, and a volume alone may have %d", n, MaxPaths))}
		}
	}
	return nil
}

func paths(v *core.Volume) (n int) {
	if v.ConfigMap != nil {
		n += len(v.ConfigMap.Items)
	}
	if v.Secret != nil {
		n += len(v.Secret.Items)
	}
	if v.DownwardAPI != nil {
		n += len(v.DownwardAPI.Items)
	}
	if v.Projected == nil {
		return n
	}
	for _, s := range v.Projected.Sources {
		n += 3 // a certificate has as many
		if s.ConfigMap != nil {
			n += len(s.ConfigMap.Items)
		}
		if s.Secret != nil {
			n += len(s.Secret.Items)
		}
		if s.DownwardAPI != nil {
			n += len(s.DownwardAPI.Items)
		}
	}
	return n
}

// checkUpdate refuses an update of a large pod that changes what nobody may change. Upstream
// would, too, but for the difference between the two, which it tells.
func checkUpdate(next, old *core.PodSpec) field.ErrorList {
	same := apiequality.Semantic.DeepEqual
	if entries(next)+entries(old) <= maxDiffed || same(next, old) || same(allowed(next, old), old) {
		return nil
	}
	return field.ErrorList{field.Forbidden(field.NewPath("spec"), fmt.Sprintf("pod updates may not change fields other "+
		"than %s (the pod has too many entries in its lists to say what is changed)", strings.Join(changeable(), ",")))}
}

func changeable() []string {
	return []string{
		"`spec.containers[*].image`", "`spec.initContainers[*].image`", "`spec.activeDeadlineSeconds`",
		"`spec.tolerations` (only additions to existing tolerations)", "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)",
	}
}

// allowed is next without the changes that may be allowed, which upstream validates.
func allowed(next, old *core.PodSpec) *core.PodSpec {
	out := next.DeepCopy()
	if len(out.Containers) != len(old.Containers) || len(out.InitContainers) != len(old.InitContainers) {
		return old // upstream says so, and no more
	}
	for i := range out.Containers {
		out.Containers[i].Image = old.Containers[i].Image
	}
	for i := range out.InitContainers {
		out.InitContainers[i].Image = old.InitContainers[i].Image
	}
	out.ActiveDeadlineSeconds, out.TerminationGracePeriodSeconds = old.ActiveDeadlineSeconds, old.TerminationGracePeriodSeconds
	out.Tolerations = old.Tolerations
	if len(old.SchedulingGates) > 0 {
		out.NodeSelector = old.NodeSelector
		switch {
		case out.Affinity != nil && old.Affinity != nil:
			out.Affinity.NodeAffinity = old.Affinity.NodeAffinity
		case out.Affinity != nil && out.Affinity.PodAffinity == nil && out.Affinity.PodAntiAffinity == nil:
			out.Affinity = nil
		}
	}
	out.SchedulingGates = old.SchedulingGates
	return out
}

// entries is about how many entries the lists of a spec have.
func entries(s *core.PodSpec) int {
	n := len(s.Volumes) + len(s.Tolerations) + len(s.HostAliases) + len(s.ImagePullSecrets) + len(s.TopologySpreadConstraints) +
		len(s.ReadinessGates) + len(s.SchedulingGates) + len(s.ResourceClaims) + len(s.NodeSelector) + len(s.Containers) + len(s.InitContainers)
	for i := range s.Volumes {
		n += paths(&s.Volumes[i])
	}
	for _, list := range [][]core.Container{s.Containers, s.InitContainers} {
		for i := range list {
			c := &list[i]
			n += len(c.Env) + len(c.EnvFrom) + len(c.Ports) + len(c.VolumeMounts) + len(c.VolumeDevices) + len(c.Args) + len(c.Command) +
				len(c.Resources.Limits) + len(c.Resources.Requests)
		}
	}
	if a := s.Affinity; a != nil {
		if a.NodeAffinity != nil {
			n += len(a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
			if r := a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution; r != nil {
				n += len(r.NodeSelectorTerms)
			}
		}
		if a.PodAffinity != nil {
			n += len(a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
			n += len(a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution)
		}
		if a.PodAntiAffinity != nil {
			n += len(a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
			n += len(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution)
		}
	}
	return n
}
