// SPDX-License-Identifier: Apache-2.0

package kyvernotest_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/wasmplane/wasmplane/plugins/author/kyvernotest"
	"github.com/wasmplane/wasmplane/plugins/author/suite"
)

// files are a folder of policies with a test.
func files(t *testing.T, list map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range list {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const policies = `
apiVersion: policies.kyverno.io/v1
kind: ValidatingPolicy
metadata: {name: no-host-pid}
spec:
  validationActions: [Audit]
  matchConstraints:
    namespaceSelector: {}
    resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}]
  variables: [{name: level, expression: "namespaceObject.metadata.labels[?'level'].orValue('strict')"}]
  validations:
  - {expression: "variables.level == 'lax' || !object.spec.?hostPID.orValue(false)", message: hostPID is forbidden}
  - {expression: "object.spec.containers[0].image != 'x'"}
---
apiVersion: policies.kyverno.io/v1alpha1
kind: MutatingPolicy
metadata: {name: team}
spec:
  matchConstraints:
    resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}]
  mutations:
  - patchType: ApplyConfiguration
    applyConfiguration: {expression: "Object{metadata: Object.metadata{labels: {'team': request.userInfo.username}}}"}
---
apiVersion: policies.kyverno.io/v1
kind: ValidatingPolicy
metadata: {name: unknown}
spec:
  matchConstraints: {resourceRules: []}
  evaluation: {mode: JSON}
  validations: [{expression: "true"}]
`

const resources = `
{apiVersion: v1, kind: Pod, metadata: {name: good}, spec: {containers: [{name: c, image: a}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: bad}, spec: {hostPID: true, containers: [{name: c, image: a}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: none}, spec: {}}
---
{apiVersion: v1, kind: Pod, metadata: {name: bad, namespace: lax}, spec: {hostPID: true, containers: [{name: c, image: a}]}}
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: bad}, spec: {template: {spec: {hostPID: true, containers: [{name: c, image: a}]}}}}
---
{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {}}
---
{apiVersion: v1, kind: Service, metadata: {name: db}, spec: {}}
`

const test = `
apiVersion: cli.kyverno.io/v1alpha1
kind: Test
metadata: {name: tried}
policies: [policies.yaml]
resources: [resources.yaml]
variables: values.yaml
userinfo: user.yaml
results:
- {policy: no-host-pid, kind: Pod, resources: [good, lax/bad], result: pass}
- {policy: no-host-pid, kind: Pod, resources: [default/bad, none, lost], result: fail}
- {policy: no-host-pid, kind: Deployment, resource: bad, result: fail, isValidatingPolicy: true}
- {policy: no-host-pid, kind: Service, resource: web, result: skip}
- {policy: no-host-pid, kind: Service, resource: db, result: pass}
- {policy: team, kind: Pod, resource: good, patchedResources: patched.yaml, result: pass}
- {policy: team, kind: Pod, resource: bad, patchedResources: patched.yaml, result: pass}
- {policy: unknown, kind: Pod, resource: good, result: pass}
- {policy: other, kind: Pod, resource: good, result: pass}
`

const patched = `
{apiVersion: v1, kind: Pod, metadata: {name: good, labels: {team: blue}}, spec: {containers: [{name: c, image: a}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: bad, labels: {team: red}}, spec: {hostPID: true, containers: [{name: c, image: a}]}}
`

func TestTheTestsOfPolicies(t *testing.T) {
	dir := files(t, map[string]string{
		"policies.yaml": policies, "resources.yaml": resources, "kyverno-test.yaml": test, "patched.yaml": patched,
		"values.yaml":  "apiVersion: cli.kyverno.io/v1alpha1\nkind: Values\nnamespaceSelector: [{name: lax, labels: {level: lax}}]\n",
		"user.yaml":    "apiVersion: cli.kyverno.io/v1alpha1\nkind: UserInfo\nuserInfo: {username: blue}\n",
		"old.yaml":     "apiVersion: cli.kyverno.io/v1alpha1\nkind: Test\nmetadata: {name: old}\npolicies: [cluster.yaml]\nresources: []\nresults: []\n",
		"cluster.yaml": "apiVersion: kyverno.io/v1\nkind: ClusterPolicy\nmetadata: {name: old}\nspec: {}\n",
	})
	found, err := kyvernotest.Find(dir)
	if err != nil || len(found) != 2 {
		t.Fatal(found, err)
	}
	results := map[string]suite.Result{}
	failed := 0
	for _, f := range found {
		n, err := f.Run(t.Context(), func(r suite.Result) { results[r.Test+" "+r.Case] = r })
		if err != nil {
			t.Fatal(err)
		}
		failed += n
	}
	for name, want := range map[string]string{
		"tried no-host-pid: Pod good":        "",
		"tried no-host-pid: Pod lax/bad":     "",
		"tried no-host-pid: Service db":      "expected pass, found skip",
		"tried no-host-pid: Pod default/bad": "",
		"tried no-host-pid: Pod none":        "expected fail, found error: ",
		"tried no-host-pid: Pod lost":        "no Pod lost is among the resources",
		"tried no-host-pid: Deployment bad":  "",
		"tried no-host-pid: Service web":     "",
		"tried team: Pod good":               "",
		"tried team: Pod bad":                "patched.yaml (- expected, + found)",
		"tried unknown: Pod good":            "policies.yaml: spec.evaluation.mode: JSON",
		"tried other: Pod good":              "no policy other is among the policies",
		"old ":                               `none of its policies is one of ["ValidatingPolicy"`,
	} {
		r, ok := results[name]
		delete(results, name)
		if !ok || r.Passed != (want == "") || !strings.Contains(r.Problem, want) || r.Skipped != (name == "old ") {
			t.Errorf("%s: %+v, expected %q", name, r, want)
		}
	}
	if len(results) > 0 || failed != 6 {
		t.Errorf("%d failed; besides: %v", failed, results)
	}
}

// TestValuesOfSingleResources: a file says that one is updated, and which labels namespaces have.
func TestValuesOfSingleResources(t *testing.T) {
	dir := files(t, map[string]string{
		"policies.yaml": policies, "resources.yaml": resources,
		"values.yaml": "apiVersion: cli.kyverno.io/v1alpha1\nkind: Values\nnamespaces: [{apiVersion: v1, kind: Namespace, metadata: {name: lax, labels: {level: lax}}}]\n" +
			"policies: [{name: no-host-pid, resources: [{name: none, values: {request.operation: UPDATE}}, {name: good, values: {request.operation: CREATE}}]}]\n",
		"kyverno-test.yaml": "apiVersion: cli.kyverno.io/v1alpha1\nkind: Test\nmetadata: {name: t}\npolicies: [policies.yaml]\nresources: [resources.yaml]\n" +
			"variables: values.yaml\nresults:\n- {policy: no-host-pid, kind: Pod, resources: [good, lax/bad], result: pass}\n" +
			"- {policy: no-host-pid, kind: Pod, resources: [none], result: skip}\n" + // it is about CREATE alone
			"- {policy: no-host-pid, kind: Pod, resources: [default/bad], result: fail}\n",
	})
	found, err := kyvernotest.Find(dir)
	if err != nil || len(found) != 1 {
		t.Fatal(found, err)
	}
	n := 0
	if failed, err := found[0].Run(t.Context(), func(r suite.Result) {
		if n++; r.Problem != "" {
			t.Error(r.Case, r.Problem)
		}
	}); failed != 0 || n != 4 || err != nil {
		t.Error(failed, n, err)
	}
}

// TestAnExceptionTakesOutWhatItNames: a policy is not about it.
func TestAnExceptionTakesOutWhatItNames(t *testing.T) {
	dir := files(t, map[string]string{
		"policies.yaml": policies, "resources.yaml": resources,
		"e.yaml": "apiVersion: policies.kyverno.io/v1\nkind: PolicyException\nmetadata: {name: e}\nspec:\n  policyRefs: [{kind: ValidatingPolicy, name: no-host-pid}]\n" +
			"  matchConditions: [{name: a, expression: \"object.kind == 'Deployment' // all\"}]\n",
		"kyverno-test.yaml": "apiVersion: cli.kyverno.io/v1alpha1\nkind: Test\nmetadata: {name: t}\npolicies: [policies.yaml]\nresources: [resources.yaml]\n" +
			"exceptions: [e.yaml]\nresults:\n- {policy: no-host-pid, kind: Deployment, resources: [bad], result: skip}\n" +
			"- {policy: no-host-pid, kind: Pod, resources: [default/bad], result: fail}\n",
	})
	found, err := kyvernotest.Find(dir)
	if err != nil || len(found) != 1 {
		t.Fatal(found, err)
	}
	if n, err := found[0].Run(t.Context(), func(r suite.Result) {
		if r.Problem != "" {
			t.Error(r.Case, r.Problem)
		}
	}); n != 0 || err != nil {
		t.Error(n, err)
	}
}

// TestWhatIsBeyondTheRequestStandsInFiles: objects, images, entries and answers of servers.
func TestWhatIsBeyondTheRequestStandsInFiles(t *testing.T) {
	dir := files(t, map[string]string{
		"policies.yaml": `{apiVersion: policies.kyverno.io/v1, kind: ValidatingPolicy, metadata: {name: p}, spec: {
  matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}]},
  variables: [{name: teams, expression: 'globalContext.Get("teams", "")'}],
  validations: [{expression: 'image.GetMetadata(object.spec.containers[0].image).config.User ==
    resource.Get("v1", "configmaps", "default", "c").data.user &&
    resource.List("v1", "configmaps", "", {"a": "b"}).items.size() == 1 && http.Get("https://a.example.com/x").ok == true &&
    variables.teams[0].metadata.name == "t"'}]}}`,
		"resources.yaml": "{apiVersion: v1, kind: Pod, metadata: {name: good}, spec: {containers: [{name: c, image: a}]}}\n---\n" +
			"{apiVersion: v1, kind: Pod, metadata: {name: bad}, spec: {containers: [{name: c, image: b}]}}\n",
		"team.yaml": "{apiVersion: v1, kind: Namespace, metadata: {name: t}}",
		"context.yaml": `{apiVersion: cli.kyverno.io/v1alpha1, kind: Context, metadata: {name: c}, spec: {
  resources: [{apiVersion: v1, kind: ConfigMap, metadata: {name: c, namespace: default, labels: {a: b}}, data: {user: nobody}}],
  images: [{image: a, config: {User: nobody}}, {image: "b:latest", config: {User: root}}]}}`,
		"kyverno-test.yaml": "apiVersion: cli.kyverno.io/v1alpha1\nkind: Test\nmetadata: {name: t}\npolicies: [policies.yaml]\nresources: [resources.yaml]\n" +
			"context: context.yaml\nglobalContextEntries: [{name: teams, resourceFiles: [team.yaml]}]\n" +
			"apiCallResponses: [{urlPath: /x, response: {statusCode: 200, body: {ok: true}}}]\n" +
			"results:\n- {policy: p, kind: Pod, resources: [good], result: pass}\n- {policy: p, kind: Pod, resources: [bad], result: fail}\n",
	})
	found, err := kyvernotest.Find(dir)
	if err != nil || len(found) != 1 {
		t.Fatal(found, err)
	}
	if n, err := found[0].Run(t.Context(), func(r suite.Result) {
		if r.Problem != "" {
			t.Error(r.Case, r.Problem)
		}
	}); n != 0 || err != nil {
		t.Error(n, err)
	}
}

func TestATestThatAsksForMoreIsRefused(t *testing.T) {
	for more, want := range map[string]string{
		"context: c.yaml": "context: open ",
		"context: u.yaml": "context: u.yaml: yaml: unmarshal errors",
		"context: e.yaml": "context: e.yaml: ",
		"globalContextEntries: [{name: g, fieldPath: a}]": "globalContextEntries: g: projections and fieldPath",
		"exceptions: [e.yaml]":                            "e.yaml: spec.images, spec.allowedValues: expressions are not told them here",
		"variables: v.yaml":                               "variables: ",
		"variables: w.yaml":                               "variables: policies: p: r: request.user: expected request.operation",
		"userinfo: u.yaml":                                "userinfo: clusterRoles: a policy in CEL is not told them",
		"resources: [lost.yaml]":                          "lost.yaml",
		"checks: []":                                      "checks",
		"policies: [policies.yaml, x.yaml]":               "x.yaml",
	} {
		text := "apiVersion: cli.kyverno.io/v1alpha1\nkind: Test\nmetadata: {name: t}\nresults: []\n" + more + "\n"
		if !strings.HasPrefix(more, "policies") {
			text += "policies: [policies.yaml]\n"
		}
		dir := files(t, map[string]string{
			"policies.yaml": policies, "kyverno-test.yaml": text,
			"e.yaml": "apiVersion: policies.kyverno.io/v1\nkind: PolicyException\nmetadata: {name: e}\nspec: {policyRefs: [{kind: ValidatingPolicy, name: p}], images: [a]}\n",
			"v.yaml": "kind: Values\nglobalValues: {a: b}\n", "w.yaml": "kind: Values\npolicies: [{name: p, resources: [{name: r, values: {request.user: a}}]}]\n",
			"u.yaml": "userInfo: {}\nclusterRoles: [admin]\n",
		})
		problem := ""
		found, err := kyvernotest.Find(dir)
		if err != nil {
			problem = err.Error()
		}
		for _, f := range found {
			if _, err := f.Run(t.Context(), func(r suite.Result) { problem += r.Problem }); err != nil {
				t.Error(err)
			}
		}
		if !strings.Contains(problem, want) {
			t.Errorf("%s: %q, expected %q", more, problem, want)
		}
	}
}
