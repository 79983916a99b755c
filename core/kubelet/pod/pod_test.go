// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/wasmplane/wasmplane/core/kubelet/pod"
)

func rule(
	action corev1.ContainerRestartRuleAction, op corev1.ContainerRestartRuleOnExitCodesOperator, codes ...int32,
) corev1.ContainerRestartRule {
	return corev1.ContainerRestartRule{Action: action, ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: op, Values: codes}}
}

func TestAContainerRestartsByItsRulesThenItsPolicyThenItsPods(t *testing.T) {
	always, onFailure, never := corev1.ContainerRestartPolicyAlways, corev1.ContainerRestartPolicyOnFailure, corev1.ContainerRestartPolicyNever
	restart := corev1.ContainerRestartRuleActionRestart
	in, notIn := corev1.ContainerRestartRuleOnExitCodesOpIn, corev1.ContainerRestartRuleOnExitCodesOpNotIn
	for _, tt := range []struct {
		name   string
		own    *corev1.ContainerRestartPolicy
		rules  []corev1.ContainerRestartRule
		kind   pod.Kind
		policy corev1.RestartPolicy
		code   int32
		want   bool
	}{
		{name: "always, after success", policy: corev1.RestartPolicyAlways, kind: pod.Regular, want: true},
		{name: "on failure, after success", policy: corev1.RestartPolicyOnFailure, kind: pod.Regular},
		{name: "on failure, after failure", policy: corev1.RestartPolicyOnFailure, kind: pod.Regular, code: 1, want: true},
		{name: "never, after failure", policy: corev1.RestartPolicyNever, kind: pod.Regular, code: 1},
		{name: "an init container that succeeded is through", policy: corev1.RestartPolicyAlways, kind: pod.Init},
		{name: "an init container that failed", policy: corev1.RestartPolicyAlways, kind: pod.Init, code: 1, want: true},
		{name: "an init container of a pod that never restarts", policy: corev1.RestartPolicyNever, kind: pod.Init, code: 1},
		{name: "a sidecar, whatever its pod's policy", own: &always, policy: corev1.RestartPolicyNever, kind: pod.Sidecar, want: true},
		{name: "an ephemeral container never", policy: corev1.RestartPolicyAlways, kind: pod.Ephemeral, code: 1},
		{name: "its own policy goes before its pod's", own: &never, policy: corev1.RestartPolicyAlways, kind: pod.Regular, code: 1},
		{name: "its own policy on failure, after success", own: &onFailure, policy: corev1.RestartPolicyAlways, kind: pod.Regular},
		{
			name: "a rule goes before its own policy", own: &never, rules: []corev1.ContainerRestartRule{rule(restart, in, 42)},
			policy: corev1.RestartPolicyNever, kind: pod.Regular, code: 42, want: true,
		},
		{
			name: "no rule has the code", own: &never, rules: []corev1.ContainerRestartRule{rule(restart, in, 42)},
			policy: corev1.RestartPolicyAlways, kind: pod.Regular, code: 43,
		},
		{
			name: "a rule of all other codes", own: &never, rules: []corev1.ContainerRestartRule{rule(restart, notIn, 0, 1)},
			policy: corev1.RestartPolicyNever, kind: pod.Regular, code: 2, want: true,
		},
	} {
		c := &corev1.Container{RestartPolicy: tt.own, RestartPolicyRules: tt.rules}
		if got := pod.ShouldRestart(c, tt.kind, tt.policy, tt.code); got != tt.want {
			t.Errorf("%s: restarts %t, want %t", tt.name, got, tt.want)
		}
	}
}

func TestTheFirstRuleThatMatchesDecidesWhetherAllRestart(t *testing.T) {
	in := corev1.ContainerRestartRuleOnExitCodesOpIn
	one, all := corev1.ContainerRestartRuleActionRestart, corev1.ContainerRestartRuleActionRestartAllContainers
	c := corev1.Container{RestartPolicyRules: []corev1.ContainerRestartRule{rule(one, in, 1), rule(all, in, 1, 2)}}
	for code, want := range map[int32]bool{0: false, 1: false, 2: true} {
		if got := pod.RestartsAll(&c, code); got != want {
			t.Errorf("after %d all restart: %t, want %t", code, got, want)
		}
	}
	if p := (&corev1.Pod{Spec: corev1.PodSpec{InitContainers: []corev1.Container{c}}}); !pod.MayRestartAll(p) {
		t.Error("an init container's rule is not seen")
	}
	if pod.MayRestartAll(&corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "plain"}}}}) {
		t.Error("a pod without such a rule may restart all")
	}
}

func TestFindTellsTheKindOfAContainer(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	p := &corev1.Pod{Spec: corev1.PodSpec{
		InitContainers:      []corev1.Container{{Name: "init"}, {Name: "sidecar", RestartPolicy: &always}},
		Containers:          []corev1.Container{{Name: "main"}},
		EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug"}}},
	}}
	for name, want := range map[string]pod.Kind{"init": pod.Init, "sidecar": pod.Sidecar, "main": pod.Regular, "debug": pod.Ephemeral} {
		if c, kind := pod.Find(p, name); c == nil || c.Name != name || kind != want {
			t.Errorf("%s: found %v, %v", name, c, kind)
		}
	}
	if c, _ := pod.Find(p, "other"); c != nil {
		t.Errorf("found %v of a name that is not there", c)
	}
}

func TestResourcesSurviveTheirAnnotation(t *testing.T) {
	r := &corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")},
		Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")},
		Claims:   []corev1.ResourceClaim{{Name: "a claim is no amount"}},
	}
	got := pod.DecodeResources(pod.EncodeResources(r))
	want := &corev1.ResourceRequirements{Requests: r.Requests, Limits: r.Limits}
	if !equality.Semantic.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for _, bad := range []string{"", "{", "[1]"} {
		if got := pod.DecodeResources(bad); got != nil {
			t.Errorf("%q is read as %v", bad, got)
		}
	}
}

func TestOnlyAnotherImageOrNameIsAnotherDefinition(t *testing.T) {
	a := &corev1.Container{Name: "main", Image: "registry.example/app:1"}
	same := &corev1.Container{Name: "main", Image: "registry.example/app:1", Args: []string{"--changed"}}
	other := &corev1.Container{Name: "main", Image: "registry.example/app:2"}
	if pod.Hash(a) != pod.Hash(same) || pod.Hash(a) == pod.Hash(other) {
		t.Errorf("hashes %s, %s, %s", pod.Hash(a), pod.Hash(same), pod.Hash(other))
	}
}
