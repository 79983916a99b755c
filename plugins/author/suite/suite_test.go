// SPDX-License-Identifier: Apache-2.0

package suite_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/wasmplane/wasmplane/plugins/author/cases"
	"github.com/wasmplane/wasmplane/plugins/author/suite"
	"github.com/wasmplane/wasmplane/plugins/host/compiler"
)

func TestMain(m *testing.M) {
	compiler.MaybeRun()
	os.Exit(m.Run())
}

var files = map[string]string{
	"template.yaml": `
apiVersion: templates.gatekeeper.sh/v1
kind: ConstraintTemplate
metadata: {name: few}
spec:
  crd: {spec: {names: {kind: Few}, validation: {openAPIV3Schema: {type: object, properties: {most: {type: integer}}}}}}
  targets:
  - target: admission.k8s.gatekeeper.sh
    rego: |
      package few
      violation[{"msg": msg}] {
        c := input.review.object.spec.containers[i]
        i >= input.parameters.most
        msg := sprintf("container %v is too many", [c.name])
      }
`,
	"constraint.yaml": "{apiVersion: constraints.gatekeeper.sh/v1beta1, kind: Few, metadata: {name: one}, spec: {match: {kinds: [{apiGroups: [''], kinds: [Pod]}]}, parameters: {most: 1}}}",
	"expressions.yaml": `
apiVersion: templates.gatekeeper.sh/v1
kind: ConstraintTemplate
metadata: {name: few}
spec:
  crd: {spec: {names: {kind: Few}, validation: {openAPIV3Schema: {type: object, properties: {most: {type: integer}}}}}}
  targets:
  - target: admission.k8s.gatekeeper.sh
    code:
    - engine: K8sNativeValidation
      source:
        generateVAP: true
        variables: [{name: there, expression: size(variables.anyObject.spec.containers)}]
        validations:
        - {expression: variables.there <= variables.params.most, messageExpression: string(variables.there) + ' are too many'}
`,
	"scoped.yaml":  "{apiVersion: constraints.gatekeeper.sh/v1beta1, kind: Few, metadata: {name: one}, spec: {enforcementAction: scoped, scopedEnforcementActions: [{action: deny, enforcementPoints: [{name: validation.gatekeeper.sh}]}], parameters: {most: 1}}}",
	"wrong.yaml":   "{apiVersion: constraints.gatekeeper.sh/v1beta1, kind: Few, metadata: {name: one}, spec: {parameters: {most: many}}}",
	"pod.yaml":     "{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: a}, {name: b}, {name: c}]}}",
	"service.yaml": "{apiVersion: v1, kind: Service, metadata: {name: p}, spec: {}}",
	"review.yaml":  "{apiVersion: admission.k8s.io/v1, kind: AdmissionReview, request: {operation: CREATE, kind: {group: '', version: v1, kind: Pod}, resource: {group: '', version: v1, resource: pods}, name: p, namespace: red, object: {apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: a}, {name: b}]}}}}",
	"suite.yaml": `
apiVersion: test.gatekeeper.sh/v1alpha1
kind: Suite
tests:
- name: few
  template: template.yaml
  constraint: constraint.yaml
  cases:
  - {name: two too many, object: pod.yaml,
     assertions: [{violations: 2}, {violations: yes}, {violations: 1, message: "^container b"}, {violations: no, message: container a}]}
  - {name: not asked, object: service.yaml, assertions: [{violations: no}]}
  - {name: a review, object: review.yaml, assertions: [{message: container b}]}
  - {name: left out, object: pod.yaml, skip: true, assertions: [{violations: no}]}
  - {name: fails, object: pod.yaml, assertions: [{violations: no}]}
  - {name: nothing asserted, object: pod.yaml}
- name: in CEL
  template: expressions.yaml
  constraint: constraint.yaml
  cases:
  - {name: one too many, object: pod.yaml, assertions: [{violations: 1}, {message: 3 are too many}]}
  - {name: a review, object: review.yaml, assertions: [{message: 2 are too many}]}
- name: not asked in tests
  template: expressions.yaml
  constraint: scoped.yaml
  cases:
  - {name: nothing violates it, object: pod.yaml, assertions: [{violations: no}]}
- {name: invalid, template: template.yaml, constraint: wrong.yaml, invalid: true}
- {name: not invalid, template: template.yaml, constraint: constraint.yaml, invalid: true}
- {name: no constraint, template: template.yaml, cases: [{name: a, object: pod.yaml, assertions: [{violations: no}]}]}
- name: expanded
  template: template.yaml
  constraint: constraint.yaml
  expansion: expansion.yaml
  cases:
  - {name: implied, object: deployment.yaml, assertions: [{violations: 1}, {violations: 1, message: '^\[Implied by pods\] container b'}]}
  - {name: both, object: pod.yaml, assertions: [{violations: 2}, {violations: no, message: Implied}]}
- name: only generated
  template: template.yaml
  constraint: generated.yaml
  expansion: expansion.yaml
  cases:
  - {name: implied, object: deployment.yaml, assertions: [{violations: 1}]}
  - {name: itself, object: pod.yaml, assertions: [{violations: no}]}
- name: only originals
  template: template.yaml
  constraint: original.yaml
  expansion: expansion.yaml
  cases:
  - {name: implied, object: deployment.yaml, assertions: [{violations: no}]}
  - {name: itself, object: pod.yaml, assertions: [{violations: 2}]}
- name: changed first
  template: template.yaml
  constraint: constraint.yaml
  expansion: expansion.yaml
  mutators: [mutator.yaml]
  cases:
  - {name: both, object: pod.yaml, assertions: [{violations: 3}]}
  - {name: implied, object: deployment.yaml, assertions: [{violations: 2}, {message: container side}]}
- name: mutation
  mutators: [mutator.yaml]
  cases:
  - {name: as expected, object: service.yaml, mutated: service.yaml}
  - {name: another one, object: pod.yaml, mutated: pod.yaml}
  - {name: nothing expected, object: pod.yaml, assertions: [{violations: no}]}
- {name: no expansion, template: template.yaml, constraint: constraint.yaml, expansion: wrong.yaml}
- {name: no mutators, template: template.yaml, constraint: constraint.yaml,
	cases: [{name: never looked at, object: pod.yaml, mutated: pod.yaml, assertions: [{violations: 2}]}]}
- {name: skipped, skip: true}
`,
	"other.yaml":      "kind: Other\n",
	"generated.yaml":  "{apiVersion: constraints.gatekeeper.sh/v1beta1, kind: Few, metadata: {name: one}, spec: {match: {source: Generated, kinds: [{apiGroups: [''], kinds: [Pod]}]}, parameters: {most: 1}}}",
	"original.yaml":   "{apiVersion: constraints.gatekeeper.sh/v1beta1, kind: Few, metadata: {name: one}, spec: {match: {source: Original, kinds: [{apiGroups: [''], kinds: [Pod]}]}, parameters: {most: 1}}}",
	"expansion.yaml":  "{apiVersion: expansion.gatekeeper.sh/v1alpha1, kind: ExpansionTemplate, metadata: {name: pods}, spec: {applyTo: [{groups: [apps], versions: [v1], kinds: [Deployment]}], templateSource: spec.template, generatedGVK: {group: '', version: v1, kind: Pod}}}",
	"deployment.yaml": "{apiVersion: apps/v1, kind: Deployment, metadata: {name: d, namespace: red}, spec: {replicas: 2, template: {spec: {containers: [{name: a}, {name: b}]}}}}",
	"mutator.yaml":    "{apiVersion: mutations.gatekeeper.sh/v1, kind: Assign, metadata: {name: m}, spec: {applyTo: [{groups: [''], versions: [v1], kinds: [Pod]}], location: 'spec.containers[name: side].image', parameters: {assign: {value: sidecar}}}}",
}

