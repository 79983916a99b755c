// SPDX-License-Identifier: Apache-2.0

// Package guarded is a container runtime behind a firewall: containers of a pod start only
// after the firewall knows the sandbox's addresses and has its rules for them in force. If
// that cannot be confirmed, the sandbox has failed.
//
// It is an engine like the one behind it. The firewall hears of pods that ran before, too,
// as their sandboxes are asked about, and of those that are removed.
package guarded

import (
	"context"
	"fmt"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/engine"
)

// Firewall keeps the traffic of pods to what is allowed. The pods that it is given have
// a name, labels, and whether they are on the node's network; those that have run before
// are in phase Running.
type Firewall interface {
	// Guard returns once what is allowed to a pod, which was given these addresses, is in
	// force. link is its link on the node's side, "" where that is not known to be ours.
	// An error means that it is not in force, and that nothing of the pod may run.
	Guard(ctx context.Context, p *corev1.Pod, ips []string, link string) error
	// Follow makes known a pod that runs already.
	Follow(p *corev1.Pod, ips []string, link string)
	// Forget drops a pod of which nothing is left.
	Forget(p *corev1.Pod)
}

// Engine is a runtime behind a firewall.
type Engine struct {
	engine.Engine
	firewall Firewall
	link     func(sandbox string) (string, error)

	mu   sync.Mutex
	pods map[string]*corev1.Pod // by sandbox
}

// New puts a firewall in front of a runtime. link finds a sandbox's link on the node's side;
// nil: the network is somebody else's.
func New(e engine.Engine, f Firewall, link func(sandbox string) (string, error)) *Engine {
	if link == nil {
		link = func(string) (string, error) { return "", nil }
	}
	return &Engine{Engine: e, firewall: f, link: link, pods: map[string]*corev1.Pod{}}
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

// RunSandbox makes a sandbox, and waits until it is guarded.
func (e *Engine) RunSandbox(ctx context.Context, c *cri.PodSandboxConfig, handler string) (string, error) {
	id, err := e.Engine.RunSandbox(ctx, c, handler)
	if err != nil {
		return "", err
	}
	st, err := e.Engine.SandboxStatus(ctx, id)
	if err != nil {
		return "", fmt.Errorf("ask for the addresses of the sandbox that was made: %w", err)
	}
	p := podOf(c.GetMetadata(), c.GetLabels(), c.GetLinux().GetSecurityContext().GetNamespaceOptions())
	e.remember(id, p)
	link := ""
	if !p.Spec.HostNetwork {
		if link, err = e.link(id); err != nil {
			return "", err
		}
	}
	if err := e.firewall.Guard(ctx, p, addresses(st), link); err != nil {
		return "", err
	}
	return id, nil
}

// SandboxStatus tells the firewall of a sandbox that an earlier process has made.
func (e *Engine) SandboxStatus(ctx context.Context, id string) (*cri.PodSandboxStatus, error) {
	st, err := e.Engine.SandboxStatus(ctx, id)
	if err != nil || st.State != cri.PodSandboxState_SANDBOX_READY {
		return st, err
	}
	p := podOf(st.GetMetadata(), st.GetLabels(), st.GetLinux().GetNamespaces().GetOptions())
	if ips := addresses(st); len(ips) > 0 && e.remember(id, p) {
		name, _ := e.link(id) // without it the addresses are guarded all the same
		e.firewall.Follow(p, ips, name)
	}
	return st, nil
}

// RemoveSandbox has the firewall forget the pod, unless it has another sandbox by now.
func (e *Engine) RemoveSandbox(ctx context.Context, id string) error {
	if err := e.Engine.RemoveSandbox(ctx, id); err != nil {
		return err
	}
	e.mu.Lock()
	p := e.pods[id]
	delete(e.pods, id)
	last := p != nil
	for _, other := range e.pods {
		last = last && other.UID != p.UID
	}
	e.mu.Unlock()
	if last {
		e.firewall.Forget(p)
	}
	return nil
}

// remember reports whether the sandbox is new.
func (e *Engine) remember(id string, p *corev1.Pod) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, known := e.pods[id]
	e.pods[id] = p
	return !known
}

// podOf is as much of a pod as its sandbox shows.
func podOf(m *cri.PodSandboxMetadata, labels map[string]string, ns *cri.NamespaceOption) *corev1.Pod {
	p := &corev1.Pod{}
	p.Namespace, p.Name, p.UID = m.GetNamespace(), m.GetName(), types.UID(m.GetUid())
	p.Labels = map[string]string{}
	for k, v := range labels {
		if !strings.HasPrefix(k, "io.kubernetes.pod.") { // the kubelet's own
			p.Labels[k] = v
		}
	}
	p.Spec.HostNetwork = ns.GetNetwork() == cri.NamespaceMode_NODE
	if m.GetAttempt() > 0 {
		p.Status.Phase = corev1.PodRunning
	}
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
