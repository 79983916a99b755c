// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/objects"
	"github.com/wasmplane/wasmplane/core/kubelet/pod"
	"github.com/wasmplane/wasmplane/core/kubelet/podevents"
	"github.com/wasmplane/wasmplane/core/kubelet/probe"
	"github.com/wasmplane/wasmplane/core/kubelet/pull"
	"github.com/wasmplane/wasmplane/core/kubelet/spec"
)

// strayKiller is an optional power of a Host: to end the processes of a container or sandbox
// that the runtime reports as dead. The runtime can be wrong: where a start was cut off,
// because the kubelet that asked for it died, the process may run on.
type strayKiller interface {
	KillStrays(ctx context.Context, p *corev1.Pod, container string) error
}

func (w *worker) killStrays(ctx context.Context, p *corev1.Pod, container string) error {
	if g, ok := w.cfg.Host.(strayKiller); ok && container != "" {
		return g.KillStrays(ctx, p, container)
	}
	return nil
}

func (w *worker) create(ctx context.Context, p *corev1.Pod, a pod.Create) pod.Done {
	c, kind := pod.Find(p, a.Container)
	if c == nil {
		return pod.Done{Err: errors.New("no such container"), Reason: "CreateContainerConfigError", Message: "no such container"}
	}
	if a.Resources != nil {
		own := *c
		own.Resources.Requests, own.Resources.Limits = a.Resources.Requests, a.Resources.Limits
		c = &own
	}
	ctx, span := w.Span(ctx, "container.create", p, attribute.String("k8s.container.name", c.Name))
	fail := func(reason string, err error) pod.Done {
		podevents.End(span, err)
		if ctx.Err() == nil {
			w.Event(p, c.Name, corev1.EventTypeWarning, "Failed", "Error: "+plain(err))
		}
		return pod.Done{Err: err, Reason: reason, Message: plain(err)}
	}
	var cfg *cri.ContainerConfig
	err := objects.RetryForbidden(ctx, func() (err error) {
		cfg, err = w.containerConfig(ctx, p, c, kind, a)
		return err
	})
	if f, ok := errors.AsType[*pull.Failure](err); ok { // of a volume that is an image
		return fail(f.Reason, err)
	}
	if err != nil {
		return fail("CreateContainerConfigError", err)
	}
	sandbox, err := spec.Sandbox(p, 0, w.at(), w.cluster())
	if err != nil {
		return fail("CreateContainerConfigError", err)
	}
	if err := w.killStrays(ctx, p, a.Former); err != nil {
		return fail("CreateContainerError", err)
	}
	id, err := w.cfg.Engine.CreateContainer(ctx, a.Sandbox, cfg, sandbox)
	if err != nil {
		return fail("CreateContainerError", err)
	}
	st, err := w.cfg.Engine.ContainerStatus(ctx, id)
	if err != nil {
		return fail("CreateContainerError", err)
	}
	w.Event(p, c.Name, corev1.EventTypeNormal, "Created", "Container created")
	podevents.End(span, nil)
	got := w.container(ctx, p, st, a.Sandbox)
	return pod.Done{Container: &got}
}

