// SPDX-License-Identifier: Apache-2.0

package kyverno_test

import (
	"encoding/json"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"sigs.k8s.io/yaml"

	"github.com/wasmplane/wasmplane/plugins/policies/kyverno"
)

const pods = `
  matchConstraints:
    resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}]
`

func read(t *testing.T, head, spec string) (*kyverno.Objects, error) {
	t.Helper()
	var tree map[string]any
	if err := yaml.Unmarshal([]byte("apiVersion: policies.kyverno.io/v1\n"+head+"\nspec:\n"+spec), &tree); err != nil {
		t.Fatal(err)
	}
	return kyverno.Read(tree)
}

const (
	validating = "kind: ValidatingPolicy\nmetadata: {name: p}"
	mutating   = "kind: MutatingPolicy\nmetadata: {name: p}"
)

func TestAPolicyForPodsJudgesTheirControllersToo(t *testing.T) {
	o, err := read(t, validating, pods+`
  validationActions: [Audit, Warn]
  variables: [{name: all, expression: "object.spec.containers + oldObject.spec.containers"}]
  matchConditions: [{name: here, expression: "object.metadata.name != 'x' && object.metadata.?labels.hasValue()"}]
  validations:
  - {expression: "object.spec.hostPID == false && namespaceObject.metadata.name != myobject.spec", message: object.spec, identifier: a}
`)
	if err != nil || len(o.Validating) != 3 {
		t.Fatal(o, err)
	}
	for i, want := range []struct{ name, template, resources string }{
		{"p", "", "pods"},
		{"p.controllers", ".spec.template", "daemonsets deployments replicasets statefulsets jobs"},
		{"p.cronjobs", ".spec.jobTemplate.spec.template", "cronjobs"},
	} {
		p, b := o.Validating[i], o.ValidatingBindings[i]
		if p.Name != want.name || b.Name != want.name || b.Spec.PolicyName != want.name || len(b.Spec.ValidationActions) != 2 {
			t.Errorf("%s, %s bound to %s with %v", p.Name, b.Name, b.Spec.PolicyName, b.Spec.ValidationActions)
		}
		var resources []string
		for _, r := range p.Spec.MatchConstraints.ResourceRules {
			resources = append(resources, r.Resources...)
		}
		if got := strings.Join(resources, " "); got != want.resources {
			t.Errorf("%s is about %s", p.Name, got)
		}
		for what, c := range map[string][2]string{
			"validation": {p.Spec.Validations[0].Expression, "object@.spec.hostPID == false && namespaceObject.metadata.name != myobject.spec"},
			"message":    {p.Spec.Validations[0].Message, "object.spec"},
			"variable":   {p.Spec.Variables[0].Expression, "object@.spec.containers + oldObject@.spec.containers"},
			"condition":  {p.Spec.MatchConditions[0].Expression, "object.metadata.name != 'x' && object@.metadata.?labels.hasValue()"},
		} {
			if wanted := strings.ReplaceAll(c[1], "@", want.template); c[0] != wanted {
				t.Errorf("%s: %s: %s, expected %s", p.Name, what, c[0], wanted)
			}
		}
	}
}

func TestMutationsOfPodsBecomeThoseOfTheirTemplates(t *testing.T) {
	o, err := read(t, mutating, pods+`
  autogen: {podControllers: {controllers: [deployments]}}
  mutations:
  - patchType: ApplyConfiguration
    applyConfiguration:
      expression: 'has(object.spec.x) ? Object{} : Object{metadata: Object.metadata{labels: {"}": "{"}}, spec: Object.spec{x: "Object{"}}'
  - patchType: JSONPatch
    jsonPatch: {expression: '[JSONPatch{op: "add", path: "/spec/x/" + object.metadata.name, value: object.spec}]'}
`)
	if err != nil || len(o.Mutating) != 2 {
		t.Fatal(o, err)
	}
	p := o.Mutating[1]
	for i, want := range []string{
		`has(object.spec.template.spec.x) ? ` +
			`Object{spec: Object.spec{template: Object.spec.template{}}} : ` +
			`Object{spec: Object.spec{template: Object.spec.template{metadata: Object.spec.template.metadata{labels: {"}": "{"}}, ` +
			`spec: Object.spec.template.spec{x: "Object{"}}}}`,
		`[JSONPatch{op: "add", path: "/spec/template/spec/x/" + object.metadata.name, value: object.spec.template.spec}]`,
	} {
		m := p.Spec.Mutations[i]
		got := ""
		if m.ApplyConfiguration != nil {
			got = m.ApplyConfiguration.Expression
		} else {
			got = m.JSONPatch.Expression
		}
		if got != want {
			t.Errorf("mutation %d:\n%s\nexpected\n%s", i, got, want)
		}
	}
	if p.Spec.ReinvocationPolicy != admissionregistrationv1.NeverReinvocationPolicy {
		t.Errorf("reinvocationPolicy: %s", p.Spec.ReinvocationPolicy)
	}
}

