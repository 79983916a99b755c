package kubelet

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/wasmplane/wasmplane/core/kubelet/pod"
	"github.com/wasmplane/wasmplane/core/kubelet/probe"
	"github.com/wasmplane/wasmplane/core/kubelet/pull"
	"github.com/wasmplane/wasmplane/core/kubelet/spec"
	"github.com/wasmplane/wasmplane/core/run"
)

// perform does what a machine asked for and says how it ended.
func (w *worker) perform(ctx context.Context, p *corev1.Pod, a pod.Action) pod.Done {
	switch a := a.(type) {
	case pod.Admit:
		return w.admit(ctx, p)
	case pod.Mount:
		return w.mount(ctx, p)
	case pod.StartSandbox:
		return w.startSandbox(ctx, p, a)
	case pod.StopSandbox:
		return w.simply(ctx, "sandbox.stop", p, func(ctx context.Context) error { return w.k.cfg.Engine.StopSandbox(ctx, a.ID) })
	case pod.RemoveSandbox:
		return w.simply(ctx, "sandbox.remove", p, func(ctx context.Context) error { return w.k.cfg.Engine.RemoveSandbox(ctx, a.ID) })
	case pod.Pull:
		return w.pull(ctx, p, a)
	case pod.Create:
		return w.create(ctx, p, a)
	case pod.Start:
		return w.start(ctx, p, a)
	case pod.PostStart:
		return w.postStart(ctx, p, a)
	case pod.Kill:
		return w.kill(ctx, p, a)
	case pod.RemoveContainer:
		return w.simply(ctx, "container.remove", p, func(ctx context.Context) error { return w.k.cfg.Engine.RemoveContainer(ctx, a.ID) })
	case pod.Grant:
		return w.grant(p)
	case pod.Resize:
		return w.resize(ctx, p, a)
	case pod.Teardown:
		return w.simply(ctx, "teardown", p, w.teardown)
	case pod.Delete:
		return w.simply(ctx, "delete", p, func(ctx context.Context) error { return w.k.writer.Delete(ctx, p) })
	case pod.Cleanup:
		return w.simply(ctx, "cleanup", p, func(ctx context.Context) error { return w.k.cfg.Host.Erase(ctx, w.uid) })
	}
	return pod.Done{}
}

// simply does what has no other outcome than that it is done or not.
func (w *worker) simply(ctx context.Context, name string, p *corev1.Pod, do func(context.Context) error) pod.Done {
	ctx, span := w.k.span(ctx, name, p)
	err := do(ctx)
	end(span, err)
	if err != nil && ctx.Err() == nil {
		w.k.log.Warn("A step in a pod's end failed; trying again", "step", name, "namespace", p.Namespace, "pod", p.Name, "error", err)
	}
	return pod.Done{Err: err}
}

func end(span oteltrace.Span, err error) {
	if err != nil {
		span.RecordError(err)
		span.SetStatus(otelcodes.Error, err.Error())
	}
	span.End()
}

// plain is a runtime's message without gRPC's frame around it.
func plain(err error) string {
	if s, ok := grpcstatus.FromError(err); ok {
		return s.Message()
	}
	return err.Error()
}

func gone(err error) bool { return grpcstatus.Code(err) == codes.NotFound }

func (w *worker) admit(ctx context.Context, p *corev1.Pod) pod.Done {
	v, err := w.k.admit(ctx, p)
	if err != nil {
		w.k.log.Warn("A pod can neither be admitted nor refused; trying again", "namespace", p.Namespace, "pod", p.Name, "error", err)
		return pod.Done{Err: err}
	}
	if v.refused {
		w.k.tell(p, "", corev1.EventTypeWarning, v.reason, v.message)
		// Upstream's status says whose word it is.
		return pod.Done{Refused: true, Reason: v.reason, Message: "Pod was rejected: " + v.message}
	}
	return pod.Done{}
}

