// SPDX-License-Identifier: Apache-2.0

// Package pull makes images present on a node: by the container's pull policy,
// with the credentials that its pod names, a bounded number at a time, telling
// the pod's readers what happens in upstream's words. When to try again is the
// pod's own affair.
package pull

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/distribution/reference"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/engine"
)

// Reasons why a container waits for its image.
const (
	ErrImagePull        = "ErrImagePull"
	ErrImageNeverPull   = "ErrImageNeverPull"
	ErrImageInspect     = "ImageInspectError"
	ErrInvalidImageName = "InvalidImageName"
)

// Failure is why an image is not present.
type Failure struct{ Reason, Message string }

func (f *Failure) Error() string { return f.Reason + ": " + f.Message }

// Request for an image.
type Request struct {
	Image   string
	Policy  corev1.PullPolicy
	Handler string
	// Pod annotations go along to the runtime.
	Annotations map[string]string
	Sandbox     *cri.PodSandboxConfig
	// Credentials are looked up only if a pull is needed.
	Credentials func(ctx context.Context) *Keyring
	// Tell is called with what happens: event type, reason, message.
	Tell func(kind, reason, message string)
}

// Puller pulls images for the pods of a node.
type Puller struct {
	images engine.Images
	slots  chan struct{}
}

// New pulls at most parallel images at a time (5 if zero).
func New(images engine.Images, parallel int) *Puller {
	if parallel <= 0 {
		parallel = 5
	}
	return &Puller{images: images, slots: make(chan struct{}, parallel)}
}

// Ensure makes an image present and answers the reference to create a container from.
func (p *Puller) Ensure(ctx context.Context, r Request) (ref string, err error) {
	name, err := withTag(r.Image)
	if err != nil {
		msg := fmt.Sprintf("Failed to apply default image tag %q: %v", r.Image, err)
		r.Tell(corev1.EventTypeWarning, "InspectFailed", msg)
		return "", &Failure{ErrInvalidImageName, msg}
	}
	spec := &cri.ImageSpec{Image: name, UserSpecifiedImage: r.Image, RuntimeHandler: r.Handler, Annotations: r.Annotations}
	if r.Policy != corev1.PullAlways {
		have, err := p.images.ImageStatus(ctx, spec)
		if err != nil {
			msg := fmt.Sprintf("Failed to inspect image %q: %v", r.Image, plain(err))
			r.Tell(corev1.EventTypeWarning, "InspectFailed", msg)
			return "", &Failure{ErrImageInspect, msg}
		}
		if have != nil {
			r.Tell(corev1.EventTypeNormal, "Pulled", fmt.Sprintf("Container image %q already present on machine", r.Image))
			return have.Id, nil
		}
		if r.Policy == corev1.PullNever {
			msg := fmt.Sprintf("Container image %q is not present with pull policy of Never", r.Image)
			r.Tell(corev1.EventTypeWarning, "ErrImageNeverPull", msg)
			return "", &Failure{ErrImageNeverPull, msg}
		}
	}
	return p.pull(ctx, spec, r)
}

func (p *Puller) pull(ctx context.Context, spec *cri.ImageSpec, r Request) (string, error) {
	r.Tell(corev1.EventTypeNormal, "Pulling", fmt.Sprintf("Pulling image %q", r.Image))
	asked := time.Now()
	select {
	case p.slots <- struct{}{}:
		defer func() { <-p.slots }()
	case <-ctx.Done():
		return "", &Failure{ErrImagePull, ctx.Err().Error()}
	}
	began := time.Now()
	auths := []*cri.AuthConfig{nil}
	if r.Credentials != nil {
		if keyring := r.Credentials(ctx); keyring != nil {
			if found := keyring.Lookup(spec.Image); len(found) > 0 {
				auths = found
			}
		}
	}
	var errs []string
	for _, auth := range auths {
		ref, err := p.images.PullImage(ctx, spec, auth, r.Sandbox)
		if err == nil {
			took := time.Since(began).Truncate(time.Millisecond)
			r.Tell(corev1.EventTypeNormal, "Pulled", fmt.Sprintf("Successfully pulled image %q in %v (%v including waiting). Image size: %v bytes.",
				r.Image, took, time.Since(asked).Truncate(time.Millisecond), p.size(ctx, ref)))
			return ref, nil
		}
		errs = append(errs, plain(err))
	}
	msg := strings.Join(errs, "; ")
	r.Tell(corev1.EventTypeWarning, "Failed", fmt.Sprintf("Failed to pull image %q: %v", r.Image, msg))
	return "", classify(r.Image, msg)
}

func (p *Puller) size(ctx context.Context, ref string) uint64 {
	img, err := p.images.ImageStatus(ctx, &cri.ImageSpec{Image: ref})
	if err != nil || img == nil {
		return 0
	}
	return img.Size
}

// classify picks out the causes that the CRI gives names.
func classify(image, msg string) *Failure {
	for name, why := range map[string]string{
		"RegistryUnavailable":       "the registry is unavailable",
		"SignatureValidationFailed": "the signature validation failed",
	} {
		if rest, ok := strings.CutPrefix(msg, name); ok {
			return &Failure{name, fmt.Sprintf("image pull failed for %s because %s%s", image, why, rest)}
		}
	}
	return &Failure{ErrImagePull, msg}
}

// plain is the message of a runtime's error without gRPC's frame around it.
func plain(err error) string {
	if s, ok := status.FromError(err); ok {
		return s.Message()
	}
	return err.Error()
}

// withTag writes an image name out in full: with its registry, and "latest" if it has no tag.
func withTag(image string) (string, error) {
	named, err := reference.ParseDockerRef(image)
	if err != nil {
		return "", fmt.Errorf("couldn't parse image name %q: %w", image, err)
	}
	return named.String(), nil
}