func TestAPolicyOfANamespaceStaysInIt(t *testing.T) {
	o, err := read(t, "kind: NamespacedValidatingPolicy\nmetadata: {name: p, namespace: team}", pods+`
  autogen: {podControllers: {controllers: []}}
  validations: [{expression: "true"}]
`)
	if err != nil || len(o.Validating) != 1 {
		t.Fatal(o, err)
	}
	p := o.Validating[0]
	m := p.Spec.MatchConstraints
	if p.Name != "team.p" || len(m.NamespaceSelector.MatchExpressions) != 1 || m.NamespaceSelector.MatchExpressions[0].Values[0] != "team" ||
		*m.ResourceRules[0].Scope != admissionregistrationv1.NamespacedScope {
		t.Errorf("%s is about %+v", p.Name, m)
	}
	if got := o.ValidatingBindings[0].Spec.ValidationActions; len(got) != 1 || got[0] != admissionregistrationv1.Deny {
		t.Errorf("a policy without actions does %v", got)
	}
}

func TestWhatCannotBeKeptIsNamed(t *testing.T) {
	for _, c := range []struct{ head, spec, want string }{
		{validating, "  validations: [{expression: 'true'}]", "spec.matchConstraints: it is missing"},
		{validating, pods, "spec.validations: there are none"},
		{validating, pods + "  validations: [{expression: 'true'}]\n  generate: []", `the field "generate" is not known here`},
		{validating, pods + "  validations: [{expression: 'true', identifer: x}]", `the field "identifer" is not known here`},
		{validating, pods + "  validations: [{expression: 'true'}]\n  evaluation: {mode: JSON}", "spec.evaluation.mode: JSON"},
		{validating, pods + "  validations: [{expression: 'true'}]\n  mutations: [{patchType: JSONPatch}]", "spec.mutations: a ValidatingPolicy has none"},
		{mutating, pods, "spec.mutations: there are none"},
		{mutating, pods + "  mutations: [{patchType: JSONPatch}]\n  evaluation: {mutateExisting: {enabled: true}}", "spec.evaluation.mutateExisting"},
		{mutating, pods + "  mutations: [{patchType: JSONPatch}]\n  targetMatchConstraints: {}", "spec.targetMatchConstraints"},
		{"kind: NamespacedMutatingPolicy\nmetadata: {name: p}", pods + "  mutations: [{patchType: JSONPatch}]", "metadata.namespace"},
		{"kind: GeneratingPolicy\nmetadata: {name: p}", pods, "kind: expected one of"},
	} {
		if _, err := read(t, c.head, c.spec); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %s: %v, expected %q", c.head, c.spec, err, c.want)
		}
	}
	o, err := read(t, validating, pods+"  validations: [{expression: 'true'}]\n  evaluation: {admission: {enabled: false}}")
	if err != nil || len(o.All()) != 0 {
		t.Errorf("a policy without admission became %v, %v", o, err)
	}
}

// TestOrValueOfWhatIsThereAnyway: public policies were written when it did nothing, and nothing is what it does.
func TestOrValueOfWhatIsThereAnyway(t *testing.T) {
	for given, want := range map[string]string{
		"object.spec.containers.orValue([])":                                "object.spec.containers",
		"object.spec.containers . orValue( [')', \"(\"] ).size() == 1":      "object.spec.containers.size() == 1",
		"object.spec['é'].orValue([]).all(c, c.env.orValue([]).size() < 2)": "object.spec['é'].all(c, c.env.size() < 2)",
		"object.spec.?containers.orValue([])":                               "",
		"object.?spec.containers.orValue([])":                               "",
		"object[?'spec'].orValue({})":                                       "",
		"variables.containers.orValue([])":                                  "",
		"cel.bind(x, object.?a, x.orValue(1)) == object.a.b":                "",
		"object.spec.?a.optMap(v, v.b).orValue([])":                         "",
		"[object.?a].map(c, c.orValue(1))":                                  "",
		"object.spec.containers.orValue(":                                   "",
		"'object.a.orValue(1)' == object.b":                                 "",
	} {
		if want == "" {
			want = given
		}
		quoted, err := json.Marshal(given)
		if err != nil {
			t.Fatal(err)
		}
		o, err := read(t, validating, pods+"  autogen: {podControllers: {controllers: []}}\n  validations: [{expression: "+string(quoted)+"}]\n")
		if err != nil || len(o.Validating) != 1 {
			t.Fatal(o, err)
		}
		if got := o.Validating[0].Spec.Validations[0].Expression; got != want {
			t.Errorf("%s became %s, expected %s", given, got, want)
		}
	}
}
