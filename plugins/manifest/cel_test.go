// SPDX-License-Identifier: Apache-2.0

package manifest_test

import (
	"strings"
	"testing"

	"github.com/wasmplane/wasmplane/plugins/manifest"
)

// TestAPolicyInExpressionsHasNoModule: what is about modules is refused, because it would have no effect.
func TestAPolicyInExpressionsHasNoModule(t *testing.T) {
	const cel = "cel: {validations: [{expression: 'true'}]}\n"
	e, err := manifest.ParseBytes([]byte("name: p\nabi: gatekeeper\nlimits: {deadline: 1s}\n" + cel))
	if err != nil {
		t.Fatal(err)
	}
	if e.Kind() != manifest.KindCEL || !e.Pinned() || e.Follows() {
		t.Errorf("kind %q, pinned %t, followed %t", e.Kind(), e.Pinned(), e.Follows())
	}
	for text, want := range map[string]string{
		cel: "abi: a policy in expressions says for whom it was written",
		"abi: gatekeeper\nsource: file:x.wasm\n" + cel:          "source: the policy is in expressions (cel), and has no module",
		"abi: gatekeeper\nrego: {text: package a}\n" + cel:      "cel: the entry has a policy's text already (rego)",
		"abi: gatekeeper\ngrants: {clock: true}\n" + cel:        "grants: expressions (cel) call no host functions",
		"abi: gatekeeper\nlimits: {fuel: 7}\n" + cel:            "limits: of expressions (cel) only limits.deadline",
		"abi: gatekeeper\nisolation: perCall\n" + cel:           "isolation: expressions (cel) keep nothing",
		"abi: gatekeeper\npoints: [admission.mutate]\n" + cel:   "points: expressions (cel) take part in admission.validate only",
		"abi: gatekeeper\ncel: {validations: []}\n":             "cel.validations: there are none",
		"abi: gatekeeper\ncel: {validations: [{message: x}]}\n": "cel.validations[0].expression: the expression is missing",
		"abi: gatekeeper\nrego: {text: package a, lib: [x]}\n":  "rego.lib: unknown field",

		"abi: gatekeeper\ncel: {variables: [{name: params}], validations: [{expression: 'true'}]}\n": `cel.variables[0].name: expected a name that is not taken, found "params"`,
		"abi: gatekeeper\ncel: {validations: [{expression: 'true', reason: x}]}\n":                   "cel.validations[0].reason: unknown field",
		"abi: gatekeeper\ndigest: sha256:" + strings.Repeat("0", 64) + "\n" + cel:                    "digest: the policy is in expressions",
	} {
		if _, err := manifest.ParseBytes([]byte("name: p\n" + text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}
