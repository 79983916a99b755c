// SPDX-License-Identifier: Apache-2.0

package manifest_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/wasmplane/wasmplane/core/strictyaml"
	"github.com/wasmplane/wasmplane/plugins/manifest"
)

func parseAll(t *testing.T, text string) ([]manifest.Entry, error) {
	t.Helper()
	var doc struct {
		Plugins []yaml.Node `yaml:"plugins"`
	}
	if err := yaml.Unmarshal([]byte(text), &doc); err != nil {
		t.Fatal(err)
	}
	return manifest.ParseAll(doc.Plugins)
}

func TestAnEntryIsReadWithItsDefaults(t *testing.T) {
	entries, err := parseAll(t, `
plugins:
  - name: no-latest
    source: file:plugins/no-latest.wasm
  - name: full
    source: file:/x.wasm
    digest: sha256:0000000000000000000000000000000000000000000000000000000000000000
    points: [admission.validate]
    match:
      rules: [{operations: [CREATE], apiGroups: [""], apiVersions: [v1], resources: [pods, pods/status]}]
      namespaceSelector: {matchLabels: {env: prod}}
      objectSelector: {matchExpressions: [{key: a, operator: In, values: [b]}]}
      conditions: [{name: c, expression: "object.metadata.name != 'x'"}]
    settings: {a: [1, true, null], b: {c: d}}
    failurePolicy: Ignore
    mode: Audit
    limits: {fuel: 5000000, deadline: 50ms, memory: 32Mi, hostCalls: 64, output: 1Mi, instances: 4}
    grants: {clock: true, log: true}
    isolation: perCall
    authorization: {order: after}
    scheduling: {weight: 3}
    reconcile: {serviceAccount: apps/me}
`)
	if err != nil {
		t.Fatal(err)
	}
	plain, full := entries[0], entries[1]
	if plain.Mode != manifest.Enforce || plain.Isolation != manifest.Shared || plain.Authorization.Order != "before" ||
		plain.Scheduling.Weight != 1 || plain.Reconcile.ServiceAccount != "kube-system/no-latest" || plain.FailurePolicy != "" {
		t.Errorf("defaults %+v", plain)
	}
	limits := full.HostLimits()
	if limits.Fuel != 5_000_000 || limits.Deadline != 50*time.Millisecond || limits.Memory != 32<<20 || limits.Output != 1<<20 {
		t.Errorf("limits %+v", limits)
	}
	settings, err := full.SettingsJSON()
	if err != nil || string(settings) != `{"a":[1,true,null],"b":{"c":"d"}}` {
		t.Errorf("settings %s, error %v", settings, err)
	}
	if !full.Wants("admission.validate") || full.Wants("admission.mutate") || !plain.Wants("reconcile") {
		t.Error("points are read wrong")
	}
}

