// SPDX-License-Identifier: Apache-2.0

package apparmor_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/wasmplane/wasmplane/core/kubelet/apparmor"
)

func TestPodsThatHaveToBeConfined(t *testing.T) {
	profile := func(kind corev1.AppArmorProfileType) *corev1.AppArmorProfile {
		return &corev1.AppArmorProfile{Type: kind}
	}
	container := func(p *corev1.AppArmorProfile) []corev1.Container {
		return []corev1.Container{{}, {SecurityContext: &corev1.SecurityContext{AppArmorProfile: p}}}
	}
	const beta = corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix + "main"
	confined, unconfined := profile(corev1.AppArmorProfileTypeRuntimeDefault), profile(corev1.AppArmorProfileTypeUnconfined)
	for name, c := range map[string]struct {
		change func(*corev1.Pod)
		needs  bool
	}{
		"nothing": {func(*corev1.Pod) {}, false},
		"empty contexts": {func(p *corev1.Pod) {
			p.Spec.SecurityContext, p.Spec.Containers = &corev1.PodSecurityContext{}, container(nil)
		}, false},
		"a pod without":       {func(p *corev1.Pod) { p.Spec.SecurityContext = &corev1.PodSecurityContext{AppArmorProfile: unconfined} }, false},
		"a pod":               {func(p *corev1.Pod) { p.Spec.SecurityContext = &corev1.PodSecurityContext{AppArmorProfile: confined} }, true},
		"a container without": {func(p *corev1.Pod) { p.Spec.Containers = container(unconfined) }, false},
		"a container":         {func(p *corev1.Pod) { p.Spec.Containers = container(profile(corev1.AppArmorProfileTypeLocalhost)) }, true},
		"an init container":   {func(p *corev1.Pod) { p.Spec.InitContainers = container(confined) }, true},
		"an annotation without": {func(p *corev1.Pod) {
			p.Annotations = map[string]string{beta: corev1.DeprecatedAppArmorBetaProfileNameUnconfined, "example.com/x": "y"}
		}, false},
		"an annotation": {func(p *corev1.Pod) {
			p.Annotations = map[string]string{beta: corev1.DeprecatedAppArmorBetaProfileRuntimeDefault}
		}, true},
		"a pod that runs": {func(p *corev1.Pod) { p.Spec.Containers, p.Status.Phase = container(confined), corev1.PodRunning }, false},
	} {
		p := &corev1.Pod{}
		c.change(p)
		ok, reason, message, err := (apparmor.Admitter{}).Admit(t.Context(), p, nil)
		if ok == c.needs || err != nil || ok != (reason == "" && message == "") {
			t.Errorf("%s: admitted %t, %q, %q, %v", name, ok, reason, message, err)
		}
		if ok, _, _, err := (apparmor.Admitter{Enabled: true}).Admit(t.Context(), p, nil); !ok || err != nil {
			t.Errorf("%s: refused where AppArmor is on: %v", name, err)
		}
	}
}
