// SPDX-License-Identifier: Apache-2.0

package podresources_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/allot"
	"github.com/wasmplane/wasmplane/core/kubelet/podresources"
	"github.com/wasmplane/wasmplane/core/run"
)

// facts are a node's, of one container "main" of the pod "one".
type facts struct{}

func (facts) Pods() []*corev1.Pod {
	always := corev1.ContainerRestartPolicyAlways
	pod := func(name string, phase corev1.PodPhase) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)},
			Spec: corev1.PodSpec{
				InitContainers: []corev1.Container{{Name: "init"}, {Name: "side", RestartPolicy: &always}},
				Containers:     []corev1.Container{{Name: "main"}},
			},
			Status: corev1.PodStatus{Phase: phase},
		}
	}
	return []*corev1.Pod{pod("one", corev1.PodRunning), pod("over", corev1.PodSucceeded)}
}

var devices = []*api.ContainerDevices{{ResourceName: "example.com/x", DeviceIds: []string{"a"}, Topology: allot.NodesOf(1).Topology()}}

func (facts) DevicesOf(uid types.UID, container string) []*api.ContainerDevices {
	if uid != "one" || container != "main" {
		return nil
	}
	return devices
}

func (facts) AllDevices() []*api.ContainerDevices { return devices }

func (facts) PinsOf(uid types.UID, container string) ([]int64, []*api.ContainerMemory) {
	if uid != "one" || container != "main" {
		return nil, nil
	}
	return []int64{2, 3}, []*api.ContainerMemory{{MemoryType: "memory", Size: 7}}
}

func (facts) AllPins() ([]int64, []*api.ContainerMemory) { return []int64{1, 2, 3}, nil }

func (facts) ClaimsOf(_ *corev1.Pod, container string) []*api.DynamicResource {
	if container != "main" {
		return nil
	}
	return []*api.DynamicResource{{ClaimName: "c", ClaimNamespace: "default"}}
}

// serve serves, and answers upstream's client.
func serve(t *testing.T, limit *rate.Limiter) api.PodResourcesListerClient {
	t.Helper()
	root, err := os.MkdirTemp("", "pods") //nolint:usetesting // paths of sockets are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	ctx, cancel := context.WithCancel(t.Context())
	s := &podresources.Server{Pods: facts{}, Devices: facts{}, Pins: facts{}, Claims: facts{}, Limit: limit}
	done := run.Go("server", func() error { return s.Run(ctx, root) })
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	conn, err := grpc.NewClient("unix://"+filepath.Join(root, podresources.Socket), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return api.NewPodResourcesListerClient(conn)
}

// TestUpstreamsClientIsTold what containers have, of pods that have not ended.
func TestUpstreamsClientIsTold(t *testing.T) {
	c := serve(t, nil)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	list, err := c.List(ctx, &api.ListPodResourcesRequest{}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	want := &api.PodResources{Name: "one", Namespace: "default", Containers: []*api.ContainerResources{{Name: "side"}, {
		Name: "main", Devices: devices, CpuIds: []int64{2, 3}, Memory: []*api.ContainerMemory{{MemoryType: "memory", Size: 7}},
		DynamicResources: []*api.DynamicResource{{ClaimName: "c", ClaimNamespace: "default"}},
	}}}
	if got := list.GetPodResources(); len(got) != 1 || !proto.Equal(got[0], want) {
		t.Errorf("%v", got)
	}
	one, err := c.Get(ctx, &api.GetPodResourcesRequest{PodNamespace: "default", PodName: "one"})
	if err != nil || !proto.Equal(one.GetPodResources(), want) {
		t.Errorf("%v, %v", one, err)
	}
	if _, err := c.Get(ctx, &api.GetPodResourcesRequest{PodNamespace: "default", PodName: "over"}); status.Code(err) != codes.NotFound {
		t.Errorf("a pod that has ended: %v", err)
	}
	all, err := c.GetAllocatableResources(ctx, &api.AllocatableResourcesRequest{})
	if err != nil || len(all.GetCpuIds()) != 3 || len(all.GetDevices()) != 1 {
		t.Errorf("%v, %v", all, err)
	}
}

// TestWhoAsksTooOftenIsTold.
func TestWhoAsksTooOftenIsTold(t *testing.T) {
	c := serve(t, rate.NewLimiter(0, 2))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for i, want := range []codes.Code{codes.OK, codes.OK, codes.ResourceExhausted} {
		if _, err := c.List(ctx, &api.ListPodResourcesRequest{}, grpc.WaitForReady(true)); status.Code(err) != want {
			t.Errorf("call %d: %v, want %s", i, err, want)
		}
	}
}
