// SPDX-License-Identifier: Apache-2.0

package why_test

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"

	"github.com/wasmplane/wasmplane/core/scheduler"
	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/core/scheduler/native"
	"github.com/wasmplane/wasmplane/core/why"
)

func ranked(priority int32) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.Priority = &priority }
}

// What preemption considered, node by node, and why it removed nobody.
func TestWhatPreemptionConsidered(t *testing.T) {
	never := corev1.PreemptNever
	for name, s := range map[string]struct {
		nodes []*corev1.Node
		pods  []*corev1.Pod
		want  string
	}{
		"as important": {
			[]*corev1.Node{node("a"), node("b")},
			[]*corev1.Pod{pod("p", cpu("3"), ranked(5)), pod("x", on("a"), cpu("3"), ranked(5)), pod("y", on("b"), cpu("3"), ranked(9))},
			"preemption: every pod there is as important or more (this one has priority 5): 2 nodes (a, b)",
		},
		"not enough": {
			[]*corev1.Node{node("a")},
			[]*corev1.Pod{pod("p", cpu("3"), ranked(5)), pod("x", on("a"), cpu("3"), ranked(5)), pod("y", on("a"), cpu("1"))},
			"preemption: not even without the pods of lower priority: Insufficient cpu: 1 nodes (a)",
		},
		"of no help": {
			[]*corev1.Node{node("a", tainted)},
			[]*corev1.Pod{pod("p", ranked(5)), pod("x", on("a"))},
			"preemption: no pod that leaves changes that: node(s) had untolerated taint {team: red}: 1 nodes (a)",
		},
		"never": {
			[]*corev1.Node{node("a")},
			[]*corev1.Pod{pod("p", cpu("3"), ranked(5), func(p *corev1.Pod) { p.Spec.PreemptionPolicy = &never }), pod("x", on("a"), cpu("3"))},
			"preemption: it may not have other pods removed (preemptionPolicy: Never)",
		},
		"protected": {
			[]*corev1.Node{node("a")},
			[]*corev1.Pod{pod("p", cpu("3"), ranked(5)), pod("x", on("a"), cpu("3"))},
			"preemption: pod shop/x (which disruption budget keep protects) would have to leave node a for it",
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := &why.Cluster{Nodes: s.nodes, Pods: s.pods, Budgets: []*policyv1.PodDisruptionBudget{{
				ObjectMeta: meta("keep"), Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}},
			}}}
			var out strings.Builder
			ask(t, c, "pod/p").Write(&out)
			if !strings.Contains(out.String(), s.want) {
				t.Errorf("want %q in\n%s", s.want, &out)
			}
		})
	}
}

// picky is a plugin such as those in Wasm: only the scheduler's own profile has it.
type picky struct{}

func (picky) Name() string { return "picky" }

func (picky) Filter(_ context.Context, _ *framework.State, _ *framework.PodInfo, n *framework.NodeInfo) *framework.Status {
	if len(n.Node.Spec.Taints) > 0 || len(n.Pods) > 0 {
		return framework.NewStatus(framework.Unschedulable, "not a clean node")
	}
	return nil
}

// With the scheduler's profiles, changes are tried with its other plugins too.
func TestChangesAreTriedWithThePluginsOfTheProfile(t *testing.T) {
	c := &why.Cluster{
		Nodes: []*corev1.Node{node("a"), node("b", cordoned, tainted)},
		Pods:  []*corev1.Pod{pod("p", func(p *corev1.Pod) { p.Spec.SchedulerName = "mine" }), pod("x", on("a"))},
		Profiles: func(inf informers.SharedInformerFactory) ([]scheduler.Profile, error) {
			return []scheduler.Profile{{Name: "mine", Plugins: append(native.Default(native.Config{Informers: inf}),
				scheduler.Weighted{Plugin: picky{}})}}, nil
		},
	}
	a := ask(t, c, "pod/p")
	if !strings.Contains(a.Cause, "not a clean node on 1 (picky)") {
		t.Errorf("cause: %s", a.Cause)
	}
	if len(a.Changes) != 2 || a.Changes[0].Command != "kubectl delete pod x -n shop" || a.Changes[1].Command != "wasmplane token create" {
		t.Errorf("changes: %+v", a.Changes)
	}
	c.Pods[0].Spec.SchedulerName = "theirs"
	if a := ask(t, c, "pod/p"); !strings.Contains(a.Cause, `asks for the scheduler "theirs"`) {
		t.Errorf("cause: %s", a.Cause)
	}
}
