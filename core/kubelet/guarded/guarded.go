// SPDX-License-Identifier: Apache-2.0

// Package guarded is a container runtime behind a firewall: containers of a pod are created only
// after the firewall knows the sandbox's addresses and has its rules for them in force. If
// that cannot be confirmed, the sandbox has failed.
//
// It holds whatever its caller believes of a sandbox, which the runtime's events tell of too: a
// container that is created before the firewall has answered waits for it, and one in a
// sandbox that an earlier process made, and did not get to ask about, has the firewall asked.
//
// It is an engine like the one behind it. The firewall hears of pods that ran before, too,
// as their sandboxes are asked about, and of those whose sandboxes are stopped.
package guarded

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/engine"
)

// Firewall keeps the traffic of pods to what is allowed. The pods that it is given have
// a name, labels, and whether they are on the node's network; those that have run before,
// behind a firewall that had its rules in force, are in phase Running.
type Firewall interface {
	// Guard returns once what is allowed to a pod, which was given these addresses, is in
	// force. link is its link on the node's side, "" where that is not known to be ours.
	// An error means that it is not in force, and that nothing of the pod may run.
	Guard(ctx context.Context, p *corev1.Pod, ips []string, link string) error
	// Follow makes known a pod that runs already.
	Follow(p *corev1.Pod, ips []string, link string)
	// Forget drops a pod that has no network any more.
	Forget(p *corev1.Pod)
}

// Engine is a runtime behind a firewall.
type Engine struct {
	engine.Engine
	firewall Firewall
	link     func(sandbox string) (string, error)

	mu    sync.Mutex
	boxes map[string]*box // by sandbox
}

// box is a sandbox whose network is up.
type box struct {
	pod *corev1.Pod
	// asking has one place, for whoever asks the firewall about it.
	asking  chan struct{}
	guarded bool // the firewall's rules are in force; held by asking
}

// New puts a firewall in front of a runtime. link finds a sandbox's link on the node's side;
// nil: the network is somebody else's.
func New(e engine.Engine, f Firewall, link func(sandbox string) (string, error)) *Engine {
	if link == nil {
		link = func(string) (string, error) { return "", nil }
	}
	return &Engine{Engine: e, firewall: f, link: link, boxes: map[string]*box{}}
}

// InspectImage implements engine.ImageInspector: what the runtime tells, if it does.
func (e *Engine) InspectImage(ctx context.Context, spec *cri.ImageSpec) (*cri.Image, *engine.ImageConfig, error) {
	if i, ok := e.Engine.(engine.ImageInspector); ok {
		return i.InspectImage(ctx, spec)
	}
	image, err := e.ImageStatus(ctx, spec)
	return image, nil, err
}

// Handlers implements engine.HandlerLister.
func (e *Engine) Handlers(ctx context.Context) ([]*cri.RuntimeHandler, error) {
	if l, ok := e.Engine.(engine.HandlerLister); ok {
		return l.Handlers(ctx)
	}
	return nil, nil
}

// Features implements engine.FeatureTeller.
func (e *Engine) Features(ctx context.Context) (*cri.RuntimeFeatures, error) {
	if t, ok := e.Engine.(engine.FeatureTeller); ok {
		return t.Features(ctx)
	}
	return nil, nil //nolint:nilnil // it does not say
}

// Checkpoint implements engine.Checkpointer.
func (e *Engine) Checkpoint(ctx context.Context, id, archive string, timeoutSeconds int64) error {
	if c, ok := e.Engine.(engine.Checkpointer); ok {
		return c.Checkpoint(ctx, id, archive, timeoutSeconds)
	}
	return errors.New("the runtime makes no checkpoints of containers")
}

// RunSandbox makes a sandbox, and waits until it is guarded.
func (e *Engine) RunSandbox(ctx context.Context, c *cri.PodSandboxConfig, handler string) (string, error) {
	id, err := e.Engine.RunSandbox(ctx, c, handler)
	if err != nil {
		return "", err
	}
	// The first one of a pod says by itself that nothing of the pod has run before.
	if err := e.ensure(ctx, id, c.GetMetadata().GetAttempt() == 0); err != nil {
		return "", err
	}
	return id, nil
}

// CreateContainer creates a container in a sandbox that is guarded.
func (e *Engine) CreateContainer(ctx context.Context, sandbox string, c *cri.ContainerConfig, s *cri.PodSandboxConfig) (string, error) {
	if err := e.ensure(ctx, sandbox, false); err != nil {
		return "", err
	}
	return e.Engine.CreateContainer(ctx, sandbox, c, s)
}

