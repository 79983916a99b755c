// SPDX-License-Identifier: Apache-2.0

// Package leftover knows what the runtime and the machine hold of a node's pods, and removes
// what is left of pods that nobody knows any more.
package leftover

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/engine"
	"github.com/wasmplane/wasmplane/core/kubelet/fromcri"
	"github.com/wasmplane/wasmplane/core/kubelet/pod"
	"github.com/wasmplane/wasmplane/core/kubelet/static"
	"github.com/wasmplane/wasmplane/core/run"
)

// Machine has the directories and cgroups of pods.
type Machine interface {
	// Release removes a pod's cgroup, once nothing runs in it; idempotent.
	Release(ctx context.Context, uid types.UID) error
	// Erase removes a pod's directories and logs; idempotent.
	Erase(ctx context.Context, uid types.UID) error
	// Claimed are the pods that still occupy something.
	Claimed(ctx context.Context) ([]types.UID, error)
}

// Finder of what pods left. All fields are required.
type Finder struct {
	Engine  engine.Engine
	Machine Machine
	// Unmount takes a pod's volumes down; idempotent.
	Unmount func(context.Context, types.UID) error
	// Container takes what the runtime says of a container of a pod.
	Container func(ctx context.Context, p *corev1.Pod, st *cri.ContainerStatus, sandbox string) pod.Container
	// Pod as it is known; nil if it is not.
	Pod    func(types.UID) *corev1.Pod
	Tasks  *run.Tasks
	Logger *slog.Logger
}

// Snapshots of all pods in the runtime.
func (f *Finder) Snapshots(ctx context.Context) (map[types.UID]pod.Snapshot, error) {
	sandboxes, err := f.Engine.ListSandboxes(ctx)
	if err != nil {
		return nil, fmt.Errorf("list sandboxes: %w", err)
	}
	containers, err := f.Engine.ListContainers(ctx)
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	out := map[types.UID]pod.Snapshot{}
	for _, sb := range sandboxes {
		uid := fromcri.UID(sb.Labels)
		if uid == "" {
			continue // not a pod's
		}
		st, err := f.Engine.SandboxStatus(ctx, sb.Id)
		if err != nil {
			continue // gone meanwhile
		}
		s := out[uid]
		s.Sandboxes = append(s.Sandboxes, fromcri.Sandbox(st))
		s.Static = st.Annotations[static.SourceAnnotation] == static.FileSource
		out[uid] = s
	}
	for _, c := range containers {
		uid := fromcri.UID(c.Labels)
		if uid == "" {
			continue
		}
		st, err := f.Engine.ContainerStatus(ctx, c.Id)
		if err != nil {
			continue
		}
		s := out[uid]
		s.Containers = append(s.Containers, f.Container(ctx, f.podOf(uid, c.Labels), st, c.PodSandboxId))
		out[uid] = s
	}
	return out, nil
}

// podOf is the pod as it is known, or what a container's labels say of it.
func (f *Finder) podOf(uid types.UID, labels map[string]string) *corev1.Pod {
	if p := f.Pod(uid); p != nil {
		return p
	}
	p := &corev1.Pod{}
	p.UID, p.Name, p.Namespace = uid, labels[pod.NameLabel], labels[pod.NamespaceLabel]
	return p
}

// Reap removes what there is of pods that are not known, beside the caller.
func (f *Finder) Reap(ctx context.Context, known func(types.UID) bool) {
	found, err := f.Snapshots(ctx)
	if err != nil {
		f.Logger.WarnContext(ctx, "orphaned pods cannot be looked for", "error", err)
		return
	}
	for uid, snap := range found {
		if !known(uid) {
			f.Logger.InfoContext(ctx, "removing a pod that neither the API nor a file knows", "uid", uid)
			f.Tasks.Go("kubelet: removal of an orphan", func() { f.Remove(ctx, uid, snap) })
		}
	}
	left, err := f.Machine.Claimed(ctx)
	if err != nil {
		f.Logger.WarnContext(ctx, "leftovers of pods cannot be looked for", "error", err)
	}
	for _, uid := range left {
		if _, runs := found[uid]; !runs && !known(uid) {
			f.Tasks.Go("kubelet: removal of leftovers", func() { f.sweep(ctx, uid) })
		}
	}
}

// Remove ends what runs of a pod, and removes it.
func (f *Finder) Remove(ctx context.Context, uid types.UID, snap pod.Snapshot) {
	const grace = 1
	var wg sync.WaitGroup
	for _, c := range snap.Containers {
		if c.State == pod.Running {
			wg.Go(func() {
				if err := f.Engine.StopContainer(ctx, c.ID, grace); err != nil && ctx.Err() == nil {
					f.Logger.WarnContext(ctx, "a container of an orphaned pod cannot be stopped", "uid", uid, "container", c.ID, "error", err)
				}
			})
		}
	}
	wg.Wait()
	for _, sb := range snap.Sandboxes {
		err := f.Engine.StopSandbox(ctx, sb.ID)
		if err == nil {
			err = f.Engine.RemoveSandbox(ctx, sb.ID)
		}
		if err != nil {
			f.Logger.WarnContext(ctx, "an orphaned sandbox cannot be removed; the next resync tries again", "uid", uid, "sandbox", sb.ID,
				"error", err)
			return
		}
	}
	if len(snap.Sandboxes) == 0 {
		for _, c := range snap.Containers {
			if err := f.Engine.RemoveContainer(ctx, c.ID); err != nil {
				f.Logger.WarnContext(ctx, "an orphaned container cannot be removed; the next resync tries again", "uid", uid, "container", c.ID,
					"error", err)
			}
		}
	}
	f.sweep(ctx, uid)
}

// sweep removes what a pod left on the machine.
func (f *Finder) sweep(ctx context.Context, uid types.UID) {
	err := f.Unmount(ctx, uid)
	if err == nil {
		err = f.Machine.Release(ctx, uid)
	}
	if err == nil {
		err = f.Machine.Erase(ctx, uid)
	}
	if err != nil && ctx.Err() == nil {
		f.Logger.WarnContext(ctx, "leftovers of a pod cannot be removed; the next resync tries again", "uid", uid, "error", err)
	}
}