func (w *worker) mount(ctx context.Context, p *corev1.Pod) pod.Done {
	ctx, span := w.k.span(ctx, "volumes", p, attribute.Int("wasmplane.volumes", len(p.Spec.Volumes)))
	w.k.cfg.Objects.Follow(p)
	place, err := w.k.cfg.Host.Claim(ctx, p)
	switch {
	case err != nil:
		w.k.tell(p, "", corev1.EventTypeWarning, "FailedCreatePodContainer", fmt.Sprintf("unable to ensure pod container exists: %v", err))
	default:
		w.mu.Lock()
		w.place = place
		w.mu.Unlock()
		err = patiently(ctx, func() error { return w.k.cfg.Volumes.Mount(ctx, p) })
		if err != nil && ctx.Err() == nil {
			w.k.tell(p, "", corev1.EventTypeWarning, "FailedMount", err.Error())
		}
	}
	end(span, err)
	return pod.Done{Err: err}
}

// patiently tries again for a moment when the API forbids: a node may read what
// its pods refer to, and the API's authorizer may learn of a pod a little later
// than the node does.
func patiently(ctx context.Context, try func() error) error {
	const attempts = 9 // some 1.3 s
	retry := run.Backoff{First: 5 * time.Millisecond, Longest: time.Second}
	for n := 1; ; n++ {
		err := try()
		if !apierrors.IsForbidden(err) || n == attempts || !retry.Wait(ctx) {
			return err
		}
	}
}

func (k *Kubelet) cluster() spec.Cluster {
	return spec.Cluster{DNS: k.cfg.ClusterDNS, Domain: k.cfg.ClusterDomain, HostResolv: k.cfg.HostResolv, NodeName: k.cfg.NodeName, HostIPs: k.node.IPs()}
}

func (w *worker) at() spec.Place {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.place
}

func (w *worker) startSandbox(ctx context.Context, p *corev1.Pod, a pod.StartSandbox) pod.Done {
	ctx, span := w.k.span(ctx, "sandbox", p)
	sb, err := w.runSandbox(ctx, p, a.Attempt)
	end(span, err)
	if err != nil && ctx.Err() == nil {
		w.k.tell(p, "", corev1.EventTypeWarning, "FailedCreatePodSandBox", "Failed to create pod sandbox: "+plain(err))
		w.lookAgain(ctx)
	}
	return pod.Done{Err: err, Sandbox: sb}
}

func (w *worker) runSandbox(ctx context.Context, p *corev1.Pod, attempt uint32) (*pod.Sandbox, error) {
	cfg, err := spec.Sandbox(p, attempt, w.at(), w.k.cluster())
	if err != nil {
		return nil, err
	}
	handler, err := w.k.runtimeHandler(ctx, p)
	if err != nil {
		return nil, err
	}
	id, err := w.k.cfg.Engine.RunSandbox(ctx, cfg, handler)
	if err != nil {
		return nil, err
	}
	st, err := w.k.cfg.Engine.SandboxStatus(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("ask for the sandbox that was made: %w", err)
	}
	sb := sandboxOf(st)
	return &sb, nil
}

// lookAgain takes in what a failed attempt may have left behind: a sandbox that
// failed can still hold its network.
func (w *worker) lookAgain(ctx context.Context) {
	list, err := w.k.cfg.Engine.ListSandboxes(ctx)
	if err != nil {
		return
	}
	var snap pod.Snapshot
	for _, sb := range list {
		if uidOf(sb.Labels) != w.uid {
			continue
		}
		if st, err := w.k.cfg.Engine.SandboxStatus(ctx, sb.Id); err == nil {
			snap.Sandboxes = append(snap.Sandboxes, sandboxOf(st))
		}
	}
	w.send(pod.Observed{Snapshot: snap})
}

