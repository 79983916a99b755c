// SPDX-License-Identifier: Apache-2.0

package nodefeatures_test

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/core/scheduler/framework"
	"github.com/wasmplane/wasmplane/core/scheduler/native/nodefeatures"
)

// TestPodsGoWhereTheirFeaturesAre: which field needs what is upstream's.
func TestPodsGoWhereTheirFeaturesAre(t *testing.T) {
	const hostUsers, restarts, mounts = "UserNamespacesHostNetworkSupport", "RestartAllContainersOnContainerExits", "VolumeBindMountOptions"
	rules := []corev1.ContainerRestartRule{{Action: corev1.ContainerRestartRuleActionRestartAllContainers}}
	for name, r := range map[string]struct {
		spec corev1.PodSpec
		has  []string
		want []string // what it needs
		fits bool
	}{
		"a plain pod": {corev1.PodSpec{HostNetwork: true, Containers: []corev1.Container{{Name: "c"}}}, nil, nil, true},
		"a pod that restarts as a whole, on a node that does not": {
			corev1.PodSpec{Containers: []corev1.Container{{RestartPolicyRules: rules}}}, nil, []string{restarts}, false,
		},
		"an init container that does, on a node that does": {
			corev1.PodSpec{InitContainers: []corev1.Container{{RestartPolicyRules: rules}}}, []string{restarts}, []string{restarts}, true,
		},
		"another rule": {
			corev1.PodSpec{Containers: []corev1.Container{{
				RestartPolicyRules: []corev1.ContainerRestartRule{{Action: corev1.ContainerRestartRuleActionRestart}},
			}}},
			nil, nil, true,
		},
		"its own users in the node's network": {
			corev1.PodSpec{HostNetwork: true, HostUsers: ptr.To(false)}, []string{restarts}, []string{hostUsers}, false,
		},
		"two features, one of which the node has": {
			corev1.PodSpec{HostNetwork: true, HostUsers: ptr.To(false), Containers: []corev1.Container{{RestartPolicyRules: rules}}},
			[]string{restarts},
			[]string{restarts, hostUsers},
			false,
		},
		"two features, both of which the node has, and one that nobody knows": {
			corev1.PodSpec{HostNetwork: true, HostUsers: ptr.To(false), Containers: []corev1.Container{{RestartPolicyRules: rules}}},
			[]string{"Newer", restarts, hostUsers},
			[]string{restarts, hostUsers},
			true,
		},
		"options of a mount": {
			corev1.PodSpec{Containers: []corev1.Container{{VolumeMounts: []corev1.VolumeMount{{BindMountOptions: []string{"noexec"}}}}}},
			nil,
			[]string{mounts},
			false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := framework.NewPodInfo(&corev1.Pod{Spec: r.spec})
			if got, err := nodefeatures.Needs(p.Pod); err != nil || !slices.Equal(got, r.want) {
				t.Errorf("needs %v (%v), want %v", got, err, r.want)
			}
			s, n := framework.NewState(), framework.NewNodeInfo(&corev1.Node{Status: corev1.NodeStatus{DeclaredFeatures: r.has}})
			plugin := nodefeatures.Plugin{}
			_, st := plugin.PreFilter(t.Context(), s, p, nil)
			if skipped := st != nil && st.Code == framework.Skip; skipped != (len(r.want) == 0) {
				t.Errorf("before filters: %v", st)
			}
			for _, state := range []*framework.State{s, framework.NewState()} {
				st := plugin.Filter(t.Context(), state, p, n)
				switch {
				case r.fits && !st.IsSuccess():
					t.Errorf("refused: %v", st.Reasons)
				case !r.fits && (st == nil || st.Code != framework.Unresolvable || st.Joined() != "node(s) didn't match Pod's required features"):
					t.Errorf("not refused: %+v", st)
				}
			}
		})
	}
}

// TestANodeThatDeclaresMoreBringsPodsBack, and so does a pod that needs less.
func TestANodeThatDeclaresMoreBringsPodsBack(t *testing.T) {
	want := framework.NodeAdded | framework.NodeFeaturesChanged | framework.PodChanged
	if got := (nodefeatures.Plugin{}).Hints(); got != want {
		t.Errorf("events %b, want %b", got, want)
	}
}
