// SPDX-License-Identifier: Apache-2.0

package builtin

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"
	features "k8s.io/component-helpers/nodedeclaredfeatures"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/reading"
)

// release is the version of Kubernetes that the server is of.
var release = version.MustParse("1.37.0")

// declaredFeatures refuses changes of a running pod for which its node declares no feature: its kubelet would never
// carry them out.
type declaredFeatures struct{ podsNode }

func newDeclaredFeatures(d Deps) *declaredFeatures {
	return &declaredFeatures{newPodsNode(d)}
}

func (*declaredFeatures) Name() string { return "NodeDeclaredFeatureValidator" }

func (*declaredFeatures) Handles(r *admission.Request) bool {
	return reading.On("", "pods", "", admission.Update).Handles(r) || reading.On("", "pods", "resize", admission.Update).Handles(r)
}

func (p *declaredFeatures) Validate(ctx context.Context, r *admission.Request) error {
	pod, old, err := changedPod(r)
	if err != nil {
		return err
	}
	// The containers of a pod are the same for good; the library counts on that.
	if pod.Spec.NodeName == "" || pod.Generation == old.Generation || len(pod.Spec.InitContainers) != len(old.Spec.InitContainers) {
		return nil
	}
	needs, err := features.DefaultFramework.InferForPodUpdate(&features.PodInfo{Spec: &old.Spec, Status: &old.Status},
		&features.PodInfo{Spec: &pod.Spec, Status: &pod.Status}, release)
	if err != nil {
		return admission.Forbidden(r, fmt.Errorf("failed to infer pod capability requirements: %w", err))
	}
	if needs.IsEmpty() {
		return nil
	}
	node, err := p.of(ctx, r, pod)
	if err != nil {
		return err
	}
	match, err := features.DefaultFramework.MatchNode(needs, node)
	switch {
	case err != nil:
		return admission.Forbidden(r, fmt.Errorf("failed to match pod requirements against node %q: %w", node.Name, err))
	case !match.IsMatch:
		return admission.Forbidden(r, fmt.Errorf("pod update requires features %s which are not available on node %q",
			strings.Join(match.UnsatisfiedRequirements, ", "), node.Name))
	}
	return nil
}
