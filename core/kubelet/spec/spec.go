// SPDX-License-Identifier: Apache-2.0

// Package spec turns a pod into what the CRI is asked for: the configurations of
// its sandbox and containers. It reads objects that are handed to it and touches
// neither the machine nor the runtime.
package spec

import (
	"context"
	"encoding/json"
	"path"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/engine"
	"github.com/wasmplane/wasmplane/core/kubelet/pod"
	"github.com/wasmplane/wasmplane/core/kubelet/swap"
)

// Place is where a pod lives on the machine.
type Place struct {
	// CgroupParent of the sandbox; empty: the runtime's own.
	CgroupParent string
	// LogDir is where the runtime writes the containers' logs; empty: nowhere.
	LogDir string
	// CgroupV2 tells that the machine has the unified hierarchy.
	CgroupV2 bool
	// Swap is what the machine has of it, and what the node does with it.
	Swap swap.Host
	// Users of the machine that those of the pod are; nil where the pod has the machine's own.
	Users *cri.UserNamespace
}

// FilesRequest asks for the files that a container mounts beside its volumes.
type FilesRequest struct {
	Pod              *corev1.Pod
	Container        *corev1.Container
	RestartCount     int32
	Hostname, Domain string
	IPs              []string
}

// Objects answers what environment variables and pull secrets come from. A
// missing object is an IsNotFound error.
type Objects interface {
	ConfigMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error)
	Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error)
}

// Cluster is what pods know of the cluster around them.
type Cluster struct {
	DNS    []string
	Domain string
	// HostResolv is the node's own resolver configuration.
	HostResolv *cri.DNSConfig
	NodeName   string
	// HostIPs of the node.
	HostIPs []string
}

// Labels of a pod's containers.
func labels(p *corev1.Pod) map[string]string {
	return map[string]string{pod.NameLabel: p.Name, pod.NamespaceLabel: p.Namespace, pod.UIDLabel: string(p.UID)}
}

// Sandbox is the configuration of a pod's sandbox.
func Sandbox(p *corev1.Pod, attempt uint32, place Place, cl Cluster) (*cri.PodSandboxConfig, error) {
	hostname, _, err := Hostname(p, cl)
	if err != nil {
		return nil, err
	}
	dns := DNS(p, cl)
	if err := OneLine("spec.dnsConfig", slices.Concat(dns.Servers, dns.Searches, dns.Options)...); err != nil {
		return nil, err
	}
	c := &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: p.Name, Namespace: p.Namespace, Uid: string(p.UID), Attempt: attempt},
		Labels:       map[string]string{},
		Annotations:  p.Annotations,
		LogDirectory: place.LogDir,
		DnsConfig:    dns,
	}
	if c.Linux, err = sandboxLinux(p, place); err != nil {
		return nil, err
	}
	for k, v := range p.Labels {
		c.Labels[k] = v
	}
	for k, v := range labels(p) {
		c.Labels[k] = v
	}
	if !pod.HostNetwork(p) {
		c.Hostname = hostname
	}
	c.PortMappings = portMappings(p)
	return c, nil
}

func portMappings(p *corev1.Pod) []*cri.PortMapping {
	if pod.HostNetwork(p) {
		return nil
	}
	var out []*cri.PortMapping
	add := func(list []corev1.Container, sidecars bool) {
		for i := range list {
			if sidecars && !pod.IsSidecar(&list[i]) {
				continue
			}
			for _, port := range list[i].Ports {
				out = append(out, &cri.PortMapping{
					HostIp: port.HostIP, HostPort: port.HostPort, ContainerPort: port.ContainerPort,
					Protocol: protocol(port.Protocol),
				})
			}
		}
	}
	add(p.Spec.InitContainers, true)
	add(p.Spec.Containers, false)
	return out
}

func protocol(p corev1.Protocol) cri.Protocol {
	switch p {
	case corev1.ProtocolUDP:
		return cri.Protocol_UDP
	case corev1.ProtocolSCTP:
		return cri.Protocol_SCTP
	default: // an empty one is TCP
		return cri.Protocol_TCP
	}
}

