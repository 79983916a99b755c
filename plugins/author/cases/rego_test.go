// SPDX-License-Identifier: Apache-2.0

package cases_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/wasmplane/wasmplane/plugins/author"
	"github.com/wasmplane/wasmplane/plugins/author/authortest"
	"github.com/wasmplane/wasmplane/plugins/author/cases"
)

// TestAPolicysTextIsAPlugin: an entry has the Rego itself.
func TestAPolicysTextIsAPlugin(t *testing.T) {
	dir := t.TempDir()
	authortest.Write(t, filepath.Join(dir, author.EntryFile), `
name: p
abi: gatekeeper
settings: {least: 2}
rego:
  text: |
    package replicas
    import data.lib.say

    violation contains {"msg": say.few(input.review.object.spec.replicas)} if {
      input.review.object.spec.replicas < input.parameters.least
    }
    violation contains {"msg": "name an owner"} if {
      not input.review.object.metadata.labels.owner
    }
  libs:
  - |
    package lib.say
    few(n) := sprintf("%d are too few", [n])
`)
	authortest.Write(t, filepath.Join(dir, author.CasesFile), `
- name: enough
  object: {apiVersion: apps/v1, kind: Deployment, metadata: {name: web, labels: {owner: a}}, spec: {replicas: 2}}
  expect: {decision: allow}
- name: too few, and nobody's
  object: {apiVersion: apps/v1, kind: Deployment, metadata: {name: web}, spec: {replicas: 1}}
  expect: {decision: deny, message: 1 are too few, causes: [{field: "", message: name an owner}]}
`)
	for _, r := range run(t, authortest.Open(t, dir)) {
		if !r.Passed {
			t.Errorf("%s: %s", r.Name, strings.Join(r.Details(), "\n"))
		}
	}
	authortest.Write(t, filepath.Join(dir, author.EntryFile),
		"name: p\nabi: opa\nentrypoint: a/b\nrego: {text: \"package a\\nb := foo(1)\\n\"}\n")
	_, err := author.Open(t.Context(), authortest.Open(t, dir))
	if err == nil || !strings.Contains(err.Error(), "rego.text:2: undefined function foo") {
		t.Errorf("a wrong text: %v", err)
	}
}

// TestAPolicysExpressionsAreAPlugin: an entry has the CEL itself, and no module.
func TestAPolicysExpressionsAreAPlugin(t *testing.T) {
	dir := t.TempDir()
	authortest.Write(t, filepath.Join(dir, author.EntryFile), `
name: p
abi: gatekeeper
settings: {least: 2}
match: {rules: [{operations: [CREATE], apiGroups: [apps], resources: [deployments]}]}
cel:
  validations:
  - {expression: object.spec.replicas >= variables.params.least, messageExpression: string(object.spec.replicas) + ' are too few'}
  - {expression: has(object.metadata.labels) && 'owner' in object.metadata.labels, message: name an owner}
`)
	authortest.Write(t, filepath.Join(dir, author.CasesFile), `
- name: enough
  object: {apiVersion: apps/v1, kind: Deployment, metadata: {name: web, labels: {owner: a}}, spec: {replicas: 2}}
  expect: {decision: allow}
- name: too few, and nobody's
  object: {apiVersion: apps/v1, kind: Deployment, metadata: {name: web}, spec: {replicas: 1}}
  expect: {decision: deny, message: 1 are too few, causes: [{field: "", message: name an owner}]}
- name: other settings
  settings: {least: 1}
  object: {apiVersion: apps/v1, kind: Deployment, metadata: {name: web, labels: {owner: a}}, spec: {replicas: 1}}
  expect: {decision: allow}
- name: not asked
  object: {apiVersion: v1, kind: ConfigMap, metadata: {name: web}}
  expect: {decision: not asked}
`)
	for _, r := range run(t, authortest.Open(t, dir)) {
		if !r.Passed {
			t.Errorf("%s: %s", r.Name, strings.Join(r.Details(), "\n"))
		}
	}
	authortest.Write(t, filepath.Join(dir, author.EntryFile), "name: p\nabi: gatekeeper\ncel: {validations: [{expression: foo(object)}]}\n")
	_, err := author.Open(t.Context(), authortest.Open(t, dir))
	if err == nil || !strings.Contains(err.Error(), "cel.validations[0].expression: compilation failed") {
		t.Errorf("a wrong expression: %v", err)
	}
}

func run(t *testing.T, cfg author.Config) []cases.Result {
	t.Helper()
	list, err := cases.Read(cfg.Dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	var out []cases.Result
	if _, err := cases.Test(t.Context(), cfg, list, cases.Both, func(r cases.Result) { out = append(out, r) }); err != nil {
		t.Fatal(err)
	}
	return out
}