// ensure returns once a sandbox is guarded. One that has containers was so when they were
// created, by an earlier process whose rules are still in force.
func (e *Engine) ensure(ctx context.Context, id string, first bool) (err error) {
	b, _ := e.box(id, nil)
	if b == nil {
		st, err := e.Engine.SandboxStatus(ctx, id)
		if err != nil {
			return fmt.Errorf("ask for the addresses of the sandbox that was made: %w", err)
		}
		b, _ = e.box(id, podOf(st))
	}
	select {
	case b.asking <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("wait for the firewall of pod %s/%s: %w", b.pod.Namespace, b.pod.Name, ctx.Err())
	}
	defer func() { <-b.asking }()
	if b.guarded {
		return nil
	}
	here, before := false, false
	if !first {
		if here, before, err = e.ran(ctx, id, b.pod.UID); err != nil {
			return err
		}
	}
	if !here {
		if err := e.guard(ctx, id, b.pod, before); err != nil {
			return err
		}
	}
	b.guarded = true
	return nil
}

func (e *Engine) guard(ctx context.Context, id string, p *corev1.Pod, before bool) error {
	st, err := e.Engine.SandboxStatus(ctx, id)
	if err != nil {
		return fmt.Errorf("ask for the addresses of the sandbox that was made: %w", err)
	}
	link := ""
	if !p.Spec.HostNetwork {
		if link, err = e.link(id); err != nil {
			return err
		}
	}
	if before {
		p = p.DeepCopy()
		p.Status.Phase = corev1.PodRunning
	}
	return e.firewall.Guard(ctx, p, addresses(st), link)
}

// ran reports whether there are containers in the sandbox, and whether any of the pod are.
func (e *Engine) ran(ctx context.Context, sandbox string, uid types.UID) (here, before bool, err error) {
	list, err := e.ListContainers(ctx)
	if err != nil {
		return false, false, fmt.Errorf("ask whether the pod has run before: %w", err)
	}
	for _, c := range list {
		here = here || c.GetPodSandboxId() == sandbox
		before = before || types.UID(c.GetLabels()["io.kubernetes.pod.uid"]) == uid
	}
	return here, before, nil
}

// SandboxStatus tells the firewall of a sandbox that an earlier process has made.
func (e *Engine) SandboxStatus(ctx context.Context, id string) (*cri.PodSandboxStatus, error) {
	st, err := e.Engine.SandboxStatus(ctx, id)
	if err != nil || st.State != cri.PodSandboxState_SANDBOX_READY {
		return st, err
	}
	ips := addresses(st)
	if len(ips) == 0 {
		return st, nil
	}
	if b, fresh := e.box(id, podOf(st)); fresh {
		name, _ := e.link(id) // without it the addresses are guarded all the same
		e.firewall.Follow(b.pod, ips, name)
	}
	return st, nil
}

// StopSandbox has the firewall forget the pod, whose network is gone, unless it has another
// sandbox by now.
func (e *Engine) StopSandbox(ctx context.Context, id string) error {
	err := e.Engine.StopSandbox(ctx, id)
	if err == nil {
		e.forget(id)
	}
	return err
}

// RemoveSandbox does it too.
func (e *Engine) RemoveSandbox(ctx context.Context, id string) error {
	err := e.Engine.RemoveSandbox(ctx, id)
	if err == nil {
		e.forget(id)
	}
	return err
}

// forget tells the firewall before anybody can tell it of the pod's next sandbox: what comes
// after that stays.
func (e *Engine) forget(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	b := e.boxes[id]
	delete(e.boxes, id)
	if b == nil {
		return
	}
	for _, other := range e.boxes {
		if other.pod.UID == b.pod.UID {
			return
		}
	}
	e.firewall.Forget(b.pod)
}

// box is what is known of a sandbox; fresh where that is only what it is given now.
func (e *Engine) box(id string, p *corev1.Pod) (b *box, fresh bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if b = e.boxes[id]; b == nil && p != nil {
		b, fresh = &box{pod: p, asking: make(chan struct{}, 1)}, true
		e.boxes[id] = b
	}
	return b, fresh
}

// podOf is as much of a pod as its sandbox shows.
func podOf(st *cri.PodSandboxStatus) *corev1.Pod {
	m := st.GetMetadata()
	p := &corev1.Pod{}
	p.Namespace, p.Name, p.UID = m.GetNamespace(), m.GetName(), types.UID(m.GetUid())
	p.Labels = map[string]string{}
	for k, v := range st.GetLabels() {
		if !strings.HasPrefix(k, "io.kubernetes.pod.") { // the kubelet's own
			p.Labels[k] = v
		}
	}
	p.Spec.HostNetwork = st.GetLinux().GetNamespaces().GetOptions().GetNetwork() == cri.NamespaceMode_NODE
	return p
}

func addresses(st *cri.PodSandboxStatus) []string {
	var out []string
	if ip := st.GetNetwork().GetIp(); ip != "" {
		out = append(out, ip)
	}
	for _, a := range st.GetNetwork().GetAdditionalIps() {
		out = append(out, a.GetIp())
	}
	return out
}
