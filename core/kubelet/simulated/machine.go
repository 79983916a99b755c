// SPDX-License-Identifier: Apache-2.0

package simulated

import (
	"context"
	"fmt"
	"io/fs"
	"runtime"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/node"
	"github.com/wasmplane/wasmplane/core/kubelet/pod"
	"github.com/wasmplane/wasmplane/core/kubelet/probe"
	"github.com/wasmplane/wasmplane/core/kubelet/spec"
)

// HostConfig says what a simulated node has.
type HostConfig struct {
	// Capacity of the node; cpu 8, memory 32Gi, ephemeral-storage 100Gi and 110 pods if empty.
	Capacity corev1.ResourceList
	// Address of the node: where its kubelet's server listens.
	Address string
	// Name of the node.
	Name string
	// Version of the kubelet to report.
	Version string
	// Engine of the node, which is told of each pod whether it is to end.
	Engine *Engine
}

// Host is the machine of a simulated node: it has what it was told to have,
// and pods occupy nothing on it. It is a kubelet.Host.
type Host struct {
	facts  node.Facts
	engine *Engine // nil: nobody is told
}

// NewHost makes the machine of one node.
func NewHost(cfg HostConfig) *Host {
	capacity := cfg.Capacity
	if len(capacity) == 0 {
		capacity = corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("32Gi"),
			corev1.ResourceEphemeralStorage: resource.MustParse("100Gi"), corev1.ResourcePods: resource.MustParse("110"),
		}
	}
	if cfg.Version == "" {
		cfg.Version = "v1.37.1"
	}
	return &Host{engine: cfg.Engine, facts: node.Facts{
		Capacity: capacity, Allocatable: capacity,
		Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: cfg.Address}, {Type: corev1.NodeHostName, Address: cfg.Name}},
		Info: corev1.NodeSystemInfo{
			MachineID: cfg.Name, SystemUUID: cfg.Name, BootID: cfg.Name, KernelVersion: "simulated", OSImage: "simulated",
			KubeletVersion: cfg.Version, OperatingSystem: "linux", Architecture: runtime.GOARCH,
		},
	}}
}

// Facts of the node.
func (g *Host) Facts(context.Context) (*node.Facts, error) { return &g.facts, nil }

// Claim occupies nothing. The engine learns what a runtime is not told: whether the
// pod is one that is to end.
func (g *Host) Claim(_ context.Context, p *corev1.Pod) (spec.Place, error) {
	if g.engine != nil && p.Spec.RestartPolicy != "" && p.Spec.RestartPolicy != corev1.RestartPolicyAlways {
		g.engine.finite(p.UID, true)
	}
	if pod.OwnUsers(p) {
		return spec.Place{Users: &cri.UserNamespace{Mode: cri.NamespaceMode_POD}}, nil
	}
	return spec.Place{}, nil
}

// Files are none.
func (g *Host) Files(context.Context, spec.FilesRequest) ([]*cri.Mount, error) { return nil, nil }

// Started links no log.
func (g *Host) Started(*corev1.Pod, string, string, string) {}

// LastWords are none.
func (g *Host) LastWords(context.Context, *corev1.Pod, *cri.ContainerStatus) string { return "" }

// Release forgets the pod.
func (g *Host) Release(_ context.Context, uid types.UID) error {
	if g.engine != nil {
		g.engine.finite(uid, false)
	}
	return nil
}

// Erase has nothing to remove.
func (g *Host) Erase(context.Context, types.UID) error { return nil }

// Claimed by nobody.
func (g *Host) Claimed(context.Context) ([]types.UID, error) { return nil, nil }

// Volumes are not mounted: there is nobody to read them. It is a kubelet.Volumes.
type Volumes struct{}

// Mount mounts nothing.
func (Volumes) Mount(context.Context, *corev1.Pod) error { return nil }

// Mounts are none.
func (Volumes) Mounts(context.Context, *corev1.Pod, *corev1.Container, map[string]string) ([]*cri.Mount, error) {
	return nil, nil
}

// Devices are none.
func (Volumes) Devices(*corev1.Pod, *corev1.Container) ([]*cri.Device, error) { return nil, nil }

// File is none: no container writes one.
func (Volumes) File(types.UID, string, string) ([]byte, error) {
	return nil, fmt.Errorf("a simulated node has no volumes: %w", fs.ErrNotExist)
}

// Update has nothing to rewrite.
func (Volumes) Update(*corev1.Pod) {}

// Unmount has nothing to unmount.
func (Volumes) Unmount(context.Context, types.UID) error { return nil }

// Handler answers probes as the pod's annotations say, and hooks with success.
// It is a probe.Handler.
type Handler struct{}

// Probe succeeds, unless the pod's annotations say otherwise.
func (Handler) Probe(_ context.Context, c probe.Check) (probe.Result, error) {
	a, kind := c.Pod.Annotations, "probe-"+strings.ToLower(c.Kind.String())
	v := directive(a, kind, c.Container.Name)
	if v == "" {
		v = directive(a, "probe", c.Container.Name)
	}
	if v == "failure" {
		return probe.Result{Output: fmt.Sprintf("simulated failure, by annotation %s%s", Prefix, kind)}, nil
	}
	return probe.Result{OK: true}, nil
}

// Hook succeeds.
func (Handler) Hook(context.Context, probe.Hook) error { return nil }
