// SPDX-License-Identifier: Apache-2.0

package builtin

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
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/pluginconfig"
	"github.com/wasmplane/wasmplane/core/admission/reading"
	"github.com/wasmplane/wasmplane/core/dial"
)

// alwaysPullImages has every image pulled with the pod's own credentials: on a
// shared node a pod must not run a private image because another one had it pulled.
type alwaysPullImages struct{}

func (alwaysPullImages) Name() string { return alwaysPullImagesName }

func (alwaysPullImages) Handles(r *admission.Request) bool {
	return reading.On("", "pods", "", admission.Create, admission.Update).Handles(r)
}

func (alwaysPullImages) Mutate(_ context.Context, r *admission.Request) error {
	given, err := reading.Typed[*corev1.Pod](r.Object)
	if err != nil || noNewImages(r, given) {
		return err
	}
	pod := reading.Copied(given)
	visitContainers(pod, func(_ *field.Path, _ string, policy *corev1.PullPolicy) { *policy = corev1.PullAlways })
	for _, v := range pod.Spec.Volumes {
		if v.Image != nil {
			v.Image.PullPolicy = corev1.PullAlways
		}
	}
	reading.SetIfChanged(r, given, pod)
	return nil
}

func (alwaysPullImages) Validate(_ context.Context, r *admission.Request) error {
	given, err := reading.Typed[*corev1.Pod](r.Object)
	if err != nil || noNewImages(r, given) {
		return err
	}
	var wrong []error
	refuse := func(at *field.Path, policy corev1.PullPolicy) {
		if policy != corev1.PullAlways {
			wrong = append(wrong, admission.Forbidden(r, field.NotSupported(at, policy, []string{string(corev1.PullAlways)})))
		}
	}
	visitContainers(given, func(at *field.Path, _ string, policy *corev1.PullPolicy) {
		refuse(at.Child("imagePullPolicy"), *policy)
	})
	for i, v := range given.Spec.Volumes {
		if v.Image != nil {
			refuse(field.NewPath("spec", "volumes").Index(i).Child("image", "pullPolicy"), v.Image.PullPolicy)
		}
	}
	return utilerrors.NewAggregate(wrong)
}

// visitContainers shows image and pull policy of every container, of all kinds.
func visitContainers(p *corev1.Pod, visit func(at *field.Path, image string, policy *corev1.PullPolicy)) {
	spec := field.NewPath("spec")
	for i := range p.Spec.InitContainers {
		visit(spec.Child("initContainers").Index(i), p.Spec.InitContainers[i].Image, &p.Spec.InitContainers[i].ImagePullPolicy)
	}
	for i := range p.Spec.Containers {
		visit(spec.Child("containers").Index(i), p.Spec.Containers[i].Image, &p.Spec.Containers[i].ImagePullPolicy)
	}
	for i := range p.Spec.EphemeralContainers {
		visit(spec.Child("ephemeralContainers").Index(i), p.Spec.EphemeralContainers[i].Image, &p.Spec.EphemeralContainers[i].ImagePullPolicy)
	}
}

// noNewImages: an update that brings no image leaves policies as they are, since
// those of a running pod cannot change.
func noNewImages(r *admission.Request, pod *corev1.Pod) bool {
	if r.Operation != admission.Update {
		return false
	}
	old, err := reading.Typed[*corev1.Pod](r.OldObject)
	if err != nil {
		return false
	}
	had, same := map[string]bool{}, true
	visitContainers(old, func(_ *field.Path, image string, _ *corev1.PullPolicy) { had[image] = true })
	visitContainers(pod, func(_ *field.Path, image string, _ *corev1.PullPolicy) { same = same && had[image] })
	return same
}

const (
	imageAuditPrefix   = "imagepolicywebhook.image-policy.k8s.io/"
	imageAnnotationKey = ".image-policy.k8s.io/"
)

// imagePolicy asks a service whether a pod's images may run.
type imagePolicy struct {
	settings *pluginconfig.ImagePolicy
	webhook  *webhookutil.GenericWebhook
	answers  *cache.LRUExpireCache
}

func newImagePolicy(settings *pluginconfig.ImagePolicy, to dial.Policy) (*imagePolicy, error) {
	if settings == nil {
		return nil, fmt.Errorf("%s: it is enabled, but apiserver.admissionConfigFile has no configuration of it", imagePolicyName)
	}
	config, err := webhookutil.LoadKubeconfig(settings.KubeConfigFile, to.Context())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", imagePolicyName, err)
	}
	config.Wrap(dial.Webhook(1 << 20))
	scheme := runtime.NewScheme()
	utilruntime.Must(imagepolicyv1alpha1.AddToScheme(scheme)) // it fails by a mistake of ours alone
	hook, err := webhookutil.NewGenericWebhook(scheme, serializer.NewCodecFactory(scheme), config,
		[]schema.GroupVersion{imagepolicyv1alpha1.SchemeGroupVersion}, webhookutil.DefaultRetryBackoffWithInitialDelay(settings.RetryBackoff))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", imagePolicyName, err)
	}
	return &imagePolicy{settings, hook, cache.NewLRUExpireCache(1024)}, nil
}

func (*imagePolicy) Name() string { return imagePolicyName }

func (*imagePolicy) Handles(r *admission.Request) bool {
	return reading.On("", "pods", "", admission.Create, admission.Update).Handles(r) ||
		reading.On("", "pods", "ephemeralcontainers", admission.Create, admission.Update).Handles(r)
}

func (p *imagePolicy) Validate(ctx context.Context, r *admission.Request) error {
	pod, err := reading.Typed[*corev1.Pod](r.Object)
	if err != nil {
		return err
	}
	review := &imagepolicyv1alpha1.ImageReview{Spec: imagepolicyv1alpha1.ImageReviewSpec{
		Namespace: r.Namespace, Annotations: map[string]string{}, Containers: reviewed(pod, r.Subresource),
	}}
	for k, v := range pod.Annotations {
		if strings.Contains(k, imageAnnotationKey) {
			review.Spec.Annotations[k] = v
		}
	}
	if err := p.ask(ctx, review); err != nil {
		if !p.settings.DefaultAllow {
			return admission.Forbidden(r, err)
		}
		r.Annotate(imageAuditPrefix+"failed-open", "true")
		return nil
	}
	for k, v := range review.Status.AuditAnnotations {
		r.Annotate(imageAuditPrefix+k, v)
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
func (p *imagePolicy) ask(ctx context.Context, review *imagepolicyv1alpha1.ImageReview) error {
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
