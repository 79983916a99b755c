// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"fmt"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/admission/admissiontest"
)

// TestWhatIsStoredIsJudgedBesideRequests: whatever a policy's actions are, and without an effect.
func TestWhatIsStoredIsJudgedBesideRequests(t *testing.T) {
	audits := func(s *admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec) {
		s.ValidationActions = []admissionregistrationv1.ValidationAction{admissionregistrationv1.Audit}
	}
	for name, c := range map[string]struct {
		policy  func(*admissionregistrationv1.ValidatingAdmissionPolicySpec)
		binding func(*admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec)
		check   []string
		asked   bool
		want    string
	}{
		"nothing against it": {check: []string{"true"}, asked: true, want: "[]"},
		"against it":         {check: []string{"false", "object.metadata.name == 'x'"}, asked: true, want: "[{failed expression: false false} {failed expression: object.metadata.name == 'x' false}]"},
		"audited":            {binding: audits, check: []string{"false"}, asked: true, want: "[{failed expression: false false}]"},
		"an error":           {check: []string{"object.spec.none == 1"}, asked: true, want: "no such key: none true}]"},
		"other resources": {policy: func(s *admissionregistrationv1.ValidatingAdmissionPolicySpec) {
			s.MatchConstraints.ResourceRules[0].Resources = []string{"services"}
		}, check: []string{"false"}, want: "[]"},
		"other labels": {policy: func(s *admissionregistrationv1.ValidatingAdmissionPolicySpec) {
			s.MatchConstraints.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"level": "lax"}}
		}, check: []string{"false"}, want: "[]"},
		"bound elsewhere": {binding: func(s *admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec) {
			s.MatchResources = &admissionregistrationv1.MatchResources{
				ObjectSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"kept": "no"}},
			}
		}, check: []string{"false"}, want: "[]"},
		"a condition": {policy: func(s *admissionregistrationv1.ValidatingAdmissionPolicySpec) {
			s.MatchConditions = []admissionregistrationv1.MatchCondition{{Name: "a", Expression: "object.metadata.name == 'x'"}}
		}, check: []string{"false"}, want: "[]"},
	} {
		var list []admissionregistrationv1.Validation
		for _, e := range c.check {
			list = append(list, validation(e))
		}
		given := policyOf(c.policy, list...)
		given.UID, given.ResourceVersion = "u", "3"
		p, _ := start(t, nil, given, bindingOf(c.binding))
		all := p.Standing()
		if len(all) != 1 || all[0].Object().GetName() != "p" || !strings.HasPrefix(all[0].Version(), "u/3 ") {
			t.Fatalf("%s: standing %v", name, all)
		}
		r := admissiontest.Creating("pods", pod())
		asked, found, err := all[0].Judge(t.Context(), r)
		if got := fmt.Sprint(found); err != nil || asked != c.asked || got != c.want && !strings.HasSuffix(got, c.want) {
			t.Errorf("%s: asked %v, found %v, %v; expected %v, %s", name, asked, found, err, c.asked, c.want)
		}
		if len(r.Warnings())+len(r.Annotations()) > 0 {
			t.Errorf("%s: the request says %v, %v", name, r.Warnings(), r.Annotations())
		}
		services := all[0].About(schema.GroupResource{Resource: "services"}, admission.Create)
		if services != (name == "other resources") {
			t.Errorf("%s: about services: %v", name, services)
		}
		if all[0].Does(admissionregistrationv1.Audit) != (name == "audited") {
			t.Errorf("%s: it audits: %v", name, name != "audited")
		}
	}
}
