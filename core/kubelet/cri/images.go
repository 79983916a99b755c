// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
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
