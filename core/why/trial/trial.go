// SPDX-License-Identifier: Apache-2.0

// Package trial has the scheduler decide about a pod on a cluster as it was read, and on copies of it
// that differ in one thing: why no node takes the pod, what preemption considered, and which change would
// let it in. Nothing is changed by that, and nobody is asked.
package trial

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/wasmplane/wasmplane/core/scheduler"
	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/core/scheduler/native"
	"github.com/wasmplane/wasmplane/core/scheduler/nodecache"
	"github.com/wasmplane/wasmplane/core/why/facts"
)

// Refusal is a filter's reason with the nodes that it holds for.
type Refusal struct {
	Plugin string   `json:"plugin,omitempty"`
	Reason string   `json:"reason"`
	Nodes  []string `json:"nodes"`
}

// Change would let the object go on.
type Change struct {
	What    string `json:"what"`
	Command string `json:"command"`
	// Tried: the scheduler placed the pod on a copy of the cluster with this change.
	Tried bool `json:"tried"`
}

// Trial has the scheduler decide about a pod on copies of the cluster.
type Trial struct {
	*facts.Cluster
	ctx        context.Context //nolint:containedctx // a trial lives for one answer
	profile    string
	plain      *scheduler.Trial
	preemption bool             // the profile has it
	with       *scheduler.Trial // preemption, which keeps what it considered
	kept       *considered
	snap       *framework.Snapshot
}

// ErrNoProfile is the error where the scheduler leaves the pod to another one.
var ErrNoProfile = errors.New("no profile of the scheduler has the pod's spec.schedulerName")

// profileOf is the profile by which a pod is scheduled.
func profileOf(c *facts.Cluster, p *corev1.Pod, inf informers.SharedInformerFactory) (scheduler.Profile, error) {
	if c.Profiles == nil {
		return scheduler.Profile{Name: "why", Plugins: native.Default(native.Config{Informers: inf})}, nil
	}
	all, err := c.Profiles(inf)
	if err != nil {
		return scheduler.Profile{}, err
	}
	for _, one := range all {
		if one.Name == p.Spec.SchedulerName {
			return one, nil
		}
	}
	return scheduler.Profile{}, ErrNoProfile
}

// New makes the trials of a pod.
func New(ctx context.Context, c *facts.Cluster, p *corev1.Pod) (*Trial, error) {
	inf := informers.NewSharedInformerFactory(nil, 0) // never started: it holds what is put into it
	core, apps, storage, devices := inf.Core().V1(), inf.Apps().V1(), inf.Storage().V1(), inf.Resource().V1()
	for _, fill := range []func() error{
		func() error { return put(core.Nodes().Informer(), c.Nodes) },
		func() error { return put(core.Namespaces().Informer(), c.Namespaces) },
		func() error { return put(core.PersistentVolumeClaims().Informer(), c.Claims) },
		func() error { return put(core.PersistentVolumes().Informer(), c.Volumes) },
		func() error { return put(core.Services().Informer(), c.Services) },
		func() error { return put(core.ReplicationControllers().Informer(), c.Controllers) },
		func() error { return put(apps.ReplicaSets().Informer(), c.ReplicaSets) },
		func() error { return put(apps.StatefulSets().Informer(), c.StatefulSets) },
		func() error { return put(storage.StorageClasses().Informer(), c.Classes) },
		func() error { return put(storage.CSIDrivers().Informer(), c.Drivers) },
		func() error { return put(storage.CSINodes().Informer(), c.DriverNodes) },
		func() error { return put(storage.CSIStorageCapacities().Informer(), c.Room) },
		func() error { return put(devices.ResourceClaims().Informer(), c.DeviceClaims) },
		func() error { return put(devices.DeviceClasses().Informer(), c.DeviceClasses) },
		func() error { return put(devices.ResourceSlices().Informer(), c.DeviceSlices) },
		func() error { return put(devices.DeviceTaintRules().Informer(), c.DeviceTaints) },
		func() error { return put(inf.Policy().V1().PodDisruptionBudgets().Informer(), c.Budgets) },
	} {
		if err := fill(); err != nil {
			return nil, err
		}
	}
	profile, err := profileOf(c, p, inf)
	if err != nil {
		return nil, err
	}
	t := &Trial{Cluster: c, ctx: ctx, profile: profile.Name, kept: &considered{}}
	if t.plain, err = scheduler.NewTrial(withoutPreemption(profile)); err != nil {
		return nil, err
	}
	watched, ok := withPreemption(profile, t.kept)
	if t.preemption = ok; ok {
		t.with, err = scheduler.NewTrial(watched)
	} else {
		t.with = t.plain
	}
	if err != nil {
		return nil, err
	}
	picture := nodecache.New()
	for _, n := range c.Nodes {
		picture.SetNode(n)
	}
	for _, p := range c.Pods {
		if p.Spec.NodeName != "" && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			picture.SetPod(p)
		}
	}
	t.snap = picture.Snapshot()
	return t, nil
}

func put[T runtime.Object](inf cache.SharedIndexInformer, all []T) error {
	for _, o := range all {
		if err := inf.GetIndexer().Add(o); err != nil {
			return fmt.Errorf("hold %T: %w", o, err)
		}
	}
	return nil
}

func (t *Trial) decide(p *corev1.Pod, snap *framework.Snapshot) *scheduler.Decision {
	return t.plain.Decide(t.ctx, framework.NewPodInfo(p), snap, 1)
}

// Gate is the refusal of a plugin that does not let the pod be tried at all; nil = none does.
func (t *Trial) Gate(p *corev1.Pod) *framework.Status {
	return t.plain.Gate(t.ctx, framework.NewPodInfo(p))
}

// Decide about the pod on the cluster as it is, and keep what preemption considered.
func (t *Trial) Decide(p *corev1.Pod) *scheduler.Decision {
	*t.kept = considered{}
	return t.with.Decide(t.ctx, framework.NewPodInfo(p), t.snap, 1)
}

// fits says whether the pod has a node in an altered cluster.
func (t *Trial) fits(p *corev1.Pod, snap *framework.Snapshot) bool {
	return t.ctx.Err() == nil && t.decide(p, snap).Node != "" // a decision is stopped, but not its beginning
}

// Refusals groups the nodes by reason, the reason of most nodes first.
func (t *Trial) Refusals(d *scheduler.Decision) []Refusal {
	if d.Whole != nil {
		var all []string
		for _, n := range t.snap.Nodes {
			all = append(all, n.Node.Name)
		}
		return []Refusal{{Plugin: d.Whole.Plugin, Reason: strings.Join(d.Whole.Reasons, ", "), Nodes: all}}
	}
	by := map[[2]string][]string{}
	for name, st := range d.Statuses {
		key := [2]string{st.Plugin, strings.Join(st.Reasons, ", ")}
		by[key] = append(by[key], name)
	}
	var out []Refusal
	for key, nodes := range by {
		slices.Sort(nodes)
		out = append(out, Refusal{key[0], key[1], nodes})
	}
	slices.SortFunc(out, func(a, b Refusal) int {
		return cmp.Or(len(b.Nodes)-len(a.Nodes), strings.Compare(a.Reason, b.Reason), strings.Compare(a.Plugin, b.Plugin))
	})
	return out
}