func (k *Kubelet) runtimeHandler(ctx context.Context, p *corev1.Pod) (string, error) {
	name := p.Spec.RuntimeClassName
	if name == nil || *name == "" {
		return "", nil
	}
	rc, err := k.runtimeClass(ctx, *name)
	if apierrors.IsNotFound(err) {
		return "", fmt.Errorf("RuntimeClass %q not found", *name)
	}
	if err != nil {
		return "", fmt.Errorf("failed to find runtimeClass %q: %w", *name, err)
	}
	return rc.Handler, nil
}

func container(p *corev1.Pod, name string) (*corev1.Container, pod.Kind) {
	for i := range p.Spec.InitContainers {
		if c := &p.Spec.InitContainers[i]; c.Name == name {
			if pod.IsSidecar(c) {
				return c, pod.Sidecar
			}
			return c, pod.Init
		}
	}
	for i := range p.Spec.Containers {
		if c := &p.Spec.Containers[i]; c.Name == name {
			return c, pod.Regular
		}
	}
	for i := range p.Spec.EphemeralContainers {
		if p.Spec.EphemeralContainers[i].Name == name {
			c := corev1.Container(p.Spec.EphemeralContainers[i].EphemeralContainerCommon)
			return &c, pod.Ephemeral
		}
	}
	return nil, 0
}

func (w *worker) pull(ctx context.Context, p *corev1.Pod, a pod.Pull) pod.Done {
	c, _ := container(p, a.Container)
	if c == nil {
		return pod.Done{Err: errors.New("no such container")}
	}
	ctx, span := w.k.span(ctx, "image", p, attribute.String("k8s.container.name", c.Name), attribute.String("container.image.name", c.Image))
	ref, err := w.ensure(ctx, p, c.Name, c.Image, c.ImagePullPolicy)
	end(span, err)
	if err == nil {
		return pod.Done{Image: ref}
	}
	var f *pull.Failure
	if !errors.As(err, &f) {
		f = &pull.Failure{Reason: pull.ErrImagePull, Message: err.Error()}
	}
	if ctx.Err() == nil {
		w.k.tell(p, c.Name, corev1.EventTypeWarning, "Failed", "Error: "+f.Reason)
	}
	return pod.Done{Err: err, Reason: f.Reason, Message: f.Message}
}

// ensure makes an image present for one of the pod's containers.
func (w *worker) ensure(ctx context.Context, p *corev1.Pod, containerName, image string, policy corev1.PullPolicy) (string, error) {
	sandbox, err := spec.Sandbox(p, 0, w.at(), w.k.cluster())
	if err != nil {
		return "", err
	}
	handler, err := w.k.runtimeHandler(ctx, p)
	if err != nil {
		return "", err
	}
	return w.k.puller.Ensure(ctx, pull.Request{
		Image: image, Policy: policy, Annotations: p.Annotations, Sandbox: sandbox, Handler: handler,
		Credentials: func(ctx context.Context) *pull.Keyring { return w.k.keyring(ctx, p) },
		Tell:        func(kind, reason, msg string) { w.k.tell(p, containerName, kind, reason, msg) },
	})
}

// keyring holds the credentials that a pod names.
func (k *Kubelet) keyring(ctx context.Context, p *corev1.Pod) *pull.Keyring {
	ring := &pull.Keyring{}
	var missing []string
	for _, ref := range p.Spec.ImagePullSecrets {
		if ref.Name == "" {
			continue
		}
		s, err := k.cfg.Objects.Secret(ctx, p.Namespace, ref.Name)
		if err == nil {
			err = ring.AddSecret(s)
		}
		if err != nil {
			k.log.Warn("An image pull secret cannot be used", "namespace", p.Namespace, "pod", p.Name, "secret", ref.Name, "error", err)
			missing = append(missing, ref.Name)
		}
	}
	if len(missing) > 0 {
		k.tell(p, "", corev1.EventTypeWarning, "FailedToRetrieveImagePullSecret",
			fmt.Sprintf("Unable to retrieve some image pull secrets (%s); attempting to pull the image may not succeed.", strings.Join(missing, ", ")))
	}
	return ring
}

