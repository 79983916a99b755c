// SPDX-License-Identifier: Apache-2.0

package gatekeeper_test

import (
	"cmp"
	"context"
	"encoding/json"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/core/object"
	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/manifest"
	pointadmission "github.com/wasmplane/wasmplane/plugins/point/admission"
	"github.com/wasmplane/wasmplane/plugins/point/pointtest"
	"github.com/wasmplane/wasmplane/plugins/policies/gatekeeper"
)

func read(t *testing.T, text string) map[string]any {
	t.Helper()
	var tree map[string]any
	if err := yaml.Unmarshal([]byte(text), &tree); err != nil {
		t.Fatal(err)
	}
	return tree
}

const template = `
apiVersion: templates.gatekeeper.sh/v1
kind: ConstraintTemplate
metadata: {name: some, annotations: {}}
spec:
  crd: {spec: {names: {kind: Some}, validation:
    {openAPIV3Schema: {type: object, properties: {labels: {type: array, items: {type: string}}}}}}}
  targets: [{target: admission.k8s.gatekeeper.sh, rego: "package some\nviolation[{\"msg\": \"x\"}] { true }"}]
`

// inCEL is a policy in CEL.
func inCEL(source string) string {
	return "code: [{engine: K8sNativeValidation, source: {" + source + "}}]"
}

// policy is the template's.
const policy = `rego: "package some\nviolation[{\"msg\": \"x\"}] { true }"`

const constraint = `
apiVersion: constraints.gatekeeper.sh/v1beta1
kind: Some
metadata: {name: one}
spec: `

