// SPDX-License-Identifier: Apache-2.0

// Package simulated runs pods without running anything: an engine whose
// sandboxes get addresses and whose containers are entries in a map. The kubelet
// above it is the one that drives containerd; only what is handed to it differs:
// Engine for the runtime, Host for the machine, Volumes and Probes.
//
// It costs a few hundred bytes a container and no goroutine, so that a laptop
// without root holds hundreds of nodes, for writing and testing schedulers,
// controllers and plugins. What it holds is gone with the process: the kubelet
// then starts its pods anew.
//
// A container starts at once, runs until it is stopped, and then exits with 0.
// An init container exits with 0 at once. A container of a pod that is to end, by
// its restartPolicy Never or OnFailure (pods of Jobs, tests and hooks of charts),
// exits with 0 after a second. Annotations of the pod change that, for
// all its containers or, with "." and a name behind, for one:
//
//	simulated.wasmplane.dev/run-time: 30s          exits by itself after that long
//	simulated.wasmplane.dev/exit-code: "1"         with that code, then
//	simulated.wasmplane.dev/exit-reason: OOMKilled the reason that the runtime gives
//	simulated.wasmplane.dev/start-error: text      does not start
//	simulated.wasmplane.dev/stop-time: 5s          takes that long to stop (or is killed at the grace period's end: 137)
//	simulated.wasmplane.dev/pull-time: 2s          its image takes that long to pull
//	simulated.wasmplane.dev/pull-error: text       or cannot be pulled
//	simulated.wasmplane.dev/logs: text             what its log says
//	simulated.wasmplane.dev/probe.web: failure     its probes fail (also probe-liveness.web and so on)
//	simulated.wasmplane.dev/sandbox-error: text    the pod's sandbox cannot be made
//	simulated.wasmplane.dev/cpu: 250m              uses that much of a processor (nothing is used where nothing is said)
//	simulated.wasmplane.dev/memory: 64Mi           and that much memory
package simulated

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/pod"
	"github.com/wasmplane/wasmplane/core/run"
)

// Prefix of the annotations that direct a simulation.
const Prefix = "simulated.wasmplane.dev/"

// ErrSimulated is what asks for a process get: there is none.
var ErrSimulated = errors.New("this container is simulated: no process runs in it; start the node with --nodes real to run one")

// Config of an Engine.
type Config struct {
	// Network gives sandboxes their addresses; shared by the nodes of a cluster. Required.
	Network *Network
	// PullTime is how long an image takes that is not yet there.
	PullTime time.Duration
}

// Engine is the simulated runtime of one node.
type Engine struct {
	cfg Config

	mu         sync.Mutex
	serial     uint64
	seed       string
	sandboxes  map[string]*sandbox
	containers map[string]*container
	images     map[string]struct{}
	ending     map[string]struct{} // the UIDs of pods that are to end
	subs       map[*subscription]struct{}
}

type sandbox struct {
	status *cri.PodSandboxStatus
}

type container struct {
	status  *cri.ContainerStatus
	sandbox *sandbox
	// end fires when the container is to exit by itself.
	end  *time.Timer
	gone chan struct{} // closed at exit
}

type subscription struct {
	ch chan *cri.ContainerEventResponse
}

// New makes the engine of one node.
func New(cfg Config) (*Engine, error) {
	if cfg.Network == nil {
		return nil, errors.New("a simulated engine needs a Network: make one with NewNetwork and share it between nodes")
	}
	e := &Engine{
		cfg: cfg, sandboxes: map[string]*sandbox{}, containers: map[string]*container{},
		images: map[string]struct{}{}, ending: map[string]struct{}{}, subs: map[*subscription]struct{}{},
	}
	e.seed = strconv.FormatUint(cfg.Network.serial(), 36)
	return e, nil
}

// finiteRunTime is how long a container of a pod that is to end runs, where nothing
// else is said: long enough to be seen running.
const finiteRunTime = "1s"

// finite notes that a pod is to end, or forgets it.
func (e *Engine) finite(uid types.UID, ends bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if ends {
		e.ending[string(uid)] = struct{}{}
		return
	}
	delete(e.ending, string(uid))
}

func (e *Engine) id(what string) string {
	e.serial++
	sum := sha256.Sum256([]byte(what + e.seed + "/" + strconv.FormatUint(e.serial, 36)))
	return hex.EncodeToString(sum[:])
}

