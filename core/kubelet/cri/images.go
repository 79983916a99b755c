// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"encoding/json"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/engine"
)

// PullImage implements engine.Images.
func (e *Engine) PullImage(ctx context.Context, spec *runtime.ImageSpec, auth *runtime.AuthConfig,
	s *runtime.PodSandboxConfig,
) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, e.cfg.PullTimeout)
	defer cancel()
	r, err := e.images.PullImage(ctx, &runtime.PullImageRequest{Image: spec, Auth: auth, SandboxConfig: s})
	if err != nil {
		return "", explain(err, "pull image %q", spec.GetImage())
	}
	return r.ImageRef, nil
}

// ImageStatus implements engine.Images.
func (e *Engine) ImageStatus(ctx context.Context, spec *runtime.ImageSpec) (*runtime.Image, error) {
	ctx, cancel := e.deadline(ctx, 0)
	defer cancel()
	r, err := e.images.ImageStatus(ctx, &runtime.ImageStatusRequest{Image: spec})
	if err != nil {
		return nil, forgiven(explain(err, "look for image %q", spec.GetImage()))
	}
	return r.Image, nil
}

// InspectImage implements engine.ImageInspector. What a runtime says of an image is its own; what is not of
// the form that containerd and CRI-O use tells nothing.
func (e *Engine) InspectImage(ctx context.Context, spec *runtime.ImageSpec) (*runtime.Image, *engine.ImageConfig, error) {
	ctx, cancel := e.deadline(ctx, 0)
	defer cancel()
	r, err := e.images.ImageStatus(ctx, &runtime.ImageStatusRequest{Image: spec, Verbose: true})
	if err != nil {
		return nil, nil, forgiven(explain(err, "look for image %q", spec.GetImage()))
	}
	var info struct {
		ImageSpec engine.ImageConfig `json:"imageSpec"`
	}
	if json.Unmarshal([]byte(r.GetInfo()["info"]), &info) != nil {
		return r.Image, &engine.ImageConfig{}, nil
	}
	return r.Image, &info.ImageSpec, nil
}

// ListImages implements engine.Images.
func (e *Engine) ListImages(ctx context.Context) ([]*runtime.Image, error) {
	ctx, cancel := e.deadline(ctx, 0)
	defer cancel()
	r, err := e.images.ListImages(ctx, &runtime.ListImagesRequest{})
	if err != nil {
		return nil, explain(err, "list images")
	}
	return r.Images, nil
}

// RemoveImage implements engine.Images.
func (e *Engine) RemoveImage(ctx context.Context, spec *runtime.ImageSpec) error {
	ctx, cancel := e.deadline(ctx, 0)
	defer cancel()
	_, err := e.images.RemoveImage(ctx, &runtime.RemoveImageRequest{Image: spec})
	return forgiven(explain(err, "remove image %q", spec.GetImage()))
}