// strays is an optional power of a Host: to end the processes of a container
// that the runtime holds for dead. It can be wrong: one whose start was cut off,
// by the death of who asked for it, may run on.
type strays interface {
	KillStrays(ctx context.Context, p *corev1.Pod, container string) error
}

func (w *worker) create(ctx context.Context, p *corev1.Pod, a pod.Create) pod.Done {
	c, kind := container(p, a.Container)
	if c == nil {
		return pod.Done{Err: errors.New("no such container"), Reason: "CreateContainerConfigError", Message: "no such container"}
	}
	if a.Resources != nil {
		own := *c
		own.Resources.Requests, own.Resources.Limits = a.Resources.Requests, a.Resources.Limits
		c = &own
	}
	ctx, span := w.k.span(ctx, "container.create", p, attribute.String("k8s.container.name", c.Name))
	fail := func(reason string, err error) pod.Done {
		end(span, err)
		if ctx.Err() == nil {
			w.k.tell(p, c.Name, corev1.EventTypeWarning, "Failed", "Error: "+plain(err))
		}
		return pod.Done{Err: err, Reason: reason, Message: plain(err)}
	}
	var cfg *cri.ContainerConfig
	err := patiently(ctx, func() (err error) {
		cfg, err = w.containerConfig(ctx, p, c, kind, a)
		return err
	})
	if err != nil {
		return fail("CreateContainerConfigError", err)
	}
	sandbox, err := spec.Sandbox(p, 0, w.at(), w.k.cluster())
	if err != nil {
		return fail("CreateContainerConfigError", err)
	}
	if g, ok := w.k.cfg.Host.(strays); ok && a.Former != "" {
		if err := g.KillStrays(ctx, p, a.Former); err != nil {
			return fail("CreateContainerError", err)
		}
	}
	id, err := w.k.cfg.Engine.CreateContainer(ctx, a.Sandbox, cfg, sandbox)
	if err != nil {
		return fail("CreateContainerError", err)
	}
	st, err := w.k.cfg.Engine.ContainerStatus(ctx, id)
	if err != nil {
		return fail("CreateContainerError", err)
	}
	w.k.tell(p, c.Name, corev1.EventTypeNormal, "Created", "Container created")
	end(span, nil)
	got := w.k.container(ctx, p, st, a.Sandbox)
	return pod.Done{Container: &got}
}

func (w *worker) start(ctx context.Context, p *corev1.Pod, a pod.Start) pod.Done {
	ctx, span := w.k.span(ctx, "container.start", p, attribute.String("k8s.container.name", a.Container))
	err := w.k.cfg.Engine.StartContainer(ctx, a.ID)
	end(span, err)
	got := w.lookAt(ctx, p, a.ID)
	if err != nil {
		if ctx.Err() == nil {
			w.k.tell(p, a.Container, corev1.EventTypeWarning, "Failed", "Error: "+plain(err))
		}
		return pod.Done{Err: err, Reason: "RunContainerError", Message: plain(err), Container: got}
	}
	w.k.tell(p, a.Container, corev1.EventTypeNormal, "Started", "Container started")
	if got != nil && got.LogPath != "" {
		w.k.cfg.Host.Started(p, a.Container, a.ID, got.LogPath)
	}
	return pod.Done{Container: got}
}

// lookAt is a container as the runtime has it now; nil if it has it no more.
func (w *worker) lookAt(ctx context.Context, p *corev1.Pod, id string) *pod.Container {
	st, err := w.k.cfg.Engine.ContainerStatus(ctx, id)
	if err != nil {
		return nil
	}
	// Its status does not say in which sandbox it is; the machine knows.
	c := w.k.container(ctx, p, st, "")
	return &c
}

func (w *worker) podIP() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if pod.HostNetwork(w.pod) {
		if ips := w.k.node.IPs(); len(ips) > 0 {
			return ips[0]
		}
	}
	if len(w.ips) > 0 {
		return w.ips[0]
	}
	return ""
}

