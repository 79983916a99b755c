// SPDX-License-Identifier: Apache-2.0

package gatekeeper_test

import (
	"fmt"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/wasmplane/wasmplane/plugins/policies/gatekeeper"
)

func TestWhatIsSaidOfAllConstraintsIsRead(t *testing.T) {
	const config = "kind: Config\nmetadata: {name: config, namespace: gatekeeper-system}\nspec: "
	for text, want := range map[string]string{
		config + `{sync: {syncOnly: [{group: apps, version: v1, kind: Deployment}]}, readiness: {statsEnabled: true}}`:                 "{[{[apps] [v1] [Deployment]}] [] []}",
		config + `{match: [{processes: ["*"], excludedNamespaces: [kube-*]}, {processes: [audit, webhook], excludedNamespaces: [a]}]}`: "{[] [kube-* a] [kube-*]}",
		"kind: SyncSet\nmetadata: {name: s}\nspec: {gvks: [{group: '', version: v1, kind: Pod}]}":                                      "{[{[] [v1] [Pod]}] [] []}",

		config + `{match: [{processes: [audit], excludedNamespaces: [a]}]}`:            "spec.match[0].processes: expected *, webhook and audit, or mutation-webhook",
		config + `{match: [{processes: [mutation-webhook], excludedNamespaces: [a]}]}`: "{[] [] [a]}",
		config + `{match: [{processes: [mutation-webhook, webhook]}]}`:                 "spec.match[0].processes: expected *, webhook and audit, or mutation-webhook",
		config + `{match: [{processes: ["*"], excludedNamespaces: [a*b]}]}`:            `spec.match[0].excludedNamespaces: "a*b": a star stands`,
		config + `{validation: {traces: [{user: a}]}}`:                                 "spec.validation.traces: ",
		config + `{sync: {syncOnly: [{group: apps, version: v1}]}}`:                    "spec.sync.syncOnly[0]: expected a group, a version and a kind",
		config + `{gvks: [{version: v1, kind: Pod}]}`:                                  "spec.gvks: a Config has none",
		config + `{sync: {syncAll: true}}`:                                             `the field "syncAll" is not known here`,
		"kind: Config\nmetadata: {name: config, namespace: red}\nspec: {}":             `there is one Config, "config" in namespace gatekeeper-system`,
		"kind: SyncSet\nmetadata: {name: s}\nspec: {gvks: [{version: v1, group: ''}]}": "spec.gvks[0]: expected a group, a version and a kind",
	} {
		var tree map[string]any
		if err := yaml.Unmarshal([]byte("apiVersion: x/v1alpha1\n"+text), &tree); err != nil {
			t.Fatal(err)
		}
		s, err := gatekeeper.ReadSettings(tree)
		got := fmt.Sprint(err)
		if err == nil {
			got = fmt.Sprint(*s)
		}
		if !strings.Contains(got, want) {
			t.Errorf("%s: %s, expected %s", text, got, want)
		}
	}
}
