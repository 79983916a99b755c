// SPDX-License-Identifier: Apache-2.0

package podcost

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubernetes/pkg/apis/apps"
	"k8s.io/kubernetes/pkg/apis/batch"
	"k8s.io/kubernetes/pkg/apis/core"
)

func items(n int) (out []core.KeyToPath) {
	for i := range n {
		out = append(out, core.KeyToPath{Key: "k", Path: fmt.Sprint("p", i)})
	}
	return out
}

func volume(n int) core.Volume {
	return core.Volume{VolumeSource: core.VolumeSource{ConfigMap: &core.ConfigMapVolumeSource{Items: items(n)}}}
}

// Each path is compared with all others of its volume, for a warning: a pod of a MiB took a minute.
func TestPathsOfVolumesAreBounded(t *testing.T) {
	source := func(s core.VolumeSource) core.PodSpec { return core.PodSpec{Volumes: []core.Volume{{VolumeSource: s}}} }
	files := make([]core.DownwardAPIVolumeFile, MaxPaths+1)
	several := []core.VolumeProjection{
		{ConfigMap: &core.ConfigMapProjection{Items: items(1000)}},
		{Secret: &core.SecretProjection{Items: items(1000)}},
		{DownwardAPI: &core.DownwardAPIProjection{Items: files[:1000]}},
	}
	many := source(core.VolumeSource{ConfigMap: &core.ConfigMapVolumeSource{Items: items(MaxPaths + 1)}})
	template := core.PodTemplateSpec{Spec: many}
	for name, tc := range map[string]struct {
		object runtime.Object
		field  string
	}{
		"a config map": {&core.Pod{Spec: many}, "spec.volumes[0]"},
		"a secret":     {&core.Pod{Spec: source(core.VolumeSource{Secret: &core.SecretVolumeSource{Items: items(MaxPaths + 1)}})}, "spec.volumes[0]"},
		"downward":     {&core.Pod{Spec: source(core.VolumeSource{DownwardAPI: &core.DownwardAPIVolumeSource{Items: files}})}, "spec.volumes[0]"},
		"sources": {&core.Pod{Spec: source(core.VolumeSource{Projected: &core.ProjectedVolumeSource{
			Sources: slices.Repeat([]core.VolumeProjection{{ServiceAccountToken: &core.ServiceAccountTokenProjection{}}}, MaxPaths/3+1),
		}})}, "spec.volumes[0]"},
		"items of sources": {&core.Pod{Spec: source(core.VolumeSource{Projected: &core.ProjectedVolumeSource{Sources: several}})}, "spec.volumes[0]"},
		"together":         {&core.Pod{Spec: core.PodSpec{Volumes: slices.Repeat([]core.Volume{volume(1000)}, 10)}}, "spec.volumes[9]"},
		"a template":       {&core.PodTemplate{Template: template}, "template.spec.volumes[0]"},
		"a controller":     {&core.ReplicationController{Spec: core.ReplicationControllerSpec{Template: &template}}, "spec.template.spec.volumes[0]"},
		"a replica set":    {&apps.ReplicaSet{Spec: apps.ReplicaSetSpec{Template: template}}, "spec.template.spec.volumes[0]"},
		"a deployment":     {&apps.Deployment{Spec: apps.DeploymentSpec{Template: template}}, "spec.template.spec.volumes[0]"},
		"a daemon set":     {&apps.DaemonSet{Spec: apps.DaemonSetSpec{Template: template}}, "spec.template.spec.volumes[0]"},
		"a set":            {&apps.StatefulSet{Spec: apps.StatefulSetSpec{Template: template}}, "spec.template.spec.volumes[0]"},
		"a job":            {&batch.Job{Spec: batch.JobSpec{Template: template}}, "spec.template.spec.volumes[0]"},
		"a cron job": {
			&batch.CronJob{Spec: batch.CronJobSpec{JobTemplate: batch.JobTemplateSpec{Spec: batch.JobSpec{Template: template}}}},
			"spec.jobTemplate.spec.template.spec.volumes[0]",
		},
		"enough":            {&core.Pod{Spec: core.PodSpec{Volumes: []core.Volume{volume(MaxPaths)}}}, ""},
		"small volumes":     {&core.Pod{Spec: core.PodSpec{Volumes: slices.Repeat([]core.Volume{volume(10)}, 30_000)}}, ""},
		"without template":  {&core.ReplicationController{}, ""},
		"something else":    {&core.ConfigMap{}, ""},
		"volumes as before": {&core.Pod{}, ""},
	} {
		errs := Check(tc.object, nil)
		if tc.field == "" && len(errs) > 0 || tc.field != "" && (len(errs) != 1 || errs[0].Field != tc.field) {
			t.Errorf("%s: %.300v", name, errs)
		}
		if errs := Check(tc.object, tc.object.DeepCopyObject()); len(errs) > 0 {
			t.Errorf("%s: an update that leaves the volumes: %.300v", name, errs)
		}
	}
}

