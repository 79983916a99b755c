// SPDX-License-Identifier: Apache-2.0

package builtin

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/reading"
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
