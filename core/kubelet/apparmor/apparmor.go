// SPDX-License-Identifier: Apache-2.0

// Package apparmor decides which pods a node takes by their AppArmor profiles: one that
// has to be confined is refused where the node cannot confine it, as upstream's kubelet
// does. Otherwise its containers would fail to start for ever, or the pod would look
// safer than it is.
package apparmor

import (
	"context"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Admitter of a node. It is a kubelet.Admitter.
type Admitter struct {
	// Enabled says that the node confines what has a profile.
	Enabled bool
}

// notEnabled begins as upstream says it.
const notEnabled = "Cannot enforce AppArmor: AppArmor is not enabled on the host (it takes the kernel's module and the program apparmor_parser)"

// Name for messages.
func (Admitter) Name() string { return "AppArmor" }

// Admit refuses a pod that needs what the node lacks. A pod that runs already may go on.
func (a Admitter) Admit(_ context.Context, p *corev1.Pod, _ *corev1.Node) (ok bool, reason, message string, err error) {
	if a.Enabled || p.Status.Phase == corev1.PodRunning || !needed(p) {
		return true, "", "", nil
	}
	return false, "AppArmor", notEnabled, nil
}

// needed is whether the pod, or one of its containers, is to be confined. The annotations are those of before 1.30;
// the API has the fields from them, pods from files have not.
func needed(p *corev1.Pod) bool {
	confined := func(profile *corev1.AppArmorProfile) bool {
		return profile != nil && profile.Type != corev1.AppArmorProfileTypeUnconfined
	}
	if sc := p.Spec.SecurityContext; sc != nil && confined(sc.AppArmorProfile) {
		return true
	}
	for _, containers := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range containers {
			if sc := containers[i].SecurityContext; sc != nil && confined(sc.AppArmorProfile) {
				return true
			}
		}
	}
	for name, value := range p.Annotations {
		if strings.HasPrefix(name, corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix) &&
			value != corev1.DeprecatedAppArmorBetaProfileNameUnconfined {
			return true
		}
	}
	return false
}
