// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"fmt"
	"time"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// CreateContainer implements engine.Containers.
func (e *Engine) CreateContainer(ctx context.Context, sandbox string, c *runtime.ContainerConfig,
	s *runtime.PodSandboxConfig,
) (string, error) {
	ctx, cancel := e.deadline(ctx, 0)
	defer cancel()
	r, err := e.runtime.CreateContainer(ctx, &runtime.CreateContainerRequest{PodSandboxId: sandbox, Config: c, SandboxConfig: s})
	if err != nil {
		return "", explain(err, "create container %s", c.GetMetadata().GetName())
	}
	return r.ContainerId, nil
}

// StartContainer implements engine.Containers.
func (e *Engine) StartContainer(ctx context.Context, id string) error {
	ctx, cancel := e.deadline(ctx, 0)
	defer cancel()
	_, err := e.runtime.StartContainer(ctx, &runtime.StartContainerRequest{ContainerId: id})
	return explain(err, "start container %s", short(id))
}

// StopContainer implements engine.Containers.
func (e *Engine) StopContainer(ctx context.Context, id string, graceSeconds int64) error {
	ctx, cancel := e.deadline(ctx, time.Duration(graceSeconds)*time.Second)
	defer cancel()
	_, err := e.runtime.StopContainer(ctx, &runtime.StopContainerRequest{ContainerId: id, Timeout: graceSeconds})
	return forgiven(explain(err, "stop container %s", short(id)))
}

// RemoveContainer implements engine.Containers.
func (e *Engine) RemoveContainer(ctx context.Context, id string) error {
	ctx, cancel := e.deadline(ctx, 0)
	defer cancel()
	_, err := e.runtime.RemoveContainer(ctx, &runtime.RemoveContainerRequest{ContainerId: id})
	return forgiven(explain(err, "remove container %s", short(id)))
}

// ContainerStatus implements engine.Containers.
func (e *Engine) ContainerStatus(ctx context.Context, id string) (*runtime.ContainerStatus, error) {
	ctx, cancel := e.deadline(ctx, 0)
	defer cancel()
	r, err := e.runtime.ContainerStatus(ctx, &runtime.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		return nil, explain(err, "look at container %s", short(id))
	}
	if r.Status == nil || r.Status.Metadata == nil {
		return nil, fmt.Errorf("look at container %s: the runtime answered no status", short(id))
	}
	return r.Status, nil
}

// UpdateResources implements engine.Containers.
func (e *Engine) UpdateResources(ctx context.Context, id string, r *runtime.LinuxContainerResources) error {
	ctx, cancel := e.deadline(ctx, 0)
	defer cancel()
	_, err := e.runtime.UpdateContainerResources(ctx, &runtime.UpdateContainerResourcesRequest{ContainerId: id, Linux: r})
	return explain(err, "change the resources of container %s", short(id))
}

// ReopenLog implements engine.Containers.
func (e *Engine) ReopenLog(ctx context.Context, id string) error {
	ctx, cancel := e.deadline(ctx, 0)
	defer cancel()
	_, err := e.runtime.ReopenContainerLog(ctx, &runtime.ReopenContainerLogRequest{ContainerId: id})
	return explain(err, "reopen the log of container %s", short(id))
}

// Checkpoint implements engine.Checkpointer. What memory there is to write decides how long it takes.
func (e *Engine) Checkpoint(ctx context.Context, id, archive string, timeoutSeconds int64) error {
	ctx, cancel := e.deadline(ctx, time.Duration(timeoutSeconds)*time.Second)
	defer cancel()
	r := &runtime.CheckpointContainerRequest{ContainerId: id, Location: archive, Timeout: timeoutSeconds}
	_, err := e.runtime.CheckpointContainer(ctx, r)
	return explain(err, "write container %s to %s", short(id), archive)
}

// ListContainers implements engine.Observer.
func (e *Engine) ListContainers(ctx context.Context) ([]*runtime.Container, error) {
	ctx, cancel := e.deadline(ctx, 0)
	defer cancel()
	r, err := e.runtime.ListContainers(ctx, &runtime.ListContainersRequest{})
	if err != nil {
		return nil, explain(err, "list containers")
	}
	return r.Containers, nil
}

// ExecSync implements engine.Streams. A command that runs out of its time is an
// error of class ErrTimeout.
func (e *Engine) ExecSync(ctx context.Context, id string, cmd []string,
	timeoutSeconds int64,
) (stdout, stderr []byte, exitCode int32, err error) {
	// Without a limit of its own the command may run for as long as the caller waits.
	if timeoutSeconds > 0 {
		var cancel context.CancelFunc
		ctx, cancel = e.deadline(ctx, time.Duration(timeoutSeconds)*time.Second)
		defer cancel()
	}
	r, err := e.runtime.ExecSync(ctx, &runtime.ExecSyncRequest{ContainerId: id, Cmd: cmd, Timeout: timeoutSeconds})
	if err != nil {
		return nil, nil, 0, explain(err, "run %q in container %s", cmd, short(id))
	}
	return r.Stdout, r.Stderr, r.ExitCode, nil
}

// Exec implements engine.Streams.
func (e *Engine) Exec(ctx context.Context, r *runtime.ExecRequest) (string, error) {
	ctx, cancel := e.deadline(ctx, 0)
	defer cancel()
	answer, err := e.runtime.Exec(ctx, r)
	if err != nil {
		return "", explain(err, "prepare to run %q in container %s", r.GetCmd(), short(r.GetContainerId()))
	}
	return answer.Url, nil
}

// Attach implements engine.Streams.
func (e *Engine) Attach(ctx context.Context, r *runtime.AttachRequest) (string, error) {
	ctx, cancel := e.deadline(ctx, 0)
	defer cancel()
	answer, err := e.runtime.Attach(ctx, r)
	if err != nil {
		return "", explain(err, "prepare to attach to container %s", short(r.GetContainerId()))
	}
	return answer.Url, nil
}

// PortForward implements engine.Streams.
func (e *Engine) PortForward(ctx context.Context, r *runtime.PortForwardRequest) (string, error) {
	ctx, cancel := e.deadline(ctx, 0)
	defer cancel()
	answer, err := e.runtime.PortForward(ctx, r)
	if err != nil {
		return "", explain(err, "prepare to forward ports of sandbox %s", short(r.GetPodSandboxId()))
	}
	return answer.Url, nil
}
