// SPDX-License-Identifier: Apache-2.0

package nodetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/engine"
)

// FloorConfig says which pods a Floor runs.
type FloorConfig struct {
	Image  string // its default command runs until it is stopped; it must be there
	Pods   int    // how many in all
	AtOnce int    // how many at the same time; 1 when zero
	// CgroupParent of the pods, each below it by its number.
	CgroupParent string
	LogDir       string
}

// FloorResult is what the pods took.
type FloorResult struct {
	// Running is, for each pod, the time from the first call to its container
	// running, sorted.
	Running []time.Duration
	// Wall is the time until the last one ran.
	Wall time.Duration
	// Sandbox, Create and Start are the three calls' times, sorted.
	Sandbox, Create, Start []time.Duration
}

// Median of sorted durations.
func Median(ds []time.Duration) time.Duration {
	if len(ds) == 0 {
		return 0
	}
	return ds[len(ds)/2]
}

// Floor measures raw CRI calls, with no API and no kubelet above them: what no pod
// can be faster than. The pods are removed before it returns.
func Floor(ctx context.Context, e engine.Engine, cfg FloorConfig) (r FloorResult, err error) {
	cfg.AtOnce = max(cfg.AtOnce, 1)
	var (
		mu        sync.Mutex
		sandboxes []string
		slots     = make(chan struct{}, cfg.AtOnce)
		wg        sync.WaitGroup
		errs      []error
	)
	defer func() {
		// Also when the measurement was called off.
		ctx := context.WithoutCancel(ctx)
		for _, id := range sandboxes {
			stopped := e.StopSandbox(ctx, id)
			if stopped == nil {
				stopped = e.RemoveSandbox(ctx, id)
			}
			err = errors.Join(err, stopped)
		}
	}()
	began := time.Now()
	for i := range cfg.Pods {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			one, id, err := floorPod(ctx, e, cfg, i)
			mu.Lock()
			defer mu.Unlock()
			if id != "" {
				sandboxes = append(sandboxes, id)
			}
			if err != nil {
				errs = append(errs, err)
				return
			}
			r.Sandbox, r.Create, r.Start = append(r.Sandbox, one[0]), append(r.Create, one[1]), append(r.Start, one[2])
			r.Running = append(r.Running, one[0]+one[1]+one[2])
			r.Wall = time.Since(began)
		})
	}
	wg.Wait()
	for _, ds := range [][]time.Duration{r.Running, r.Sandbox, r.Create, r.Start} {
		slices.Sort(ds)
	}
	return r, errors.Join(errs...)
}

// floorPod runs one pod and answers the times of its three calls.
func floorPod(ctx context.Context, e engine.Engine, cfg FloorConfig, i int) (took [3]time.Duration, sandbox string, err error) {
	name := fmt.Sprintf("floor-%d-%d", time.Now().UnixNano(), i)
	pod := &runtime.PodSandboxConfig{
		Metadata: &runtime.PodSandboxMetadata{Name: name, Namespace: "floor", Uid: name},
		Hostname: "floor",
		Linux: &runtime.LinuxPodSandboxConfig{SecurityContext: &runtime.LinuxSandboxSecurityContext{
			NamespaceOptions: &runtime.NamespaceOption{Pid: runtime.NamespaceMode_CONTAINER},
		}},
	}
	if cfg.CgroupParent != "" {
		pod.Linux.CgroupParent = cfg.CgroupParent + "/" + name
	}
	container := &runtime.ContainerConfig{
		Metadata: &runtime.ContainerMetadata{Name: "main"},
		Image:    &runtime.ImageSpec{Image: cfg.Image},
		Linux: &runtime.LinuxContainerConfig{SecurityContext: &runtime.LinuxContainerSecurityContext{
			NamespaceOptions: &runtime.NamespaceOption{Pid: runtime.NamespaceMode_CONTAINER},
			Seccomp:          &runtime.SecurityProfile{ProfileType: runtime.SecurityProfile_RuntimeDefault},
		}},
	}
	if cfg.LogDir != "" {
		pod.LogDirectory, container.LogPath = cfg.LogDir+"/"+name, "main.log"
	}
	began := time.Now()
	lap := func(i int) {
		now := time.Now()
		took[i], began = now.Sub(began), now
	}
	if sandbox, err = e.RunSandbox(ctx, pod, ""); err != nil {
		return took, "", err
	}
	lap(0)
	id, err := e.CreateContainer(ctx, sandbox, container, pod)
	if err != nil {
		return took, sandbox, err
	}
	lap(1)
	if err := e.StartContainer(ctx, id); err != nil {
		return took, sandbox, err
	}
	lap(2)
	return took, sandbox, nil
}