func notFound(kind, id string) error {
	return status.Errorf(codes.NotFound, "no %s %q on this simulated node", kind, id)
}

// directive reads an annotation for a container, or for all.
func directive(a map[string]string, name, container string) string {
	if v, ok := a[Prefix+name+"."+container]; ok {
		return v
	}
	return a[Prefix+name]
}

func duration(v string) time.Duration {
	d, err := time.ParseDuration(v)
	if err != nil {
		return 0
	}
	return d
}

// RunSandbox gives a pod an address.
func (e *Engine) RunSandbox(_ context.Context, c *cri.PodSandboxConfig, handler string) (string, error) {
	if msg := c.GetAnnotations()[Prefix+"sandbox-error"]; msg != "" {
		return "", errors.New(msg)
	}
	st := &cri.PodSandboxStatus{
		Metadata: c.GetMetadata(), State: cri.PodSandboxState_SANDBOX_READY, CreatedAt: time.Now().UnixNano(),
		Labels: c.GetLabels(), Annotations: c.GetAnnotations(), RuntimeHandler: handler,
		Linux: &cri.LinuxPodSandboxStatus{Namespaces: &cri.Namespace{Options: c.GetLinux().GetSecurityContext().GetNamespaceOptions()}},
	}
	if st.GetLinux().GetNamespaces().GetOptions().GetNetwork() != cri.NamespaceMode_NODE {
		ips, err := e.cfg.Network.take()
		if err != nil {
			return "", err
		}
		st.Network = &cri.PodSandboxNetworkStatus{Ip: ips[0]}
		for _, ip := range ips[1:] {
			st.Network.AdditionalIps = append(st.Network.AdditionalIps, &cri.PodIP{Ip: ip})
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	st.Id = e.id("sandbox")
	sb := &sandbox{status: st}
	e.sandboxes[st.Id] = sb
	e.emit(sb, st.Id, cri.ContainerEventType_CONTAINER_CREATED_EVENT)
	e.emit(sb, st.Id, cri.ContainerEventType_CONTAINER_STARTED_EVENT)
	return st.Id, nil
}

// StopSandbox ends what runs in a sandbox and gives its address back.
func (e *Engine) StopSandbox(_ context.Context, id string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	sb := e.sandboxes[id]
	if sb == nil || sb.status.State != cri.PodSandboxState_SANDBOX_READY {
		return nil
	}
	for _, c := range e.containers {
		if c.sandbox == sb {
			e.exit(c, 137, "")
		}
	}
	st := clone(sb.status)
	st.State = cri.PodSandboxState_SANDBOX_NOTREADY
	if st.Network != nil {
		e.cfg.Network.give(st.Network)
	}
	sb.status = st
	e.emit(sb, id, cri.ContainerEventType_CONTAINER_STOPPED_EVENT)
	return nil
}

// RemoveSandbox forgets a sandbox and its containers.
func (e *Engine) RemoveSandbox(ctx context.Context, id string) error {
	if err := e.StopSandbox(ctx, id); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	sb := e.sandboxes[id]
	if sb == nil {
		return nil
	}
	for cid, c := range e.containers {
		if c.sandbox == sb {
			delete(e.containers, cid)
			e.emit(sb, cid, cri.ContainerEventType_CONTAINER_DELETED_EVENT)
		}
	}
	delete(e.sandboxes, id)
	e.emit(sb, id, cri.ContainerEventType_CONTAINER_DELETED_EVENT)
	return nil
}

// SandboxStatus answers a sandbox's state and address.
func (e *Engine) SandboxStatus(_ context.Context, id string) (*cri.PodSandboxStatus, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if sb := e.sandboxes[id]; sb != nil {
		return sb.status, nil
	}
	return nil, notFound("sandbox", id)
}

// CreateContainer notes a container.
func (e *Engine) CreateContainer(_ context.Context, sandboxID string, c *cri.ContainerConfig, _ *cri.PodSandboxConfig) (string, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	sb := e.sandboxes[sandboxID]
	if sb == nil {
		return "", notFound("sandbox", sandboxID)
	}
	if sb.status.State != cri.PodSandboxState_SANDBOX_READY {
		return "", status.Errorf(codes.FailedPrecondition, "sandbox %q is not ready", sandboxID)
	}
	for _, o := range e.containers {
		if m, n := o.status.GetMetadata(), c.GetMetadata(); o.sandbox == sb && m.GetName() == n.GetName() && m.GetAttempt() == n.GetAttempt() {
			return "", status.Errorf(codes.AlreadyExists, "sandbox %q already has attempt %d of container %q", sandboxID, n.GetAttempt(),
				n.GetName())
		}
	}
	st := &cri.ContainerStatus{
		Id: e.id("container"), Metadata: c.GetMetadata(), State: cri.ContainerState_CONTAINER_CREATED, CreatedAt: time.Now().UnixNano(),
		Image: &cri.ImageSpec{Image: c.GetImage().GetUserSpecifiedImage()}, ImageRef: imageID(c.GetImage().GetImage()),
		ImageId: imageID(c.GetImage().GetImage()),
		Labels:  c.GetLabels(), Annotations: c.GetAnnotations(),
	}
	if st.Image.Image == "" {
		st.Image.Image = c.GetImage().GetImage()
	}
	e.containers[st.Id] = &container{status: st, sandbox: sb, gone: make(chan struct{})}
	e.emit(sb, st.Id, cri.ContainerEventType_CONTAINER_CREATED_EVENT)
	return st.Id, nil
}

// StartContainer lets a container run as its pod's annotations say.
func (e *Engine) StartContainer(_ context.Context, id string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := e.containers[id]
	if c == nil {
		return notFound("container", id)
	}
	if c.status.State != cri.ContainerState_CONTAINER_CREATED {
		return status.Errorf(codes.FailedPrecondition, "container %q was already started", id)
	}
	name, a := c.status.GetMetadata().GetName(), c.sandbox.status.GetAnnotations()
	st := clone(c.status)
	st.State, st.StartedAt = cri.ContainerState_CONTAINER_RUNNING, time.Now().UnixNano()
	c.status = st
	if msg := directive(a, "start-error", name); msg != "" {
		e.exit(c, 128, "StartError")
		return errors.New(msg)
	}
	e.emit(c.sandbox, id, cri.ContainerEventType_CONTAINER_STARTED_EVENT)
	code, err := strconv.ParseInt(directive(a, "exit-code", name), 10, 32)
	runTime := directive(a, "run-time", name)
	if runTime == "" && (err == nil || c.status.Annotations[pod.KindAnnotation] == pod.Init.String()) {
		runTime = "0s"
	}
	if _, ends := e.ending[c.sandbox.status.GetMetadata().GetUid()]; ends && runTime == "" &&
		c.status.Annotations[pod.KindAnnotation] == pod.Regular.String() {
		runTime = finiteRunTime
	}
	if runTime == "" {
		return nil
	}
	reason := directive(a, "exit-reason", name)
	c.end = time.AfterFunc(duration(runTime), func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.exit(c, int32(code), reason)
	})
	return nil
}

// exit ends a container that runs; the lock is held.
func (e *Engine) exit(c *container, code int32, reason string) {
	if c.status.State == cri.ContainerState_CONTAINER_EXITED {
		return
	}
	if c.end != nil {
		c.end.Stop()
	}
	st := clone(c.status)
	st.State, st.FinishedAt, st.ExitCode, st.Reason = cri.ContainerState_CONTAINER_EXITED, time.Now().UnixNano(), code, reason
	if reason == "" {
		st.Reason = "Completed"
		if code != 0 {
			st.Reason = "Error"
		}
	}
	c.status = st
	close(c.gone)
	e.emit(c.sandbox, st.Id, cri.ContainerEventType_CONTAINER_STOPPED_EVENT)
}

// StopContainer ends a container.
func (e *Engine) StopContainer(ctx context.Context, id string, grace int64) error {
	e.mu.Lock()
	c := e.containers[id]
	if c == nil || c.status.State == cri.ContainerState_CONTAINER_EXITED {
		e.mu.Unlock()
		return nil
	}
	takes := duration(directive(c.sandbox.status.GetAnnotations(), "stop-time", c.status.GetMetadata().GetName()))
	gone := c.gone
	e.mu.Unlock()
	code := int32(0)
	if limit := time.Duration(grace) * time.Second; takes > limit {
		takes, code = limit, 137
	}
	if takes > 0 {
		t := time.NewTimer(takes)
		defer t.Stop()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-gone:
			return nil
		case <-t.C:
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.exit(c, code, "")
	return nil
}

// RemoveContainer forgets a container.
func (e *Engine) RemoveContainer(_ context.Context, id string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := e.containers[id]
	if c == nil {
		return nil
	}
	e.exit(c, 137, "")
	delete(e.containers, id)
	e.emit(c.sandbox, id, cri.ContainerEventType_CONTAINER_DELETED_EVENT)
	return nil
}

// ContainerStatus answers a container's state.
func (e *Engine) ContainerStatus(_ context.Context, id string) (*cri.ContainerStatus, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c := e.containers[id]; c != nil {
		return c.status, nil
	}
	return nil, notFound("container", id)
}

// UpdateResources changes nothing: nothing uses resources.
func (e *Engine) UpdateResources(_ context.Context, id string, r *cri.LinuxContainerResources) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := e.containers[id]
	if c == nil {
		return notFound("container", id)
	}
	st := clone(c.status)
	st.Resources = &cri.ContainerResources{Linux: r}
	c.status = st
	return nil
}

// ReopenLog does nothing: there is no log file.
func (e *Engine) ReopenLog(ctx context.Context, id string) error {
	_, err := e.ContainerStatus(ctx, id)
	return err
}

// Logs is what a container would have written: engine.LogReader.
func (e *Engine) Logs(_ context.Context, id string) (io.ReadCloser, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := e.containers[id]
	if c == nil {
		return nil, notFound("container", id)
	}
	text := directive(c.sandbox.status.GetAnnotations(), "logs", c.status.GetMetadata().GetName())
	if text == "" {
		text = "this container is simulated: no process runs in it, so it writes nothing"
	}
	at := time.Unix(0, max(c.status.StartedAt, c.status.CreatedAt)).UTC().Format(time.RFC3339Nano)
	var b strings.Builder
	for line := range strings.Lines(text) {
		fmt.Fprintf(&b, "%s stdout F %s\n", at, strings.TrimSuffix(line, "\n"))
	}
	return io.NopCloser(strings.NewReader(b.String())), nil
}

// emit sends an event to all who listen; the lock is held.
func (e *Engine) emit(sb *sandbox, id string, t cri.ContainerEventType) {
	if len(e.subs) == 0 {
		return
	}
	ev := &cri.ContainerEventResponse{ContainerId: id, ContainerEventType: t, CreatedAt: time.Now().UnixNano(), PodSandboxStatus: sb.status}
	for _, c := range e.containers {
		if c.sandbox == sb {
			ev.ContainersStatuses = append(ev.ContainersStatuses, c.status)
		}
	}
	for s := range e.subs {
		select {
		case s.ch <- ev:
		default:
			// Who falls behind lists afresh.
			delete(e.subs, s)
			close(s.ch)
		}
	}
}

// Events delivers what happens to containers.
func (e *Engine) Events(ctx context.Context) (<-chan *cri.ContainerEventResponse, error) {
	const backlog = 256
	s := &subscription{ch: make(chan *cri.ContainerEventResponse, backlog)}
	e.mu.Lock()
	e.subs[s] = struct{}{}
	e.mu.Unlock()
	context.AfterFunc(ctx, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if _, ok := e.subs[s]; ok {
			delete(e.subs, s)
			close(s.ch)
		}
	})
	return s.ch, nil
}