func TestAWrongEntrySaysWhatIsWrongAndWhere(t *testing.T) {
	for _, c := range []struct {
		name, entry string
		line        int
		path, want  string
	}{
		{"an unknown field", "name: a\n    sauce: file:x", 4, "plugins[0].sauce", "unknown field; known here:"},
		{"an unknown limit", "name: a\n    source: file:x\n    limits: {fule: 1}", 5, "plugins[0].limits.fule", "unknown field"},
		{"no name", "source: file:x", 3, "plugins[0].name", "expected 1 to 63 lower-case letters"},
		{"a name with capitals", "name: Bad\n    source: file:x", 3, "plugins[0].name", `found "Bad"`},
		{"no source", "name: a", 3, "plugins[0].source", "expected file: and a path"},
		{"a short digest", "name: a\n    source: file:x\n    digest: sha256:12", 5, "plugins[0].digest", "64 hexadecimal digits"},
		{"an unknown point", "name: a\n    source: file:x\n    points:\n      - admission", 5, "plugins[0].points[0]", `unknown point "admission"; known: authorization, customresource.convert, admission.mutate`},
		{"an unknown mode", "name: a\n    source: file:x\n    mode: enforce", 5, "plugins[0].mode", "expected Enforce, Warn, Audit or Shadow"},
		{"an unknown policy", "name: a\n    source: file:x\n    failurePolicy: Open", 5, "plugins[0].failurePolicy", "expected Fail or Ignore"},
		{"a wrong duration", "name: a\n    source: file:x\n    limits: {deadline: 50}", 5, "plugins[0].limits.deadline", "expected a duration such as 50ms"},
		{"a wrong amount", "name: a\n    source: file:x\n    limits: {memory: lots}", 5, "plugins[0].limits.memory", "expected an amount of bytes such as 32Mi"},
		{"too little memory", "name: a\n    source: file:x\n    limits: {memory: 1Ki}", 5, "plugins[0].limits", "less than one page"},
		{"too much memory", "name: a\n    source: file:x\n    limits: {memory: 5Gi}", 5, "plugins[0].limits", "cannot use more than 4Gi"},
		{"a word for a number", "name: a\n    source: file:x\n    limits: {fuel: much}", 5, "plugins[0].limits.fuel", "expected a whole number"},
		{"a list for a mapping", "name: a\n    source: file:x\n    match: []", 5, "plugins[0].match", "expected a mapping, found a list"},
		{"a rule without resources", "name: a\n    source: file:x\n    match:\n      rules: [{operations: [CREATE]}]", 6, "plugins[0].match.rules[0]", "resources are missing"},
		{"an unknown operation", "name: a\n    source: file:x\n    match: {rules: [{operations: [MAKE], resources: [pods]}]}", 5, "plugins[0].match.rules[0].operations", `unknown operation "MAKE"`},
		{"a wrong selector", "name: a\n    source: file:x\n    match: {objectSelector: {matchExpressions: [{key: a, operator: Is}]}}", 5, "plugins[0].match.objectSelector", "not a valid label selector operator"},
		{"an empty condition", "name: a\n    source: file:x\n    match: {conditions: [{name: a}]}", 5, "plugins[0].match.conditions[0]", "a condition has a name and an expression"},
		{"a wrong order", "name: a\n    source: file:x\n    authorization: {order: first}", 5, "plugins[0].authorization.order", "expected before or after"},
		{"a negative weight", "name: a\n    source: file:x\n    scheduling: {weight: -1}", 5, "plugins[0].scheduling.weight", "expected 1 to 100"},
		{"a wrong service account", "name: a\n    source: file:x\n    reconcile: {serviceAccount: me}", 5, "plugins[0].reconcile.serviceAccount", "expected namespace/name"},
		{"a bundle for another", "name: a\n    source: file:x\n    abi: gatekeeper\n    bundle: {}", 5, "plugins[0].abi", `a bundle is for Open Policy Agent: expected opa, found "gatekeeper"`},
		{"a bundle that nothing holds", "name: a\n    source: https://a.example/b.tar.gz\n    bundle: {}", 3, "plugins[0].digest", "has to be pinned"},
		{"a bundle with two signatures", "name: a\n    source: file:x\n    bundle: {}\n    signatures: [{keys: [k]}]", 6, "plugins[0].signatures", "use bundle.keys"},
		{"a bundle's key without a name", "name: a\n    source: file:x\n    bundle: {keys: [{key: k}]}", 5, "plugins[0].bundle.keys[0].id", "expected a name that no other key has"},
		{"a bundle's secret", "name: a\n    source: file:x\n    bundle: {keys: [{id: k, algorithm: HS256, key: k}]}", 5, "plugins[0].bundle.keys[0].algorithm", `found "HS256"`},
		{"a bundle without the key itself", "name: a\n    source: file:x\n    bundle: {keys: [{id: k}]}", 5, "plugins[0].bundle.keys[0].key", "the key is missing"},
		{"a scope without a signature", "name: a\n    source: file:x\n    bundle: {scope: write}", 5, "plugins[0].bundle.scope", "keys are missing"},
		{"a bundle and a text", "name: a\n    abi: opa\n    rego: {text: x}\n    bundle: {}", 6, "plugins[0].bundle", "is no bundle"},
		{"the same name twice", "name: a\n    source: file:x\n  - name: a\n    source: file:y", 5, "plugins[1].name", "the name of the entry in line 3 too"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := parseAll(t, "\nplugins:\n  - "+c.entry+"\n")
			var fe *strictyaml.FieldError
			if !errors.As(err, &fe) {
				t.Fatalf("error %v", err)
			}
			if fe.Line != c.line || fe.Path != c.path || !strings.Contains(fe.Problem, c.want) {
				t.Errorf("line %d, %s: %s\nwant line %d, %s: %s", fe.Line, fe.Path, fe.Problem, c.line, c.path, c.want)
			}
		})
	}
}

func FuzzParseBytes(f *testing.F) {
	f.Add([]byte("name: a\nsource: file:x\nsettings: {a: 1}\nmatch: {rules: [{resources: [pods]}]}"))
	f.Add([]byte("- a"))
	f.Add([]byte("&a [*a]"))
	f.Fuzz(func(_ *testing.T, b []byte) {
		e, err := manifest.ParseBytes(b)
		if err == nil {
			_, _ = e.SettingsJSON()
		}
	})
}
