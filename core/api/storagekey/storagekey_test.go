// SPDX-License-Identifier: Apache-2.0

package storagekey

import (
	"testing"

	"github.com/wasmplane/wasmplane/core/api"
)

func TestTheResourceOfAKey(t *testing.T) {
	contract, err := api.New()
	if err != nil {
		t.Fatal(err)
	}
	of := Resources(contract)
	for key, want := range map[string]string{
		"/registry/secrets/ns/s":                                     "secrets",
		"/registry/deployments/ns/d":                                 "deployments.apps",
		"/registry/services/specs/ns/s":                              "services",
		"/registry/services/endpoints/ns/s":                          "endpoints",
		"/registry/minions/n":                                        "nodes",
		"/registry/events/ns/e":                                      "events",
		"/registry/apiextensions.k8s.io/customresourcedefinitions/x": "customresourcedefinitions.apiextensions.k8s.io",
		"/registry/example.com/widgets/ns/w":                         "widgets.example.com",
		"/registry/ranges/serviceips":                                "serviceipallocations",
		"/elsewhere/x":                                               "",
		"/registry/x/y":                                              "",
	} {
		got := ""
		if gr, ok := of(key); ok {
			got = gr.String()
		}
		if got != want {
			t.Errorf("%s belongs to %q, want %q", key, got, want)
		}
	}
}