// ListSandboxes answers all sandboxes.
func (e *Engine) ListSandboxes(context.Context) ([]*cri.PodSandbox, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := make([]*cri.PodSandbox, 0, len(e.sandboxes))
	for _, sb := range e.sandboxes {
		st := sb.status
		out = append(out, &cri.PodSandbox{
			Id: st.Id, Metadata: st.Metadata, State: st.State, CreatedAt: st.CreatedAt,
			Labels: st.Labels, Annotations: st.Annotations, RuntimeHandler: st.RuntimeHandler,
		})
	}
	return out, nil
}

// ListContainers answers all containers.
func (e *Engine) ListContainers(context.Context) ([]*cri.Container, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := make([]*cri.Container, 0, len(e.containers))
	for _, c := range e.containers {
		st := c.status
		out = append(out, &cri.Container{
			Id: st.Id, PodSandboxId: c.sandbox.status.Id, Metadata: st.Metadata, Image: st.Image, ImageRef: st.ImageRef,
			State: st.State, CreatedAt: st.CreatedAt, Labels: st.Labels, Annotations: st.Annotations, ImageId: st.ImageId,
		})
	}
	return out, nil
}

// Ready is always.
func (e *Engine) Ready(context.Context) error { return nil }

// Version names the engine.
func (e *Engine) Version(context.Context) (name, version string, err error) {
	return "simulated", "1.0.0", nil
}

