// SPDX-License-Identifier: Apache-2.0

// Package imagereview is the ImagePolicyWebhook plugin: it asks a service, by an
// ImageReview, whether the images of a pod may run. Answers are kept for as long as
// the settings say.
package imagereview

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	imagepolicyv1alpha1 "k8s.io/api/imagepolicy/v1alpha1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/cache"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/pluginconfig"
	"github.com/wasmplane/wasmplane/core/admission/reading"
	"github.com/wasmplane/wasmplane/core/dial"
)

// Name of the plugin.
const Name = "ImagePolicyWebhook"

const (
	auditPrefix   = "imagepolicywebhook.image-policy.k8s.io/"
	annotationKey = ".image-policy.k8s.io/"
)

// Plugin asks a service whether a pod's images may run.
type Plugin struct {
	settings *pluginconfig.ImagePolicy
	webhook  *webhookutil.GenericWebhook
	answers  *cache.LRUExpireCache
}

// New makes the plugin; settings are needed. It dials only where the policy lets it.
func New(settings *pluginconfig.ImagePolicy, to dial.Policy) (*Plugin, error) {
	if settings == nil {
		return nil, fmt.Errorf("%s: it is enabled, but apiserver.admissionConfigFile has no configuration of it", Name)
	}
	config, err := webhookutil.LoadKubeconfig(settings.KubeConfigFile, to.Context())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", Name, err)
	}
	config.Wrap(dial.Webhook(1 << 20))
	scheme := runtime.NewScheme()
	utilruntime.Must(imagepolicyv1alpha1.AddToScheme(scheme)) // it fails by a mistake of ours alone
	hook, err := webhookutil.NewGenericWebhook(scheme, serializer.NewCodecFactory(scheme), config,
		[]schema.GroupVersion{imagepolicyv1alpha1.SchemeGroupVersion}, webhookutil.DefaultRetryBackoffWithInitialDelay(settings.RetryBackoff))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", Name, err)
	}
	return &Plugin{settings, hook, cache.NewLRUExpireCache(1024)}, nil
}

// Name of the plugin.
func (*Plugin) Name() string { return Name }

// Handles writes of pods, and of their ephemeral containers.
func (*Plugin) Handles(r *admission.Request) bool {
	return reading.On("", "pods", "", admission.Create, admission.Update).Handles(r) ||
		reading.On("", "pods", "ephemeralcontainers", admission.Create, admission.Update).Handles(r)
}

// Validate refuses the pod if the service does, or does not answer.
func (p *Plugin) Validate(ctx context.Context, r *admission.Request) error {
	pod, err := reading.Typed[*corev1.Pod](r.Object)
	if err != nil {
		return err
	}
	review := &imagepolicyv1alpha1.ImageReview{Spec: imagepolicyv1alpha1.ImageReviewSpec{
		Namespace: r.Namespace, Annotations: map[string]string{}, Containers: reviewed(pod, r.Subresource),
	}}
	for k, v := range pod.Annotations {
		if strings.Contains(k, annotationKey) {
			review.Spec.Annotations[k] = v
		}
	}
	if err := p.ask(ctx, review); err != nil {
		if !p.settings.DefaultAllow {
			return admission.Forbidden(r, err)
		}
		r.Annotate(auditPrefix+"failed-open", "true")
		return nil
	}
	for k, v := range review.Status.AuditAnnotations {
		r.Annotate(auditPrefix+k, v)
	}
	switch {
	case review.Status.Allowed:
		return nil
	case review.Status.Reason != "":
		return admission.Forbidden(r, fmt.Errorf("image policy webhook backend denied one or more images: %s", review.Status.Reason))
	}
	return admission.Forbidden(r, errors.New("one or more images rejected by webhook backend"))
}

// reviewed are the containers that a request is about.
func reviewed(pod *corev1.Pod, subresource string) (out []imagepolicyv1alpha1.ImageReviewContainerSpec) {
	add := func(image string) {
		out = append(out, imagepolicyv1alpha1.ImageReviewContainerSpec{Image: image})
	}
	if subresource != "" {
		for _, c := range pod.Spec.EphemeralContainers {
			add(c.Image)
		}
		return out
	}
	for _, c := range pod.Spec.Containers {
		add(c.Image)
	}
	for _, c := range pod.Spec.InitContainers {
		add(c.Image)
	}
	return out
}

// ask fills in the answer: one that is remembered, or a new one.
func (p *Plugin) ask(ctx context.Context, review *imagepolicyv1alpha1.ImageReview) error {
	spec, err := json.Marshal(review.Spec)
	if err != nil {
		return err
	}
	if known, ok := p.answers.Get(string(spec)); ok {
		review.Status = known.(imagepolicyv1alpha1.ImageReviewStatus)
		return nil
	}
	result := p.webhook.WithExponentialBackoff(ctx, func() rest.Result { return p.webhook.RestClient.Post().Body(review).Do(ctx) })
	if err := result.Error(); err != nil {
		return err
	}
	var code int
	if result.StatusCode(&code); code < http.StatusOK || code >= http.StatusMultipleChoices {
		return fmt.Errorf("Error contacting webhook: %d", code) //nolint:staticcheck // upstream's words
	}
	if err := result.Into(review); err != nil {
		return err
	}
	ttl := p.settings.DenyTTL
	if review.Status.Allowed {
		ttl = p.settings.AllowTTL
	}
	if ttl > 0 {
		p.answers.Add(string(spec), review.Status, min(ttl, 30*time.Minute))
	}
	return nil
}
