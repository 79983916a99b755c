// SPDX-License-Identifier: Apache-2.0

package admissionpolicy_test

import (
	"encoding/json"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/plugins/manifest"
	"github.com/wasmplane/wasmplane/plugins/policies/admissionpolicy"
)

type mapper map[schema.GroupKind]string

func (m mapper) Resource(k schema.GroupKind) (string, bool) {
	r, ok := m[k]
	return r, ok
}

var served = mapper{{Kind: "Namespace"}: "namespaces", {Group: "apps", Kind: "Deployment"}: "deployments"}

const digest = "sha256:0000000000000000000000000000000000000000000000000000000000000000"

func entry(t *testing.T, kind, spec string) (map[string]any, error) {
	t.Helper()
	var tree map[string]any
	text := "apiVersion: policies.kubewarden.io/v1\nkind: " + kind + "\nmetadata: {name: p, namespace: red, labels: {a: b}, annotations: {c: d}}\nstatus: {policyStatus: active}\nspec: " + spec
	if err := yaml.Unmarshal([]byte(text), &tree); err != nil {
		t.Fatal(err)
	}
	return admissionpolicy.Entry(tree, served)
}

const rules = `rules: [{operations: [CREATE], apiGroups: [""], apiVersions: [v1], resources: [pods]}]`

func TestAPolicyBecomesAnEntry(t *testing.T) {
	for _, c := range []struct{ name, kind, spec, want string }{
		{
			"the least", admissionpolicy.ClusterPolicy, `{module: "registry://ghcr.io/a/b:v1@` + digest + `", ` + rules + `}`,
			`{"match":{"rules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["CREATE"],"resources":["pods"]}]},"mode":"Enforce","points":["admission.validate"],"source":"oci://ghcr.io/a/b:v1@` + digest + `"}`,
		},
		{
			"everything", admissionpolicy.Policy, `{module: "ghcr.io/a/b@` + digest + `", mutating: true, mode: monitor, failurePolicy: Ignore, timeoutSeconds: 10, timeoutEvalSeconds: 2,
  policyServer: default, backgroundAudit: true, matchPolicy: Equivalent, sideEffects: None, settings: {a: [1]},
  contextAwareResources: [{apiVersion: v1, kind: Namespace}, {apiVersion: apps/v1, kind: Deployment}], hostCapabilities: [oci/*],
  objectSelector: {matchLabels: {x: y}}, namespaceSelector: {matchExpressions: [{key: k, operator: Exists}]},
    matchConditions: [{name: c, expression: "true"}],
  rules: [{operations: [UPDATE], apiGroups: [apps], apiVersions: ["*"], resources: [deployments], scope: Namespaced}]}`,
			`{"failurePolicy":"Ignore","grants":{"capabilities":["oci/*"],"read":[{"apiGroups":[""],"resources":["namespaces"]},{"apiGroups":["apps"],"resources":["deployments"]}]},"limits":{"deadline":"2s"},` +
				`"match":{"conditions":[{"expression":"request.namespace != \"\"","name":"scope"},{"expression":"true","name":"c"}],"namespaceSelector":{"matchExpressions":[{"key":"k","operator":"Exists"}]},"objectSelector":{"matchLabels":{"x":"y"}},` +
				`"rules":[{"apiGroups":["apps"],"apiVersions":["*"],"operations":["UPDATE"],"resources":["deployments"]}]},"mode":"Audit","points":["admission.mutate"],"settings":{"a":[1]},"source":"oci://ghcr.io/a/b@` + digest + `"}`,
		},
		{
			"a group", admissionpolicy.ClusterGroup, `{expression: "signed() || !latest()", message: sign it, timeoutSeconds: 5, ` + rules + `,
  policies: {signed: {module: "a.example/s@` + digest + `", settings: {k: v}}, latest: {module: "a.example/l@` + digest +
				`", timeoutEvalSeconds: 9}}}`,
			`{"group":{"expression":"signed() || !latest()","members":{"latest":{"limits":{"deadline":"5s"},"source":"oci://a.example/l@` + digest + `"},"signed":{"limits":{"deadline":"5s"},"settings":{"k":"v"},"source":"oci://a.example/s@` + digest + `"}},"message":"sign it"},` +
				`"match":{"rules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["CREATE"],"resources":["pods"]}]},"mode":"Enforce","points":["admission.validate"]}`,
		},
	} {
		tree, err := entry(t, c.kind, c.spec)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		got, err := json.Marshal(tree)
		if err != nil || string(got) != c.want {
			t.Errorf("%s: %s, %v\nwant %s", c.name, got, err, c.want)
		}
		tree["name"] = "p"
		if _, err := manifest.ParseTree(tree); err != nil {
			t.Errorf("%s is no entry: %v", c.name, err)
		}
	}
}

func TestWhatCannotBeKeptIsNamed(t *testing.T) {
	const module = `module: "a.example/b@` + digest + `"`
	for spec, want := range map[string]string{
		`{` + rules + `}`: "spec.module: it is missing",
		`{module: "registry://a.example/b:v1", ` + rules + `}`: "names no digest",
		`{module: "ftp://a.example/b", ` + rules + `}`:         "expected registry://, https:// or file://",
		`{` + module + `}`: "spec.rules: a policy sees what its rules name",
		`{` + module + `, mode: warn, ` + rules + `}`: "spec.mode: expected protect or monitor",
		`{` + module + `, priority: 3, ` + rules +
			`}`: `the field "priority" is not known here`,
		`{` + module + `, message: no, ` + rules + `}`:                                                     "belong to a group",
		`{` + module + `, contextAwareResources: [{apiVersion: v1, kind: Other}], ` + rules + `}`:          "does not serve the kind Other",
		`{` + module + `, contextAwareResources: [{kind: Namespace}], ` + rules + `}`:                      "expected an apiVersion and a kind",
		`{` + module + `, rules: [{resources: [pods], scope: Cluster}, {resources: [nodes], scope: "*"}]}`: "spec.rules[1].scope: rules of several scopes",
		`{` + module + `, rules: [{resources: [pods], scope: cluster}]}`:                                   "expected *, Cluster or Namespaced",
		`{` + module + `, policies: {a: {` + module + `}}, expression: a, ` + rules + `}`:                  "belong to a group",
		`{` + module + `, hostCapabilities: all, ` + rules + `}`:                                           "expected another type than string",
	} {
		_, err := entry(t, admissionpolicy.ClusterPolicy, spec)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", spec, err, want)
		}
	}
	if _, err := entry(t, admissionpolicy.PolicyGroup,
		`{mutating: true, expression: a, `+rules+`, policies: {a: {`+module+`}}}`); err == nil || !strings.Contains(err.Error(),
		"does not mutate") {
		t.Errorf("a group that mutates: %v", err)
	}
}
