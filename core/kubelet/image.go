// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/engine"
	"github.com/wasmplane/wasmplane/core/kubelet/pod"
	"github.com/wasmplane/wasmplane/core/kubelet/pull"
	"github.com/wasmplane/wasmplane/core/kubelet/spec"
)

func (w *worker) pull(ctx context.Context, p *corev1.Pod, a pod.Pull) pod.Done {
	c, _ := pod.Find(p, a.Container)
	if c == nil {
		return pod.Done{Err: errors.New("no such container")}
	}
	ctx, span := w.span(ctx, "image", p, attribute.String("k8s.container.name", c.Name), attribute.String("container.image.name", c.Image))
	ref, err := w.ensure(ctx, p, c.Name, c.Image, c.ImagePullPolicy)
	end(span, err)
	if err == nil {
		return pod.Done{Image: ref}
	}
	var f *pull.Failure
	if !errors.As(err, &f) {
		f = &pull.Failure{Reason: pull.ErrImagePull, Message: err.Error()}
	}
	if ctx.Err() == nil {
		w.event(p, c.Name, corev1.EventTypeWarning, "Failed", "Error: "+f.Reason)
	}
	return pod.Done{Err: err, Reason: f.Reason, Message: f.Message}
}

// ensure makes an image present for one of the pod's containers.
func (w *worker) ensure(ctx context.Context, p *corev1.Pod, containerName, image string, policy corev1.PullPolicy) (string, error) {
	sandbox, err := spec.Sandbox(p, 0, w.at(), w.cluster())
	if err != nil {
		return "", err
	}
	handler, err := w.runtimeHandler(ctx, p)
	if err != nil {
		return "", err
	}
	return w.puller.Ensure(ctx, pull.Request{
		Image: image, Policy: policy, Annotations: p.Annotations, Sandbox: sandbox, Handler: handler,
		Credentials: func(ctx context.Context) *pull.Keyring { return w.keyring(ctx, p, image) },
		Tell:        func(kind, reason, msg string) { w.event(p, containerName, kind, reason, msg) },
	})
}

// keyring holds the credentials that a pod names, and after them those of the node's providers.
func (k *parts) keyring(ctx context.Context, p *corev1.Pod, image string) *pull.Keyring {
	ring := &pull.Keyring{}
	var missing []string
	for _, ref := range p.Spec.ImagePullSecrets {
		if ref.Name == "" {
			continue
		}
		s, err := k.cfg.Objects.Secret(ctx, p.Namespace, ref.Name)
		if err == nil {
			err = ring.AddSecret(s)
		}
		if err != nil {
			k.log.WarnContext(ctx, "an image pull secret cannot be used", "kind", "Pod", "namespace", p.Namespace, "name", p.Name,
				"secret", ref.Name, "error", err)
			missing = append(missing, ref.Name)
		}
	}
	if len(missing) > 0 {
		k.event(p, "", corev1.EventTypeWarning, "FailedToRetrieveImagePullSecret",
			fmt.Sprintf("Unable to retrieve some image pull secrets (%s); attempting to pull the image may not succeed.", strings.Join(missing, ", ")))
	}
	if k.cfg.Credentials != nil {
		var err error
		if ring.Next, err = k.cfg.Credentials.For(ctx, p, image); err != nil && ctx.Err() == nil {
			k.log.WarnContext(ctx, "an image's credentials cannot be provided", "kind", "Pod", "namespace", p.Namespace, "name", p.Name, "error",
				err)
			k.event(p, "", corev1.EventTypeWarning, "FailedToRetrieveImageCredentials",
				fmt.Sprintf("Unable to retrieve credentials for image %q; attempting to pull it may not succeed: %v", image, err))
		}
	}
	return ring
}

// imageVolumes makes the images present that a container mounts.
func (w *worker) imageVolumes(ctx context.Context, p *corev1.Pod, c *corev1.Container, mounts []*cri.Mount) error {
	policies := map[string]corev1.PullPolicy{}
	for i := range p.Spec.Volumes {
		if img := p.Spec.Volumes[i].Image; img != nil {
			policies[img.Reference] = img.PullPolicy
		}
	}
	for _, m := range mounts {
		if m.Image == nil {
			continue
		}
		ref, err := w.ensure(ctx, p, c.Name, m.Image.Image, policies[m.Image.Image])
		if err != nil {
			return fmt.Errorf("failed to get image for volume mounted at %s: %w", m.ContainerPath, err)
		}
		m.Image = &cri.ImageSpec{Image: ref}
	}
	return nil
}

// inspectImage is what the engine tells of an image: its configuration too, where it can.
func (k *parts) inspectImage(ctx context.Context, ref string) (*cri.Image, *engine.ImageConfig, error) {
	if e, ok := k.cfg.Engine.(engine.ImageInspector); ok {
		return e.InspectImage(ctx, &cri.ImageSpec{Image: ref})
	}
	image, err := k.cfg.Engine.ImageStatus(ctx, &cri.ImageSpec{Image: ref})
	return image, nil, err
}