// ContainerRequest is what a container's configuration is made of.
type ContainerRequest struct {
	Pod          *corev1.Pod
	Container    *corev1.Container
	Kind         pod.Kind
	RestartCount int32
	Image        *cri.Image
	ImageRef     string
	// ImageConfig is what the image says of how it is run; nil where the engine doesn't tell.
	ImageConfig *engine.ImageConfig
	// Handler is the runtime handler of the pod's RuntimeClass, if it has one.
	Handler string
	Env     []*cri.KeyValue
	Mounts  []*cri.Mount
	Devices []*cri.Device
	Place   Place
	// Target is the ID of the container whose processes an ephemeral container sees.
	Target string
	// NodeMemory in bytes, for the OOM score.
	NodeMemory int64
	// SeccompRoot is where Localhost profiles are.
	SeccompRoot string
}

// Container is the configuration of a container.
func Container(r ContainerRequest) (*cri.ContainerConfig, error) {
	c, p := r.Container, r.Pod
	cfg := &cri.ContainerConfig{
		Metadata:    &cri.ContainerMetadata{Name: c.Name, Attempt: uint32(r.RestartCount)},
		Image:       &cri.ImageSpec{Image: r.ImageRef, UserSpecifiedImage: c.Image},
		WorkingDir:  c.WorkingDir,
		Labels:      labels(p),
		Annotations: annotations(r),
		Envs:        r.Env,
		Mounts:      owned(r.Mounts, r.Place.Users),
		Devices:     r.Devices,
		Stdin:       c.Stdin, StdinOnce: c.StdinOnce, Tty: c.TTY,
	}
	cfg.Labels[pod.ContainerNameLabel] = c.Name
	if r.Place.LogDir != "" {
		cfg.LogPath = path.Join(c.Name, strconv.Itoa(int(r.RestartCount))+".log")
	}
	env := EnvMap(r.Env)
	for _, s := range c.Command {
		cfg.Command = append(cfg.Command, Expand(s, env))
	}
	for _, s := range c.Args {
		cfg.Args = append(cfg.Args, Expand(s, env))
	}
	asModule(cfg, r)
	if c.Lifecycle != nil && c.Lifecycle.StopSignal != nil {
		if n, ok := cri.Signal_value[string(*c.Lifecycle.StopSignal)]; ok {
			cfg.StopSignal = cri.Signal(n)
		}
	}
	linux, err := containerLinux(r)
	cfg.Linux = linux
	return cfg, err
}

func annotations(r ContainerRequest) map[string]string {
	c, p := r.Container, r.Pod
	a := map[string]string{
		pod.HashAnnotation:                     pod.Hash(c),
		pod.RestartCountAnnotation:             strconv.Itoa(int(r.RestartCount)),
		pod.TerminationMessagePathAnnotation:   c.TerminationMessagePath,
		pod.TerminationMessagePolicyAnnotation: string(c.TerminationMessagePolicy),
		pod.KindAnnotation:                     r.Kind.String(),
		pod.ResourcesAnnotation:                pod.EncodeResources(&c.Resources),
	}
	if p.Spec.Resources != nil {
		a[pod.LevelAnnotation] = pod.EncodeResources(p.Spec.Resources)
	}
	if g := p.DeletionGracePeriodSeconds; g != nil {
		a[pod.DeletionGracePeriodAnnotation] = strconv.FormatInt(*g, 10)
	}
	if g := p.Spec.TerminationGracePeriodSeconds; g != nil {
		a[pod.TerminationGracePeriodAnnotation] = strconv.FormatInt(*g, 10)
	}
	if c.Lifecycle != nil && c.Lifecycle.PreStop != nil {
		if raw, err := json.Marshal(c.Lifecycle.PreStop); err == nil {
			a[pod.PreStopHandlerAnnotation] = string(raw)
		}
	}
	if len(c.Ports) > 0 {
		if raw, err := json.Marshal(c.Ports); err == nil {
			a[pod.PortsAnnotation] = string(raw)
		}
	}
	return a
}