func TestWhatCannotBeKeptIsNamed(t *testing.T) {
	for _, c := range []struct{ name, old, now, want string }{
		{"an unknown field", "crd: {", "crd: {debug: true, ", `the field "debug" is not known here`},
		{"an unknown field of a target", "[{target:", "[{operations: [DELETE], target:", `the field "operations" is not known here`},
		{"another target", "admission.k8s.gatekeeper.sh", "other.example.com", "spec.targets[0].target: expected admission.k8s.gatekeeper.sh"},
		{"two targets", "targets: [", "targets: [{target: a}, ", "spec.targets: expected one, found 2"},
		{"another name", "{name: some,", "{name: other,", `metadata.name: expected "some"`},
		{"no policy", policy, `rego: ""`, "spec.targets[0].rego: the policy is missing"},
		{"another engine", policy, "code: [{engine: Other, source: {}}]", "for the engine Rego or K8sNativeValidation was expected, found Other"},
		{"CEL without a validation", policy, "code: [{engine: K8sNativeValidation, source: {}}]", "spec.targets[0].code[0].source.validations: the policy is missing"},
		{"CEL that does not compile", policy, inCEL(`validations: [{expression: "object.a =="}]`), "spec.targets[0].code[0].source.validations[0].expression: compilation failed"},
		{"CEL that is not true or false", policy, inCEL(`validations: [{expression: "1"}]`), "must evaluate to bool"},
		{"a message that is no text", policy, inCEL(`validations: [{expression: "true", messageExpression: "1"}]`), "source.validations[0].messageExpression: must evaluate to string"},
		{"a variable that is taken", policy, inCEL(`variables: [{name: params, expression: "1"}], validations: [{expression: "true"}]`), `source.variables[0].name: "params" is taken`},
		{"what only Kyverno knows", policy, inCEL(`validations: [{expression: "image(object.a).tag() == ''"}]`), "undeclared reference to 'image'"},
		{"a variable of policies of the API", policy, inCEL(`validations: [{expression: "params.spec.parameters.a"}]`), "undeclared reference to 'params'"},
		{"another failure policy", policy, inCEL(`failurePolicy: Sometimes, validations: [{expression: "true"}]`), "source.failurePolicy: expected Fail or Ignore"},
		{"a field that is not there", policy, inCEL(`resourceOperations: [DELETE], validations: [{expression: "true"}]`), `the field "resourceOperations" is not known here`},
		{"another version of Rego", policy, "code: [{engine: Rego, source: {rego: x, version: v7}}]", "spec.targets[0].code[0].source.version: expected v0 or v1"},
		{"a wrong annotation", "annotations: {}", "annotations: {metadata.gatekeeper.sh/requires-sync-data: nonsense}", "requires-sync-data]: expected lists"},
		{"another kind", "kind: ConstraintTemplate", "kind: Config", "expected a ConstraintTemplate"},
	} {
		text := strings.Replace(template, c.old, c.now, 1)
		if text == template {
			t.Fatalf("%s changes nothing", c.name)
		}
		if _, err := gatekeeper.ReadTemplate(read(t, text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", c.name, err, c.want)
		}
	}
	for spec, want := range map[string]string{
		`{enforcementAction: refuse}`: "spec.enforcementAction: expected deny, warn, dryrun or scoped",
		`{enforcementAction: scoped}`: "spec.scopedEnforcementActions: there are none",
		`{enforcementAction: scoped, scopedEnforcementActions: [{action: block, enforcementPoints: [{name: "*"}]}]}`:            "scopedEnforcementActions[0].action: expected deny, warn, dryrun",
		`{enforcementAction: scoped, scopedEnforcementActions: [{action: deny}]}`:                                               "scopedEnforcementActions[0].enforcementPoints: there are none",
		`{enforcementAction: scoped, scopedEnforcementActions: [{action: deny, enforcementPoints: [{name: webhook}]}]}`:         "enforcementPoints[0].name: expected",
		`{enforcementAction: scoped, scopedEnforcementActions: [{action: deny, enforcementPoints: [{name: "*", more: true}]}]}`: `the field "more" is not known here`,
		`{enforcementAction: deny, scopedEnforcementActions: [{action: deny}]}`:                                                 "spec.scopedEnforcementActions",
		`{match: {source: Elsewhere}}`:                        "spec.match.source",
		`{match: {scope: cluster}}`:                           "spec.match.scope",
		`{match: {namespaces: ["a*b"]}}`:                      "a star stands at the beginning or at the end",
		`{match: {kind: [Pod]}}`:                              `the field "kind" is not known here`,
		`{match: {labelSelector: {matchLabel: {a: b}}}}`:      `the field "matchLabel" is not known here`,
		`{match: {kinds: [{apiGroups: [""], kinds: "Pod"}]}}`: "expected another type than string",
	} {
		if _, err := gatekeeper.ReadConstraint(read(t, constraint+spec)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", spec, err, want)
		}
	}
}

// TestAnActionCountsWhereItIsScoped: a constraint may do something else at requests, at stored objects and in tests.
func TestAnActionCountsWhereItIsScoped(t *testing.T) {
	const some = "validations: [{expression: 'true'}]"
	inRego, err := gatekeeper.ReadTemplate(read(t, template))
	if err != nil {
		t.Fatal(err)
	}
	cel, err := gatekeeper.ReadTemplate(read(t, strings.Replace(template, policy, inCEL(some), 1)))
	if err != nil {
		t.Fatal(err)
	}
	points := []gatekeeper.EnforcementPoint{gatekeeper.AtRequests, gatekeeper.AtAudit, gatekeeper.AtTests}
	for _, c := range []struct {
		spec         string
		rego, cel    string // actions at the points
		mode, native string
	}{
		{`{}`, "deny deny deny", "deny deny deny", "Enforce", "Enforce"},
		{`{enforcementAction: dryrun}`, "dryrun dryrun dryrun", "dryrun dryrun dryrun", "Audit", "Audit"},
		{
			`{enforcementAction: scoped, scopedEnforcementActions: [{action: warn, enforcementPoints: [{name: "*"}]}, {action: deny, enforcementPoints: [{name: audit.gatekeeper.sh}]}]}`,
			"warn deny warn", "warn deny warn", "Warn", "Warn",
		},
		{
			`{enforcementAction: scoped, scopedEnforcementActions: [{action: deny, enforcementPoints: [{name: vap.k8s.io}]}, {action: dryrun, enforcementPoints: [{name: validation.gatekeeper.sh}]}]}`,
			"dryrun - -", "deny - -", "Audit", "Enforce",
		},
		{
			`{enforcementAction: scoped, scopedEnforcementActions: [{action: warn, enforcementPoints: [{name: audit.gatekeeper.sh}, {name: gator.gatekeeper.sh}]}]}`,
			"- warn warn", "- warn warn", "Shadow", "Shadow",
		},
	} {
		con, err := gatekeeper.ReadConstraint(read(t, constraint+c.spec))
		if err != nil {
			t.Errorf("%s: %v", c.spec, err)
			continue
		}
		for _, k := range []struct {
			template   *gatekeeper.Template
			want, mode string
		}{{inRego, c.rego, c.mode}, {cel, c.cel, c.native}} {
			var got []string
			for _, p := range points {
				got = append(got, cmp.Or(k.template.Action(con, p), "-"))
			}
			entry, err := k.template.Entry(con, mapper{}, gatekeeper.Settings{})
			if err != nil {
				t.Fatal(err)
			}
			if text := strings.Join(got, " "); text != k.want || entry["mode"] != k.mode {
				t.Errorf("%s: %s in mode %v, want %s in mode %s", c.spec, text, entry["mode"], k.want, k.mode)
			}
			if err := k.template.Validate(read(t, constraint+c.spec)); err != nil {
				t.Errorf("%s: %v", c.spec, err)
			}
		}
	}
}

// TestExpressionsBecomeAnEntry: it is one that can be read, and has all that the template says.
func TestExpressionsBecomeAnEntry(t *testing.T) {
	tmpl, err := gatekeeper.ReadTemplate(read(t, strings.Replace(template, policy, inCEL(`generateVAP: true, failurePolicy: Ignore,
    matchCondition: [{name: some, expression: "request.name != 'x'"}], variables: [{name: a, expression: "1"}],
    validations: [{expression: "variables.a == 1", message: no, messageExpression: "'no'"}]`), 1)))
	if err != nil {
		t.Fatal(err)
	}
	c, err := gatekeeper.ReadConstraint(read(t, constraint+`{parameters: {labels: [a]}}`))
	if err != nil {
		t.Fatal(err)
	}
	tree, err := tmpl.Entry(c, mapper{}, gatekeeper.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	tree["name"] = "some.one"
	e, err := manifest.ParseTree(tree)
	if err != nil {
		t.Fatal(err)
	}
	if e.CEL == nil || e.Rego != nil || e.FailurePolicy != manifest.Ignore ||
		len(e.CEL.MatchConditions) != 1 || e.CEL.Variables[0].Name != "a" ||
		e.CEL.Validations[0].MessageExpression != "'no'" || e.CEL.Validations[0].Message != "no" {
		t.Errorf("%+v", e.CEL)
	}
}

func TestParametersHaveToFitTheTemplate(t *testing.T) {
	tmpl, err := gatekeeper.ReadTemplate(read(t, template))
	if err != nil {
		t.Fatal(err)
	}
	if err := tmpl.Validate(read(t, constraint+`{parameters: {labels: [a]}}`)); err != nil {
		t.Error(err)
	}
	if err := tmpl.Validate(read(t, constraint+`{parameters: {labels: a}}`)); err == nil || !strings.Contains(err.Error(),
		"spec.parameters.labels") {
		t.Errorf("a text for a list: %v", err)
	}
	untyped, err := gatekeeper.ReadTemplate(read(t, strings.Replace(template, "properties: {labels: {type: array, items: {type: string}}}",
		"properties: {labels: {items: {properties: {key: {}}}}}", 1)))
	if err != nil {
		t.Fatal(err)
	}
	if err := untyped.Validate(read(t, constraint+`{parameters: {labels: [{key: a, more: b}]}}`)); err != nil {
		t.Errorf("a schema of before types were required: %v", err)
	}
}

// mapper serves some kinds.
type mapper map[schema.GroupKind]string

func (m mapper) Resource(k schema.GroupKind) (string, bool) {
	r, ok := m[k]
	return r, ok
}

func TestTheInventoryIsWhatTheTemplateRequires(t *testing.T) {
	const looks = `data.inventory.cluster`
	text := strings.Replace(template, "{ true }", "{ "+looks+" }", 1)
	c, err := gatekeeper.ReadConstraint(read(t, constraint+`{}`))
	if err != nil {
		t.Fatal(err)
	}
	served := mapper{{Group: "", Kind: "Service"}: "services", {Group: "networking.k8s.io", Kind: "Ingress"}: "ingresses"}
	for _, k := range []struct{ name, annotation, want, problem string }{
		{"nothing is said", "", "", "nothing says at which: annotate it with"},
		{"one", `'[[{"groups":[""],"versions":["v1"],"kinds":["Service"]}]]'`, `[{"apiGroups":[""],"resources":["services"]}]`, ""},
		{"in quotation marks, one of two is served", `"\"[[{\"groups\":[\"extensions\"],\"versions\":[\"v1beta1\"],\"kinds\":[\"Ingress\"]},{\"groups\":[\"networking.k8s.io\"],\"versions\":[\"v1\"],\"kinds\":[\"Ingress\"]}]]\""`, `[{"apiGroups":["networking.k8s.io"],"resources":["ingresses"]}]`, ""},
		{"none is served", `'[[{"groups":["extensions"],"versions":["v1"],"kinds":["Ingress"]}]]'`, "", "that this cluster does not serve"},
	} {
		tmpl, err := gatekeeper.ReadTemplate(
			read(t, strings.Replace(text, "annotations: {}", "annotations: {metadata.gatekeeper.sh/requires-sync-data: "+k.annotation+"}", 1)))
		if err != nil {
			t.Fatalf("%s: %v", k.name, err)
		}
		entry, err := tmpl.Entry(c, served, gatekeeper.Settings{})
		if k.problem != "" {
			if err == nil || !strings.Contains(err.Error(), k.problem) {
				t.Errorf("%s: %v, want %s", k.name, err, k.problem)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", k.name, err)
			continue
		}
		grants, _ := entry["grants"].(map[string]any)
		if got := jsonOf(t, grants["read"]); got != k.want {
			t.Errorf("%s: reads %s, want %s", k.name, got, k.want)
		}
	}
}

// about is a request for an object.
type about struct {
	group, kind, resource, subresource, namespace, name string
	labels                                              map[string]any
	operation                                           admission.Operation
	dying                                               bool
}

func (a about) request() *admission.Request {
	if a.operation == "" {
		a.operation = admission.Create
	}
	gvk := schema.GroupVersionKind{Group: a.group, Version: "v1", Kind: a.kind}
	meta := map[string]any{"labels": a.labels}
	if generated, yes := strings.CutSuffix(a.name, "-?"); yes {
		meta["generateName"], a.name = generated+"-", ""
	} else {
		meta["name"] = a.name
	}
	if a.dying {
		meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
	}
	return &admission.Request{
		Operation: a.operation, Resource: schema.GroupVersionResource{Group: a.group, Version: "v1", Resource: a.resource},
		Subresource: a.subresource, Kind: gvk,
		Namespace: a.namespace, Name: a.name,
		Object: object.FromTree(object.Unstructured{GVK: gvk}, map[string]any{
			"apiVersion": gvk.GroupVersion().String(), "kind": a.kind,
			"metadata": meta,
		}),
	}
}

func pod(namespace, name string) about {
	return about{kind: "Pod", resource: "pods", namespace: namespace, name: name}
}

// TestAMatchIsGatekeepers holds what a constraint sees against the rules of Gatekeeper's matcher.
func TestAMatchIsGatekeepers(t *testing.T) {
	node := about{kind: "Node", resource: "nodes", name: "n1"}
	red := about{kind: "Namespace", resource: "namespaces", namespace: "red", name: "red", labels: map[string]any{"env": "prod"}}
	deployment := about{group: "apps", kind: "Deployment", resource: "deployments", namespace: "red", name: "web"}
	scale := about{group: "apps", kind: "Scale", resource: "deployments", subresource: "scale", namespace: "red", name: "web"}
	status := about{kind: "Pod", resource: "pods", subresource: "status", namespace: "red", name: "web"}
	ephemeral := about{kind: "Pod", resource: "pods", subresource: "ephemeralcontainers", namespace: "red", name: "web"}
	deleted := pod("red", "web")
	deleted.operation = admission.Delete
	dying := pod("red", "web") // is judged like others: it runs on, and may be changed
	dying.operation, dying.dying = admission.Update, true
	labelled := pod("red", "web")
	labelled.labels = map[string]any{"app": "web"}
	for _, c := range []struct {
		match string
		yes   []about
		no    []about
	}{
		{`{}`, []about{pod("red", "a"), dying, node, red, deployment, scale, ephemeral}, []about{status, deleted}},
		{`{kinds: [{apiGroups: [""], kinds: [Pod]}]}`, []about{pod("red", "a"), ephemeral}, []about{node, red, deployment, scale, status}},
		{`{kinds: [{apiGroups: ["*"], kinds: ["*"]}]}`, []about{pod("red", "a"), node, deployment, scale}, nil},
		{`{kinds: [{apiGroups: [apps], kinds: [Deployment]}, {kinds: [Node]}]}`, []about{node, deployment}, []about{pod("red", "a"), scale}},
		{`{namespaces: [red]}`, []about{pod("red", "a"), red, node}, []about{pod("reds", "a"), pod("blue", "a")}},
		{`{namespaces: [re*, "*ue"]}`, []about{pod("red", "a"), pod("blue", "a")}, []about{pod("green", "a")}},
		{`{namespaces: ["*ee*"]}`, []about{pod("green", "a"), node}, []about{pod("red", "a"), red}},
		{`{excludedNamespaces: [kube-*, red]}`, []about{pod("blue", "a"), node}, []about{pod("kube-x", "a"), pod("red", "a"), red}},
		{`{scope: Cluster}`, []about{node, red}, []about{pod("red", "a")}},
		{`{scope: Namespaced}`, []about{pod("red", "a")}, []about{node, red}},
		{`{scope: "*"}`, []about{pod("red", "a"), node}, nil},
		{`{name: web}`, []about{pod("red", "web")}, []about{pod("red", "web2"), pod("red", "web-?")}},
		{`{name: web-*}`, []about{pod("red", "web-1"), pod("red", "web-?")}, []about{pod("red", "web"), pod("red", "db-?")}},
		{`{name: "*-db"}`, []about{pod("red", "a-db")}, []about{pod("red", "db")}},
		{`{labelSelector: {matchLabels: {app: web}}}`, []about{labelled}, []about{pod("red", "a"), node}},
		{`{labelSelector: {matchExpressions: [{key: app, operator: DoesNotExist}]}}`, []about{pod("red", "a"), node}, []about{labelled}},
		{`{namespaceSelector: {matchLabels: {env: prod}}}`, []about{pod("red", "a"), red, node}, []about{pod("blue", "a")}},
	} {
		matches := matcher(t, c.match)
		for want, list := range map[bool][]about{true: c.yes, false: c.no} {
			for _, a := range list {
				if got, err := matches(a.request()); err != nil || got != want {
					t.Errorf("%s sees %s %s/%s %s: %t, %v", c.match, a.kind, a.namespace, a.name, a.subresource, got, err)
				}
			}
		}
	}
}

// matcher is the matcher of a constraint as a loaded plugin has it.
func matcher(t *testing.T, match string) func(*admission.Request) (bool, error) {
	t.Helper()
	c, err := gatekeeper.ReadConstraint(read(t, constraint+`{match: `+match+`}`))
	if err != nil {
		t.Fatalf("%s: %v", match, err)
	}
	tmpl, err := gatekeeper.ReadTemplate(read(t, template))
	if err != nil {
		t.Fatal(err)
	}
	tree, err := tmpl.Entry(c, mapper{}, gatekeeper.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	tree["name"] = "some.one"
	e, err := manifest.ParseTree(tree)
	if err != nil {
		t.Fatalf("%s: %v", match, err)
	}
	p := pointtest.Plugin(t, e, abi.Hook{Point: abi.AdmissionValidate, Match: []abi.Rule{{Resources: []string{"*/*"}}}}, pointtest.Answers{})
	if err := pointadmission.Check(p.Current()); err != nil {
		t.Fatalf("%s: %v", match, err)
	}
	labels := map[string]map[string]string{"red": {"env": "prod"}}
	m := pointadmission.NewMatcher(p,
		pointadmission.Cluster{Namespaces: func(_ context.Context, name string) (map[string]string, bool) { return labels[name], true }})
	return func(r *admission.Request) (bool, error) { return m.Matches(t.Context(), abi.AdmissionValidate, r) }
}

func jsonOf(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