// PullImage makes an image present.
func (e *Engine) PullImage(ctx context.Context, spec *cri.ImageSpec, _ *cri.AuthConfig, s *cri.PodSandboxConfig) (string, error) {
	a := s.GetAnnotations()
	if msg := a[Prefix+"pull-error"]; msg != "" {
		return "", errors.New(msg)
	}
	takes := e.cfg.PullTime
	if v := a[Prefix+"pull-time"]; v != "" {
		takes = duration(v)
	}
	if takes > 0 && !run.Sleep(ctx, takes) {
		return "", ctx.Err()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.images[spec.GetImage()] = struct{}{}
	return imageID(spec.GetImage()), nil
}

func imageID(name string) string {
	if strings.HasPrefix(name, "sha256:") {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return "sha256:" + hex.EncodeToString(sum[:])
}

func image(name string) *cri.Image {
	return &cri.Image{
		Id: imageID(name), RepoTags: []string{name}, Size: 1, Spec: &cri.ImageSpec{Image: name},
		Uid: &cri.Int64Value{Value: 65532},
	}
}

// ImageStatus answers an image by its name or ID, nil if it is not there.
func (e *Engine) ImageStatus(_ context.Context, spec *cri.ImageSpec) (*cri.Image, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, ok := e.images[spec.GetImage()]; ok {
		return image(spec.GetImage()), nil
	}
	for name := range e.images {
		if imageID(name) == spec.GetImage() {
			return image(name), nil
		}
	}
	return nil, nil
}

// ListImages answers what was pulled.
func (e *Engine) ListImages(context.Context) ([]*cri.Image, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := make([]*cri.Image, 0, len(e.images))
	for name := range e.images {
		out = append(out, image(name))
	}
	return out, nil
}

// RemoveImage forgets an image.
func (e *Engine) RemoveImage(_ context.Context, spec *cri.ImageSpec) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for name := range e.images {
		if name == spec.GetImage() || imageID(name) == spec.GetImage() {
			delete(e.images, name)
		}
	}
	return nil
}

// ExecSync answers success, so that hooks do not hold pods up, and says that nothing ran.
func (e *Engine) ExecSync(ctx context.Context, id string, _ []string, _ int64) (stdout, stderr []byte, exitCode int32, err error) {
	st, err := e.ContainerStatus(ctx, id)
	if err != nil {
		return nil, nil, 0, err
	}
	if st.State != cri.ContainerState_CONTAINER_RUNNING {
		return nil, nil, 0, status.Errorf(codes.FailedPrecondition, "container %q is not running", id)
	}
	return []byte(ErrSimulated.Error() + "\n"), nil, 0, nil
}

// Exec refuses: there is no process.
func (e *Engine) Exec(ctx context.Context, r *cri.ExecRequest) (string, error) {
	return e.refuse(ctx, r.GetContainerId())
}

// Attach refuses: there is no process.
func (e *Engine) Attach(ctx context.Context, r *cri.AttachRequest) (string, error) {
	return e.refuse(ctx, r.GetContainerId())
}

// PortForward refuses: nothing listens.
func (e *Engine) PortForward(ctx context.Context, r *cri.PortForwardRequest) (string, error) {
	if _, err := e.SandboxStatus(ctx, r.GetPodSandboxId()); err != nil {
		return "", err
	}
	return "", status.Error(codes.Unimplemented, "this pod is simulated: nothing listens in it; start the node with --nodes real to run one")
}

func (e *Engine) refuse(ctx context.Context, id string) (string, error) {
	if _, err := e.ContainerStatus(ctx, id); err != nil {
		return "", err
	}
	return "", status.Error(codes.Unimplemented, ErrSimulated.Error())
}
