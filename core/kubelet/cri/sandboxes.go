// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/run"
)

// socketTarget makes a gRPC target of an endpoint.
func socketTarget(endpoint string) (string, error) {
	path := strings.TrimPrefix(endpoint, "unix://")
	if !filepath.IsAbs(path) {
		return "", fmt.Errorf("the CRI endpoint %q is not the absolute path of a socket, such as /run/containerd/containerd.sock", endpoint)
	}
	return "unix://" + path, nil
}

// RunSandbox implements engine.Sandboxes.
func (e *Engine) RunSandbox(ctx context.Context, c *runtime.PodSandboxConfig, handler string) (string, error) {
	ctx, cancel := e.deadline(ctx, e.cfg.Timeout) // image of the sandbox and network plugins included
	defer cancel()
	r, err := e.runtime.RunPodSandbox(ctx, &runtime.RunPodSandboxRequest{Config: c, RuntimeHandler: handler})
	if err != nil {
		return "", explain(err, "run the sandbox of pod %s/%s", c.GetMetadata().GetNamespace(), c.GetMetadata().GetName())
	}
	return r.PodSandboxId, nil
}

// StopSandbox implements engine.Sandboxes.
func (e *Engine) StopSandbox(ctx context.Context, id string) error {
	ctx, cancel := e.deadline(ctx, 0)
	defer cancel()
	_, err := e.runtime.StopPodSandbox(ctx, &runtime.StopPodSandboxRequest{PodSandboxId: id})
	return forgiven(explain(err, "stop sandbox %s", short(id)))
}

// RemoveSandbox implements engine.Sandboxes.
func (e *Engine) RemoveSandbox(ctx context.Context, id string) error {
	ctx, cancel := e.deadline(ctx, 0)
	defer cancel()
	_, err := e.runtime.RemovePodSandbox(ctx, &runtime.RemovePodSandboxRequest{PodSandboxId: id})
	return forgiven(explain(err, "remove sandbox %s", short(id)))
}

// SandboxStatus implements engine.Sandboxes.
func (e *Engine) SandboxStatus(ctx context.Context, id string) (*runtime.PodSandboxStatus, error) {
	ctx, cancel := e.deadline(ctx, 0)
	defer cancel()
	r, err := e.runtime.PodSandboxStatus(ctx, &runtime.PodSandboxStatusRequest{PodSandboxId: id})
	if err != nil {
		return nil, explain(err, "look at sandbox %s", short(id))
	}
	if r.Status == nil || r.Status.Metadata == nil {
		return nil, fmt.Errorf("look at sandbox %s: the runtime answered no status", short(id))
	}
	return r.Status, nil
}

// ListSandboxes implements engine.Observer.
func (e *Engine) ListSandboxes(ctx context.Context) ([]*runtime.PodSandbox, error) {
	ctx, cancel := e.deadline(ctx, 0)
	defer cancel()
	r, err := e.runtime.ListPodSandbox(ctx, &runtime.ListPodSandboxRequest{})
	if err != nil {
		return nil, explain(err, "list sandboxes")
	}
	return r.Items, nil
}

// Stats implements engine.Observer. Where the runtime cannot measure one pod it
// fails for all (containerd does, for a sandbox without a cgroup parent); then the
// pods are asked for one by one, and those that cannot be measured left out.
func (e *Engine) Stats(ctx context.Context) ([]*runtime.PodSandboxStats, error) {
	ctx, cancel := e.deadline(ctx, 0)
	defer cancel()
	r, err := e.runtime.ListPodSandboxStats(ctx, &runtime.ListPodSandboxStatsRequest{})
	if err == nil {
		return r.Stats, nil
	}
	all := explain(err, "collect the pods' statistics")
	if errors.Is(all, ErrUnavailable) || errors.Is(all, ErrTimeout) {
		return nil, all
	}
	sandboxes, err := e.ListSandboxes(ctx)
	if err != nil {
		return nil, all
	}
	var stats []*runtime.PodSandboxStats
	for _, s := range sandboxes {
		one, err := e.runtime.PodSandboxStats(ctx, &runtime.PodSandboxStatsRequest{PodSandboxId: s.Id})
		if err == nil && one.Stats != nil {
			stats = append(stats, one.Stats)
		}
	}
	if len(stats) == 0 {
		return nil, all
	}
	return stats, nil
}

// Ready implements engine.Observer. The reason given is the runtime's own.
func (e *Engine) Ready(ctx context.Context) error {
	ctx, cancel := e.deadline(ctx, 0)
	defer cancel()
	r, err := e.runtime.Status(ctx, &runtime.StatusRequest{})
	if err != nil {
		return explain(err, "ask for the runtime's status")
	}
	var missing []error
	for _, name := range []string{runtime.RuntimeReady, runtime.NetworkReady} {
		missing = append(missing, condition(r.GetStatus().GetConditions(), name))
	}
	return errors.Join(missing...)
}

// Handlers implements engine.HandlerLister.
func (e *Engine) Handlers(ctx context.Context) ([]*runtime.RuntimeHandler, error) {
	ctx, cancel := e.deadline(ctx, 0)
	defer cancel()
	r, err := e.runtime.Status(ctx, &runtime.StatusRequest{})
	if err != nil {
		return nil, explain(err, "ask for the runtime's handlers")
	}
	return r.GetRuntimeHandlers(), nil
}

// Features implements engine.FeatureTeller.
func (e *Engine) Features(ctx context.Context) (*runtime.RuntimeFeatures, error) {
	ctx, cancel := e.deadline(ctx, 0)
	defer cancel()
	r, err := e.runtime.Status(ctx, &runtime.StatusRequest{})
	if err != nil {
		return nil, explain(err, "ask for the runtime's features")
	}
	return r.GetFeatures(), nil
}

// condition is nil when the named condition is true.
func condition(cs []*runtime.RuntimeCondition, name string) error {
	for _, c := range cs {
		if c.Type != name {
			continue
		}
		if c.Status {
			return nil
		}
		return fmt.Errorf("container runtime: %s=false reason:%s message:%s", name, c.Reason, c.Message)
	}
	return fmt.Errorf("container runtime: %s is not reported", name)
}

// Version implements engine.Observer.
func (e *Engine) Version(ctx context.Context) (name, version string, err error) {
	ctx, cancel := e.deadline(ctx, 0)
	defer cancel()
	r, err := e.runtime.Version(ctx, &runtime.VersionRequest{})
	if err != nil {
		return "", "", explain(err, "ask for the runtime's version")
	}
	return r.RuntimeName, r.RuntimeVersion, nil
}

// Events implements engine.Observer.
func (e *Engine) Events(ctx context.Context) (<-chan *runtime.ContainerEventResponse, error) {
	// The stream has no deadline, but cancelling must reach it when the first
	// message never comes.
	stream, err := e.runtime.GetContainerEvents(ctx, &runtime.GetEventsRequest{})
	if err != nil {
		return nil, explain(err, "subscribe to container events")
	}
	ch := make(chan *runtime.ContainerEventResponse, eventBuffer)
	run.Go("cri: container events", func() error { // ends with ctx
		defer close(ch)
		for {
			ev, err := stream.Recv()
			if err != nil {
				return err // the caller sees the closed channel and lists anew
			}
			select {
			case ch <- ev:
			case <-ctx.Done():
				return nil
			}
		}
	})
	return ch, nil
}

// short is an id as people know it.
func short(id string) string { return id[:min(len(id), 13)] }
