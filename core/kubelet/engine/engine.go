// SPDX-License-Identifier: Apache-2.0

// Package engine is the contract between the kubelet and what runs containers:
// the CRI, cut into small interfaces. The messages are CRI's own, so that any
// CRI runtime is one thin adapter away; the simulated engine implements the same
// and passes the same suite.
package engine

import (
	"context"
	"io"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Sandboxes runs pod sandboxes: a network namespace and what holds it.
type Sandboxes interface {
	RunSandbox(ctx context.Context, c *cri.PodSandboxConfig, runtimeHandler string) (id string, err error)
	// StopSandbox kills the containers that still run and tears the network down; idempotent.
	StopSandbox(ctx context.Context, id string) error
	// RemoveSandbox removes a sandbox and its containers; idempotent.
	RemoveSandbox(ctx context.Context, id string) error
	SandboxStatus(ctx context.Context, id string) (*cri.PodSandboxStatus, error)
}

// Containers runs containers in a sandbox.
type Containers interface {
	CreateContainer(ctx context.Context, sandbox string, c *cri.ContainerConfig, s *cri.PodSandboxConfig) (id string, err error)
	StartContainer(ctx context.Context, id string) error
	// StopContainer sends the stop signal, and KILL after graceSeconds; idempotent.
	StopContainer(ctx context.Context, id string, graceSeconds int64) error
	RemoveContainer(ctx context.Context, id string) error
	ContainerStatus(ctx context.Context, id string) (*cri.ContainerStatus, error)
	UpdateResources(ctx context.Context, id string, r *cri.LinuxContainerResources) error
	ReopenLog(ctx context.Context, id string) error
}

// Images holds images.
type Images interface {
	PullImage(ctx context.Context, spec *cri.ImageSpec, auth *cri.AuthConfig, s *cri.PodSandboxConfig) (ref string, err error)
	// ImageStatus answers nil, nil for an image that is not there.
	ImageStatus(ctx context.Context, spec *cri.ImageSpec) (*cri.Image, error)
	ListImages(ctx context.Context) ([]*cri.Image, error)
	RemoveImage(ctx context.Context, spec *cri.ImageSpec) error
}

// Observer tells what is there.
type Observer interface {
	ListSandboxes(ctx context.Context) ([]*cri.PodSandbox, error)
	ListContainers(ctx context.Context) ([]*cri.Container, error)
	// Events delivers container events until ctx ends; the channel is closed when
	// the connection is lost, and the caller lists afresh and calls again.
	Events(ctx context.Context) (<-chan *cri.ContainerEventResponse, error)
	Stats(ctx context.Context) ([]*cri.PodSandboxStats, error)
	// Ready is nil when the runtime and its network are ready; else the reason.
	Ready(ctx context.Context) error
	Version(ctx context.Context) (name, version string, err error)
}

// Streams runs commands in containers and forwards ports. The URLs that Exec,
// Attach and PortForward answer speak the kubelet streaming protocols.
type Streams interface {
	ExecSync(ctx context.Context, id string, cmd []string, timeoutSeconds int64) (stdout, stderr []byte, exitCode int32, err error)
	Exec(ctx context.Context, r *cri.ExecRequest) (url string, err error)
	Attach(ctx context.Context, r *cri.AttachRequest) (url string, err error)
	PortForward(ctx context.Context, r *cri.PortForwardRequest) (url string, err error)
}

// Engine is all of it.
type Engine interface {
	Sandboxes
	Containers
	Images
	Observer
	Streams
}

// ImageInspector is an optional power of an Engine: to tell what an image says of how it
// is run, beside its status.
type ImageInspector interface {
	// InspectImage answers nil, nil for an image that is not there.
	InspectImage(ctx context.Context, spec *cri.ImageSpec) (*cri.Image, *ImageConfig, error)
}

// ImageConfig is what an image says of how it is run.
type ImageConfig struct {
	OS           string `json:"os"`
	Architecture string `json:"architecture"`
	Config       struct {
		Entrypoint, Cmd []string
		Labels          map[string]string
	} `json:"config"`
}

// HandlerLister is an optional power of an Engine: to tell which handlers a RuntimeClass may name.
type HandlerLister interface {
	Handlers(ctx context.Context) ([]*cri.RuntimeHandler, error)
}

// FeatureTeller is an optional power of an Engine: to tell what the runtime can do with whatever handler; nil: it does not say.
type FeatureTeller interface {
	Features(ctx context.Context) (*cri.RuntimeFeatures, error)
}

// Checkpointer is an optional power of an Engine: to write a running container to an archive, from which it could go on.
type Checkpointer interface {
	// Checkpoint takes as long as the runtime lets it for timeoutSeconds of 0.
	Checkpoint(ctx context.Context, id, archive string, timeoutSeconds int64) error
}

// LogReader is an optional power of an Engine that keeps logs itself: the rest
// writes them where the sandbox's LogDirectory says. The reader's lines are in
// the CRI's log format.
type LogReader interface {
	Logs(ctx context.Context, id string) (io.ReadCloser, error)
}