// Upstream tells what an update would change that nobody may change: of 15,000 entries it took a minute to find that.
func TestOfALargePodTheDifferenceIsNotTold(t *testing.T) {
	pod := func(variables int, change func(*core.PodSpec)) *core.Pod {
		p := &core.Pod{}
		p.Spec.Containers, p.Spec.InitContainers = []core.Container{{Name: "c", Image: "x"}}, []core.Container{{Name: "i", Image: "x"}}
		for i := range variables {
			p.Spec.Containers[0].Env = append(p.Spec.Containers[0].Env, core.EnvVar{Name: fmt.Sprint("E", i)})
		}
		change(&p.Spec)
		return p
	}
	nothing := func(*core.PodSpec) {}
	gated := func(s *core.PodSpec) { s.SchedulingGates = []core.PodSchedulingGate{{Name: "g"}} }
	node := &core.Affinity{NodeAffinity: &core.NodeAffinity{}}
	for name, tc := range map[string]struct {
		old, next *core.Pod
		refused   bool
	}{
		"a variable":              {pod(1500, nothing), pod(1500, func(s *core.PodSpec) { s.Containers[0].Env[7].Value = "x" }), true},
		"more variables":          {pod(0, nothing), pod(2500, nothing), true},
		"few":                     {pod(10, nothing), pod(11, nothing), false},
		"nothing":                 {pod(1500, nothing), pod(1500, nothing), false},
		"an image":                {pod(1500, nothing), pod(1500, func(s *core.PodSpec) { s.Containers[0].Image = "y" }), false},
		"another image":           {pod(1500, nothing), pod(1500, func(s *core.PodSpec) { s.InitContainers[0].Image = "y" }), false},
		"a toleration":            {pod(1500, nothing), pod(1500, func(s *core.PodSpec) { s.Tolerations = []core.Toleration{{Key: "a"}} }), false},
		"a deadline":              {pod(1500, nothing), pod(1500, func(s *core.PodSpec) { s.ActiveDeadlineSeconds = new(int64) }), false},
		"a gate":                  {pod(1500, gated), pod(1500, nothing), false},
		"a selector":              {pod(1500, nothing), pod(1500, func(s *core.PodSpec) { s.NodeSelector = map[string]string{"a": "b"} }), true},
		"a gated one's selector":  {pod(1500, gated), pod(1500, func(s *core.PodSpec) { gated(s); s.NodeSelector = map[string]string{"a": "b"} }), false},
		"a gated one's node":      {pod(1500, gated), pod(1500, func(s *core.PodSpec) { gated(s); s.Affinity = node }), false},
		"a gated one's neighbour": {pod(1500, gated), pod(1500, func(s *core.PodSpec) { gated(s); s.Affinity = &core.Affinity{PodAffinity: &core.PodAffinity{}} }), true},
		"a container more":        {pod(1500, nothing), pod(1500, func(s *core.PodSpec) { s.Containers = append(s.Containers, core.Container{}) }), false},
	} {
		errs := Check(tc.next, tc.old)
		const why = "pod updates may not change fields other than `spec.containers[*].image`"
		if tc.refused != (len(errs) > 0) || tc.refused && !strings.Contains(errs[0].Error(), why) {
			t.Errorf("%s: %v", name, errs)
		}
	}
}