func (w *worker) postStart(ctx context.Context, p *corev1.Pod, a pod.PostStart) pod.Done {
	c, _ := container(p, a.Container)
	if c == nil || c.Lifecycle == nil || c.Lifecycle.PostStart == nil {
		return pod.Done{}
	}
	ctx, span := w.k.span(ctx, "container.poststart", p, attribute.String("k8s.container.name", a.Container))
	err := w.k.cfg.Handler.Hook(ctx, probe.Hook{Pod: p, Container: c, ID: a.ID, PodIP: w.podIP(), Handler: c.Lifecycle.PostStart})
	end(span, err)
	if err == nil {
		return pod.Done{}
	}
	if ctx.Err() == nil {
		// Not what it said: that may be a secret.
		w.k.tell(p, c.Name, corev1.EventTypeWarning, "FailedPostStartHook", "PostStartHook failed")
	}
	return pod.Done{Err: err, Reason: "PostStartHookError", Message: err.Error()}
}

func (w *worker) kill(ctx context.Context, p *corev1.Pod, a pod.Kill) pod.Done {
	ctx, span := w.k.span(ctx, "container.stop", p, attribute.String("k8s.container.name", a.Container))
	c, _ := container(p, a.Container)
	if !a.NoHook {
		w.k.tell(p, a.Container, corev1.EventTypeNormal, "Killing", a.Message)
	}
	grace := a.Grace
	if c != nil && c.Lifecycle != nil && c.Lifecycle.PreStop != nil && !a.NoHook && grace > 0 {
		grace = max(grace-w.preStop(ctx, p, c, a), min(minimumGrace, a.Grace))
	}
	err := w.k.cfg.Engine.StopContainer(ctx, a.ID, grace)
	if gone(err) {
		err = nil
	}
	end(span, err)
	if err != nil && ctx.Err() == nil {
		w.k.log.Warn("A container cannot be stopped; trying again", "namespace", p.Namespace, "pod", p.Name, "container", a.Container, "error", err)
	}
	return pod.Done{Err: err, Container: w.lookAt(ctx, p, a.ID)}
}

// minimumGrace in seconds is what a container gets whose hook used its time up.
const minimumGrace = 2

// preStop runs a container's hook and answers the seconds that it took.
func (w *worker) preStop(ctx context.Context, p *corev1.Pod, c *corev1.Container, a pod.Kill) int64 {
	began := time.Now()
	hctx, cancel := context.WithTimeout(ctx, time.Duration(a.Grace)*time.Second)
	defer cancel()
	err := w.k.cfg.Handler.Hook(hctx, probe.Hook{Pod: p, Container: c, ID: a.ID, PodIP: w.podIP(), Handler: c.Lifecycle.PreStop})
	if err != nil && ctx.Err() == nil {
		w.k.log.Info("A preStop hook failed", "namespace", p.Namespace, "pod", p.Name, "container", c.Name, "error", err)
		w.k.tell(p, c.Name, corev1.EventTypeWarning, "FailedPreStopHook", "PreStopHook failed")
	}
	return int64(time.Since(began) / time.Second)
}

func (w *worker) teardown(ctx context.Context) error {
	if err := w.k.cfg.Volumes.Unmount(ctx, w.uid); err != nil {
		return fmt.Errorf("take volumes down: %w", err)
	}
	w.k.cfg.Objects.Unfollow(w.uid)
	if err := w.k.cfg.Host.Release(ctx, w.uid); err != nil {
		return fmt.Errorf("remove cgroup: %w", err)
	}
	return nil
}

