// SPDX-License-Identifier: Apache-2.0

package builtin

import (
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/admissiontest"
	"github.com/wasmplane/wasmplane/core/auth/authz"
)

func TestAResizeMustFitTheNode(t *testing.T) {
	node := func(name, os string) *corev1.Node {
		return &corev1.Node{ObjectMeta: named1(name), Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
			"cpu": resource.MustParse("2"), "memory": resource.MustParse("1Gi"),
		}}, Spec: corev1.NodeSpec{ProviderID: os}}
	}
	windows := node("windows", "")
	windows.Labels = map[string]string{corev1.LabelOSStable: "windows"}
	w := newWorld(t, nobody, node("linux", ""), windows)
	sized := func(on, cpu string, generation int64) *corev1.Pod {
		return aPod(func(p *corev1.Pod) {
			p.Spec.NodeName, p.Generation = on, generation
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse(cpu)}
		})
	}
	for _, c := range []struct{ name, on, cpu, want string }{
		{"it fits", "linux", "2", ""},
		{"it does not", "linux", "3", "node didn't have enough allocatable resources: cpu, requested: 3000, allocatable: 2000"},
		{"another system", "windows", "1", `pod resize is only supported on linux nodes, node "windows" is "windows"`},
		{"no such node", "gone", "1", `node "gone" not found`},
		{"it is on no node yet", "", "9", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := w.plugins["PodResizeValidator"].(admission.Validator)
			err := p.Validate(t.Context(), admissiontest.Updating("pods", sized(c.on, "1", 1), sized(c.on, c.cpu, 2),
				admissiontest.Subresource("resize")))
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("error %v, want %s", err, c.want)
			}
		})
	}
}

func TestTrustBundlesOfASignerNeedItsRight(t *testing.T) {
	bundle := func(signer, pem string) *certificatesv1.ClusterTrustBundle {
		return &certificatesv1.ClusterTrustBundle{
			ObjectMeta: named1("b"),
			Spec:       certificatesv1.ClusterTrustBundleSpec{SignerName: signer, TrustBundle: pem},
		}
	}
	w := newWorld(t, func(a authz.Attributes) bool { return a.GetVerb() == "attest" && a.GetName() == "good.example.com/*" })
	p := w.plugins["ClusterTrustBundleAttest"].(admission.Validator)
	for signer, allowed := range map[string]bool{"": true, "good.example.com/x": true, "bad.example.com/x": false} {
		err := p.Validate(t.Context(), admissiontest.Creating("clustertrustbundles", bundle(signer, "a")))
		if allowed != (err == nil) || err != nil && !strings.Contains(err.Error(),
			`user not permitted to attest for signerName "bad.example.com/x"`) {
			t.Errorf("%q: error %v", signer, err)
		}
	}
	old, same := bundle("bad.example.com/x", "a"), bundle("bad.example.com/x", "a")
	same.Finalizers = []string{"example.com/f"}
	if err := p.Validate(t.Context(), admissiontest.Updating("clustertrustbundles", old, same)); err != nil {
		t.Errorf("an update of finalizers was refused: %v", err)
	}
}