func TestASuiteRuns(t *testing.T) {
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	suites, err := suite.Find(dir)
	if err != nil || len(suites) != 1 {
		t.Fatalf("%d suites, %v", len(suites), err)
	}
	want := map[string]string{ // the beginning of the problem; "" = passed, "skip" = skipped
		"few/two too many": "", "few/not asked": "", "few/a review": "", "few/left out": "skip",
		"few/fails":            "expected no violations, found 2 of",
		"few/nothing asserted": "assertions: there are none",
		"invalid/":             "", "not invalid/": "the constraint fits its template",
		"no constraint/": "constraint: it is missing", "skipped/": "skip",
		"expanded/implied": "", "expanded/both": "", "only generated/implied": "", "only generated/itself": "",
		"only originals/implied": "", "only originals/itself": "", "changed first/both": "", "changed first/implied": "",
		"in CEL/one too many": "", "in CEL/a review": "", "not asked in tests/nothing violates it": "",
		"mutation/as expected": "", "mutation/another one": "pod.yaml: the object becomes another one",
		"mutation/nothing expected": "mutated: without a constraint", "no expansion/": "wrong.yaml: expected one of",
		"no mutators/": "never looked at: mutated: the test names no mutators",
	}
	failed, err := suites[0].Run(t.Context(), cases.Compiled, func(r suite.Result) {
		key := r.Test + "/" + r.Case
		problem, known := want[key]
		delete(want, key)
		switch {
		case !known:
			t.Errorf("%s came twice, or from nowhere: %+v", key, r)
		case r.Skipped != (problem == "skip"), !r.Skipped && r.Passed != (problem == ""), !r.Skipped && !strings.HasPrefix(r.Problem, problem):
			t.Errorf("%s: passed %t, skipped %t, %q; want %q", key, r.Passed, r.Skipped, r.Problem, problem)
		}
	})
	if err != nil || failed != 8 || len(want) > 0 {
		t.Errorf("%d failed, %v; missing: %v", failed, err, want)
	}
	if _, err := suite.Find(filepath.Join(dir, "other.yaml")); err == nil || !strings.Contains(err.Error(),
		"is no Suite of test.gatekeeper.sh") {
		t.Errorf("another file: %v", err)
	}
}
