// SPDX-License-Identifier: Apache-2.0

// Package podimage makes the images present that the containers of a node's pods run
// or mount, with the credentials that the pod names and those of the node's providers.
//
// It guarantees that a user sees in the pod's events what was pulled, and which
// credentials could not be used; a pull is tried without those.
package podimage

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/engine"
	"github.com/wasmplane/wasmplane/core/kubelet/podevents"
	"github.com/wasmplane/wasmplane/core/kubelet/pull"
	"github.com/wasmplane/wasmplane/core/kubelet/spec"
)

// Credentials answers what pulling a pod's image needs. An error comes with what there is all the same.
type Credentials interface {
	For(ctx context.Context, p *corev1.Pod, image string) (*pull.Keyring, error)
}

// Images of one node.
type Images struct {
	Engine      engine.Engine
	Puller      *pull.Puller
	Objects     spec.Objects // has the secrets that pods name
	Credentials Credentials  // of images that the pods' secrets do not have; nil: none
	Events      *podevents.Recorder
	Log         *slog.Logger
}

// Request for an image that one of a pod's containers needs.
type Request struct {
	Pod       *corev1.Pod
	Container string
	Image     string
	Policy    corev1.PullPolicy
	Sandbox   *cri.PodSandboxConfig
	Handler   string // of the pod's RuntimeClass
}

// Ensure makes an image present, and answers by which reference the runtime knows it.
func (i *Images) Ensure(ctx context.Context, r Request) (string, error) {
	return i.Puller.Ensure(ctx, pull.Request{
		Image: r.Image, Policy: r.Policy, Annotations: r.Pod.Annotations, Sandbox: r.Sandbox, Handler: r.Handler,
		Credentials: func(ctx context.Context) *pull.Keyring { return i.keyring(ctx, r.Pod, r.Image) },
		Tell:        func(kind, reason, msg string) { i.Events.Event(r.Pod, r.Container, kind, reason, msg) },
	})
}

// keyring holds the credentials that a pod names, and after them those of the node's providers.
func (i *Images) keyring(ctx context.Context, p *corev1.Pod, image string) *pull.Keyring {
	ring := &pull.Keyring{}
	var missing []string
	for _, ref := range p.Spec.ImagePullSecrets {
		if ref.Name == "" {
			continue
		}
		s, err := i.Objects.Secret(ctx, p.Namespace, ref.Name)
		if err == nil {
			err = ring.AddSecret(s)
		}
		if err != nil {
			i.Log.WarnContext(ctx, "an image pull secret cannot be used", "kind", "Pod", "namespace", p.Namespace, "name", p.Name,
				"secret", ref.Name, "error", err)
			missing = append(missing, ref.Name)
		}
	}
	if len(missing) > 0 {
		i.Events.Event(p, "", corev1.EventTypeWarning, "FailedToRetrieveImagePullSecret",
			fmt.Sprintf("Unable to retrieve some image pull secrets (%s); attempting to pull the image may not succeed.", strings.Join(missing, ", ")))
	}
	if i.Credentials != nil {
		var err error
		if ring.Next, err = i.Credentials.For(ctx, p, image); err != nil && ctx.Err() == nil {
			i.Log.WarnContext(ctx, "an image's credentials cannot be provided", "kind", "Pod", "namespace", p.Namespace, "name", p.Name, "error",
				err)
			i.Events.Event(p, "", corev1.EventTypeWarning, "FailedToRetrieveImageCredentials",
				fmt.Sprintf("Unable to retrieve credentials for image %q; attempting to pull it may not succeed: %v", image, err))
		}
	}
	return ring
}

// Volumes makes the images present that a container mounts. What the request says of an image is not looked at.
func (i *Images) Volumes(ctx context.Context, r Request, mounts []*cri.Mount) error {
	policies := map[string]corev1.PullPolicy{}
	for n := range r.Pod.Spec.Volumes {
		if img := r.Pod.Spec.Volumes[n].Image; img != nil {
			policies[img.Reference] = img.PullPolicy
		}
	}
	for _, m := range mounts {
		if m.Image == nil {
			continue
		}
		r.Image, r.Policy = m.Image.Image, policies[m.Image.Image]
		ref, err := i.Ensure(ctx, r)
		if err != nil {
			return fmt.Errorf("failed to get image for volume mounted at %s: %w", m.ContainerPath, err)
		}
		m.Image = &cri.ImageSpec{Image: ref}
	}
	return nil
}

// Inspect is what the engine tells of an image: its configuration too, where it can.
func (i *Images) Inspect(ctx context.Context, ref string) (*cri.Image, *engine.ImageConfig, error) {
	if e, ok := i.Engine.(engine.ImageInspector); ok {
		return e.InspectImage(ctx, &cri.ImageSpec{Image: ref})
	}
	image, err := i.Engine.ImageStatus(ctx, &cri.ImageSpec{Image: ref})
	return image, nil, err
}
