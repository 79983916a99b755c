// SPDX-License-Identifier: Apache-2.0

package builtin

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/reading"
	"github.com/wasmplane/wasmplane/core/auth/authz"
)

// podResize refuses resizes that the pod's node can never carry out.
type podResize struct{ podsNode }

func newPodResize(d Deps) *podResize {
	return &podResize{newPodsNode(d)}
}

func (*podResize) Name() string { return "PodResizeValidator" }

func (*podResize) Handles(r *admission.Request) bool {
	return reading.On("", "pods", "resize", admission.Update).Handles(r)
}

func (p *podResize) Validate(ctx context.Context, r *admission.Request) error {
	pod, old, err := changedPod(r)
	if err != nil {
		return err
	}
	if pod.Spec.NodeName == "" || pod.Generation == old.Generation {
		return nil
	}
	node, err := p.of(ctx, r, pod)
	if err != nil {
		return err
	}
	if os, ok := node.Labels[corev1.LabelOSStable]; ok && os != "linux" {
		return because(r, fmt.Errorf("pod resize is only supported on linux nodes, node %q is %q", node.Name, os), "UnsupportedPlatform")
	}
	if err := fits(pod, node.Status.Allocatable); err != nil {
		return because(r, err, "NodeCapacity")
	}
	return nil
}

func fits(pod *corev1.Pod, allocatable corev1.ResourceList) error {
	requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	var short []string
	if cpu := requests.Cpu(); cpu.Cmp(*allocatable.Cpu()) > 0 {
		short = append(short, fmt.Sprintf("cpu, requested: %d, allocatable: %d", cpu.MilliValue(), allocatable.Cpu().MilliValue()))
	}
	if memory := requests.Memory(); memory.Cmp(*allocatable.Memory()) > 0 {
		short = append(short, fmt.Sprintf("memory, requested: %d, allocatable: %d", memory.Value(), allocatable.Memory().Value()))
	}
	if len(short) > 0 {
		return fmt.Errorf("node didn't have enough allocatable resources: %s", strings.Join(short, "; "))
	}
	return nil
}

// because is a refusal with a cause that clients tell apart.
func because(r *admission.Request, why error, cause metav1.CauseType) error {
	err := admission.Forbidden(r, why)
	var status *apierrors.StatusError
	if errors.As(err, &status) && status.ErrStatus.Details != nil {
		status.ErrStatus.Details.Causes = append(status.ErrStatus.Details.Causes, metav1.StatusCause{Type: cause})
	}
	return err
}

// trustBundleAttest: who publishes a signer's trust anchors must be allowed to
// speak for the signer.
type trustBundleAttest struct{ authz authz.Authorizer }

func (trustBundleAttest) Name() string { return "ClusterTrustBundleAttest" }

func (trustBundleAttest) Handles(r *admission.Request) bool {
	return reading.On("certificates.k8s.io", "clustertrustbundles", "", admission.Create, admission.Update).Handles(r)
}

// Validate reads trees: bundles come in several versions that say the same.
func (p trustBundleAttest) Validate(ctx context.Context, r *admission.Request) error {
	bundle, err := r.Object.Tree()
	if err != nil {
		return admission.Forbidden(r, err)
	}
	signer, _, err := unstructured.NestedString(bundle, "spec", "signerName")
	if err != nil {
		return admission.Forbidden(r, err)
	}
	if signer == "" {
		return nil
	}
	if r.Operation == admission.Update && r.OldObject != nil {
		// Whoever only looks after owners and finalizers attests nothing.
		if old, err := r.OldObject.Tree(); err == nil && equality.Semantic.DeepEqual(old["spec"], bundle["spec"]) {
			return nil
		}
	}
	if !mayFor(ctx, p.authz, r.User, "attest", signer) {
		return admission.Forbidden(r, fmt.Errorf("user not permitted to attest for signerName %q", signer))
	}
	return nil
}