// containerConfig gathers what a container's configuration is made of.
func (w *worker) containerConfig(ctx context.Context, p *corev1.Pod, c *corev1.Container, kind pod.Kind, a pod.Create) (*cri.ContainerConfig, error) {
	k, cl := w.k, w.k.cluster()
	w.mu.Lock()
	ips := w.ips
	w.mu.Unlock()
	if pod.HostNetwork(p) {
		ips = cl.HostIPs
	}
	services, err := k.servicesFor(p)
	if err != nil {
		return nil, err
	}
	node, err := k.feeds.Node(k.cfg.NodeName)
	if err != nil {
		return nil, fmt.Errorf("look at the node: %w", err)
	}
	env, err := spec.Env(ctx, spec.EnvRequest{Pod: p, Container: c, Objects: k.cfg.Objects, Services: services, PodIPs: ips, Cluster: cl, Allocatable: node.Status.Allocatable})
	if err != nil {
		return nil, err
	}
	mounts, err := k.cfg.Volumes.Mounts(ctx, p, c, spec.EnvMap(env))
	if err != nil {
		return nil, err
	}
	if err := w.imageVolumes(ctx, p, c, mounts); err != nil {
		return nil, err
	}
	hostname, domain, err := spec.Hostname(p, cl)
	if err != nil {
		return nil, err
	}
	files, err := k.cfg.Host.Files(ctx, spec.FilesRequest{Pod: p, Container: c, RestartCount: a.RestartCount, Hostname: hostname, Domain: domain, IPs: ips})
	if err != nil {
		return nil, err
	}
	image, err := k.cfg.Engine.ImageStatus(ctx, &cri.ImageSpec{Image: a.Image})
	if err != nil {
		return nil, fmt.Errorf("inspect image %q: %w", c.Image, err)
	}
	memory := node.Status.Capacity[corev1.ResourceMemory]
	return spec.Container(spec.ContainerRequest{
		Pod: p, Container: c, Kind: kind, RestartCount: a.RestartCount, Image: image, ImageRef: a.Image,
		Env: env, Mounts: append(mounts, files...), Place: w.at(), NodeMemory: memory.Value(),
		Target: w.target(p, c.Name), SeccompRoot: k.cfg.SeccompRoot,
	})
}

// imageVolumes makes the images present that a container mounts.
func (w *worker) imageVolumes(ctx context.Context, p *corev1.Pod, c *corev1.Container, mounts []*cri.Mount) error {
	policies := map[string]corev1.PullPolicy{}
	for i := range p.Spec.Volumes {
		if img := p.Spec.Volumes[i].Image; img != nil {
			policies[img.Reference] = img.PullPolicy
		}
	}
	for _, m := range mounts {
		if m.Image == nil {
			continue
		}
		ref, err := w.ensure(ctx, p, c.Name, m.Image.Image, policies[m.Image.Image])
		if err != nil {
			return fmt.Errorf("failed to get image for volume mounted at %s: %w", m.ContainerPath, err)
		}
		m.Image = &cri.ImageSpec{Image: ref}
	}
	return nil
}

// servicesFor are the Services that a pod's environment tells of.
func (k *Kubelet) servicesFor(p *corev1.Pod) ([]*corev1.Service, error) {
	out, err := k.feeds.Services(p.Namespace)
	if err != nil {
		return nil, fmt.Errorf("list services of namespace %s: %w", p.Namespace, err)
	}
	if p.Namespace == corev1.NamespaceDefault {
		return out, nil
	}
	defaults, err := k.feeds.Services(corev1.NamespaceDefault)
	if err != nil {
		return nil, fmt.Errorf("list services of namespace default: %w", err)
	}
	for _, s := range defaults {
		if s.Name == "kubernetes" {
			out = append(out, s)
		}
	}
	return out, nil
}

// target is the ID of the container that an ephemeral one looks into.
func (w *worker) target(p *corev1.Pod, name string) string {
	for i := range p.Spec.EphemeralContainers {
		if e := &p.Spec.EphemeralContainers[i]; e.Name == name && e.TargetContainerName != "" {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.running[e.TargetContainerName]
		}
	}
	return ""
}