// containerConfig gathers what a container's configuration is made of.
func (w *worker) containerConfig(ctx context.Context, p *corev1.Pod, c *corev1.Container, kind pod.Kind,
	a pod.Create,
) (*cri.ContainerConfig, error) {
	k, cl := w.parts, w.cluster()
	w.mu.Lock()
	ips := w.ips
	w.mu.Unlock()
	if pod.HostNetwork(p) {
		ips = cl.HostIPs
	}
	target, err := w.target(p, c.Name)
	if err != nil {
		return nil, err
	}
	services, err := k.feeds.ServicesFor(p.Namespace)
	if err != nil {
		return nil, err
	}
	node, err := k.nodeFor(p)
	if err != nil {
		return nil, fmt.Errorf("look at the node: %w", err)
	}
	env, err := spec.Env(ctx, spec.EnvRequest{
		Pod: p, Container: c, Objects: k.cfg.Objects, Services: services, PodIPs: ips, Cluster: cl,
		Allocatable: node.Status.Allocatable,
		File:        func(volume, path string) ([]byte, error) { return k.cfg.Volumes.File(p.UID, volume, path) },
	})
	if err != nil {
		return nil, err
	}
	mounts, err := k.cfg.Volumes.Mounts(ctx, p, c, spec.EnvMap(env))
	if err != nil {
		return nil, err
	}
	devices, err := k.cfg.Volumes.Devices(p, c)
	if err != nil {
		return nil, err
	}
	wanted, err := w.imageRequest(ctx, p, c)
	if err == nil {
		err = w.images.Volumes(ctx, wanted, mounts)
	}
	if err != nil {
		return nil, err
	}
	hostname, domain, err := spec.Hostname(p, cl)
	if err != nil {
		return nil, err
	}
	files, err := k.cfg.Host.Files(ctx, spec.FilesRequest{
		Pod: p, Container: c, RestartCount: a.RestartCount, Hostname: hostname,
		Domain: domain, IPs: ips,
	})
	if err != nil {
		return nil, err
	}
	image, config, err := k.images.Inspect(ctx, a.Image)
	if err != nil {
		return nil, fmt.Errorf("inspect image %q: %w", c.Image, err)
	}
	memory := node.Status.Capacity[corev1.ResourceMemory]
	made, err := spec.Container(spec.ContainerRequest{
		Pod: p, Container: c, Kind: kind, RestartCount: a.RestartCount, Image: image, ImageRef: a.Image, ImageConfig: config,
		Handler: wanted.Handler,
		Env:     env, Mounts: append(mounts, files...), Devices: devices, Place: w.at(), NodeMemory: memory.Value(),
		Target: target, SeccompRoot: k.cfg.SeccompRoot,
	})
	if err != nil {
		return nil, err
	}
	return made, k.cfg.Devices.Equip(ctx, p.UID, c.Name, made)
}

// target is the ID of the container that an ephemeral one looks into; "" = it looks into none. One whose target does not
// run is tried again later: with processes of its own it would show nothing of what it was added for.
func (w *worker) target(p *corev1.Pod, name string) (string, error) {
	for i := range p.Spec.EphemeralContainers {
		if e := &p.Spec.EphemeralContainers[i]; e.Name == name && e.TargetContainerName != "" {
			id := w.exits.Running(e.TargetContainerName)
			if id == "" {
				return "", fmt.Errorf("target container %q is not running", e.TargetContainerName)
			}
			return id, nil
		}
	}
	return "", nil
}

func (w *worker) start(ctx context.Context, p *corev1.Pod, a pod.Start) pod.Done {
	ctx, span := w.Span(ctx, "container.start", p, attribute.String("k8s.container.name", a.Container))
	err := w.cfg.Engine.StartContainer(ctx, a.ID)
	podevents.End(span, err)
	got := w.lookAt(ctx, p, a.ID)
	if err != nil {
		if ctx.Err() == nil {
			w.Event(p, a.Container, corev1.EventTypeWarning, "Failed", "Error: "+plain(err))
		}
		return pod.Done{Err: err, Reason: "RunContainerError", Message: plain(err), Container: got}
	}
	w.Event(p, a.Container, corev1.EventTypeNormal, "Started", "Container started")
	if got != nil && got.LogPath != "" {
		w.cfg.Host.Started(p, a.Container, a.ID, got.LogPath)
	}
	return pod.Done{Container: got}
}

// lookAt is a container as the runtime has it now; nil if it has it no more.
func (w *worker) lookAt(ctx context.Context, p *corev1.Pod, id string) *pod.Container {
	st, err := w.cfg.Engine.ContainerStatus(ctx, id)
	if err != nil {
		return nil
	}
	// Its status does not say in which sandbox it is; the machine knows.
	c := w.container(ctx, p, st, "")
	return &c
}

