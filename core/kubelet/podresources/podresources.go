// SPDX-License-Identifier: Apache-2.0

// Package podresources tells programs on the node which devices, CPUs, memory and claims its
// containers have: upstream's PodResourcesLister (v1), at a socket that only root can reach.
package podresources

import (
	"context"
	"path/filepath"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/pluginwatch"
	"github.com/wasmplane/wasmplane/core/kubelet/pod"
)

// Socket below the kubelet's directory.
const Socket = "pod-resources/kubelet.sock"

// So many calls are answered in a second, and at once, as upstream.
const (
	perSecond = 100
	burst     = 10
)

// Pods of the node, with their statuses.
type Pods interface{ Pods() []*corev1.Pod }

// Devices of device plugins.
type Devices interface {
	// DevicesOf a container.
	DevicesOf(uid types.UID, container string) []*api.ContainerDevices
	// AllDevices that are healthy.
	AllDevices() []*api.ContainerDevices
}

// Pins are the CPUs and the memory that containers have for themselves.
type Pins interface {
	PinsOf(uid types.UID, container string) (cpus []int64, memory []*api.ContainerMemory)
	// AllPins are those that containers may have.
	AllPins() (cpus []int64, memory []*api.ContainerMemory)
}

// Claims that containers use.
type Claims interface {
	ClaimsOf(p *corev1.Pod, container string) []*api.DynamicResource
}

// Server of a node. All but Limit are required.
type Server struct {
	api.UnimplementedPodResourcesListerServer
	Pods    Pods
	Devices Devices
	Pins    Pins
	Claims  Claims
	// Limit of calls; nil: upstream's.
	Limit *rate.Limiter
}

// Run serves below the kubelet's directory until ctx ends.
func (s *Server) Run(ctx context.Context, root string) error {
	limit := s.Limit
	if limit == nil {
		limit = rate.NewLimiter(perSecond, burst)
	}
	bounded := func(ctx context.Context, r any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		if !limit.Allow() {
			return nil, status.Error(codes.ResourceExhausted, "rejected by rate limit")
		}
		return next(ctx, r)
	}
	const most = 64 << 10 // of a request
	return pluginwatch.Serve(ctx, filepath.Join(root, Socket), func(g *grpc.Server) { api.RegisterPodResourcesListerServer(g, s) },
		grpc.UnaryInterceptor(bounded), grpc.MaxRecvMsgSize(most), grpc.MaxConcurrentStreams(burst))
}

// List implements the API: pods that have not ended.
func (s *Server) List(context.Context, *api.ListPodResourcesRequest) (*api.ListPodResourcesResponse, error) {
	out := &api.ListPodResourcesResponse{}
	for _, p := range s.Pods.Pods() {
		if active(p) {
			out.PodResources = append(out.PodResources, s.of(p))
		}
	}
	return out, nil
}

// Get implements the API.
func (s *Server) Get(_ context.Context, r *api.GetPodResourcesRequest) (*api.GetPodResourcesResponse, error) {
	for _, p := range s.Pods.Pods() {
		if p.Name == r.GetPodName() && p.Namespace == r.GetPodNamespace() && active(p) {
			return &api.GetPodResourcesResponse{PodResources: s.of(p)}, nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "pod %s in namespace %s not found", r.GetPodName(), r.GetPodNamespace())
}

// GetAllocatableResources implements the API.
func (s *Server) GetAllocatableResources(context.Context, *api.AllocatableResourcesRequest) (*api.AllocatableResourcesResponse, error) {
	cpus, memory := s.Pins.AllPins()
	return &api.AllocatableResourcesResponse{Devices: s.Devices.AllDevices(), CpuIds: cpus, Memory: memory}, nil
}

func active(p *corev1.Pod) bool {
	return p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed
}

// of a pod: its containers, and the init containers that run on beside them.
func (s *Server) of(p *corev1.Pod) *api.PodResources {
	out := &api.PodResources{Name: p.Name, Namespace: p.Namespace}
	add := func(c *corev1.Container) {
		one := &api.ContainerResources{Name: c.Name, Devices: s.Devices.DevicesOf(p.UID, c.Name), DynamicResources: s.Claims.ClaimsOf(p, c.Name)}
		one.CpuIds, one.Memory = s.Pins.PinsOf(p.UID, c.Name)
		out.Containers = append(out.Containers, one)
	}
	for i := range p.Spec.InitContainers {
		if c := &p.Spec.InitContainers[i]; pod.IsSidecar(c) {
			add(c)
		}
	}
	for i := range p.Spec.Containers {
		add(&p.Spec.Containers[i])
	}
	return out
}
