// SPDX-License-Identifier: Apache-2.0

package pod

import corev1 "k8s.io/api/core/v1"

// RestartingAllContainers is the reason of a container's end where it was removed because its whole
// pod starts again in place (KEP-5532). It stays in the pod's status and tells a later Machine that the
// container is to run again, whatever its policy.
const RestartingAllContainers = "RestartingAllContainers"

// MayRestartAll tells a pod of which some container can make all of them start again.
func MayRestartAll(p *corev1.Pod) bool {
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			for j := range list[i].RestartPolicyRules {
				if list[i].RestartPolicyRules[j].Action == corev1.ContainerRestartRuleActionRestartAllContainers {
					return true
				}
			}
		}
	}
	return false
}

// RestartsAll tells whether the end of a container with code makes its whole pod start again: the
// first rule that matches decides.
func RestartsAll(c *corev1.Container, code int32) bool {
	for i := range c.RestartPolicyRules {
		if r := &c.RestartPolicyRules[i]; ruleMatches(r, code) {
			return r.Action == corev1.ContainerRestartRuleActionRestartAllContainers
		}
	}
	return false
}