func (w *worker) podIP() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if pod.HostNetwork(w.pod) {
		if ips := w.node.IPs(); len(ips) > 0 {
			return ips[0]
		}
	}
	if len(w.ips) > 0 {
		return w.ips[0]
	}
	return ""
}

func (w *worker) postStart(ctx context.Context, p *corev1.Pod, a pod.PostStart) pod.Done {
	c, _ := pod.Find(p, a.Container)
	if c == nil || c.Lifecycle == nil || c.Lifecycle.PostStart == nil {
		return pod.Done{}
	}
	ctx, span := w.Span(ctx, "container.poststart", p, attribute.String("k8s.container.name", a.Container))
	err := w.cfg.Handler.Hook(ctx, probe.Hook{Pod: p, Container: c, ID: a.ID, PodIP: w.podIP(), Handler: c.Lifecycle.PostStart})
	podevents.End(span, err)
	if err == nil {
		return pod.Done{}
	}
	if ctx.Err() == nil {
		// Not what it said: that may be a secret.
		w.Event(p, c.Name, corev1.EventTypeWarning, "FailedPostStartHook", "PostStartHook failed")
	}
	return pod.Done{Err: err, Reason: "PostStartHookError", Message: err.Error()}
}

func (w *worker) kill(ctx context.Context, p *corev1.Pod, a pod.Kill) pod.Done {
	ctx, span := w.Span(ctx, "container.stop", p, attribute.String("k8s.container.name", a.Container))
	c, _ := pod.Find(p, a.Container)
	if !a.NoHook {
		w.Event(p, a.Container, corev1.EventTypeNormal, "Killing", a.Message)
	}
	grace := a.Grace
	if c != nil && c.Lifecycle != nil && c.Lifecycle.PreStop != nil && !a.NoHook && grace > 0 {
		grace = max(grace-w.preStop(ctx, p, c, a.ID, grace), min(minimumGrace, a.Grace))
	}
	err := w.cfg.Engine.StopContainer(ctx, a.ID, grace)
	if gone(err) {
		err = nil
	}
	podevents.End(span, err)
	if err != nil && ctx.Err() == nil {
		w.log.WarnContext(ctx, "a container cannot be stopped; trying again", "kind", "Pod", "namespace", p.Namespace, "name", p.Name,
			"container", a.Container, "error", err)
	}
	return pod.Done{Err: err, Container: w.lookAt(ctx, p, a.ID)}
}

// minimumGrace in seconds is what a container gets whose hook used its time up.
const minimumGrace = 2

// stopHook runs a container's hook some time before the container is killed.
func (w *worker) stopHook(ctx context.Context, p *corev1.Pod, a pod.PreStop) pod.Done {
	w.Event(p, a.Container, corev1.EventTypeNormal, "Killing", a.Message)
	if c, _ := pod.Find(p, a.Container); c != nil && c.Lifecycle != nil && c.Lifecycle.PreStop != nil {
		w.preStop(ctx, p, c, a.ID, a.Grace)
	}
	return pod.Done{}
}

// preStop runs a container's hook, for grace seconds at most, and answers the seconds that it took.
func (w *worker) preStop(ctx context.Context, p *corev1.Pod, c *corev1.Container, id string, grace int64) int64 {
	began := time.Now()
	hctx, cancel := context.WithTimeout(ctx, time.Duration(grace)*time.Second)
	defer cancel()
	err := w.cfg.Handler.Hook(hctx, probe.Hook{Pod: p, Container: c, ID: id, PodIP: w.podIP(), Handler: c.Lifecycle.PreStop})
	if err != nil && ctx.Err() == nil {
		w.log.InfoContext(ctx, "a preStop hook failed", "kind", "Pod", "namespace", p.Namespace, "name", p.Name, "container", c.Name,
			"error", err)
		w.Event(p, c.Name, corev1.EventTypeWarning, "FailedPreStopHook", "PreStopHook failed")
	}
	return int64(time.Since(began) / time.Second)
}
