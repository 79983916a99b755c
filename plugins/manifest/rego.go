// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/wasmplane/wasmplane/plugins/rego"
)

// Rego is a policy as it was written.
type Rego struct {
	// Text of the module that has the rule which is asked (entrypoint; left out: violation).
	Text string `yaml:"text"`
	// Libs are the texts of the modules that it imports.
	Libs []string `yaml:"libs"`
	// Version of the language: v1, or v0 for policies from before it. Default: v1.
	Version string `yaml:"version"`
}

// mostLibs bounds the modules that a policy imports.
const mostLibs = 64

// Policy is what the compiler for Rego takes.
func (e *Entry) Policy() rego.Policy {
	p := rego.Policy{
		Files: []rego.File{{Name: "rego.text", Text: e.Rego.Text}}, Version: rego.Version(e.Rego.Version),
		Entrypoint: e.Entrypoint,
	}
	for i, lib := range e.Rego.Libs {
		p.Files = append(p.Files, rego.File{Name: fmt.Sprintf("rego.libs[%d]", i), Text: lib})
	}
	return p
}

// checkRego checks the form of a policy's text. What it says is looked at when it is compiled.
func (e *Entry) checkRego(n *yaml.Node, path string) error {
	r := e.Rego
	if r.Version == "" {
		r.Version = string(rego.V1)
	}
	size := len(r.Text)
	for _, lib := range r.Libs {
		size += len(lib)
	}
	for _, c := range []struct {
		field, problem string
		ok             bool
	}{
		{"source", "the entry has a policy's text already (rego): take one of the two out", e.Source == ""},
		{"cel", "the entry has a policy's text already (rego): take one of the two out", e.CEL == nil},
		{"digest", "a policy's text (rego) is not fetched, so there is nothing to pin", e.Digest == ""},
		{"bundle", "a policy's text (rego) is no bundle: take one of the two out", e.Bundle == nil},
		{"signatures", "a policy's text (rego) has no signature", len(e.Signatures) == 0},
		{
			"abi", fmt.Sprintf("a policy in Rego says for whom it was written: expected %s or %s, found %q", Gatekeeper, OPA, e.ABI),
			e.ABI == Gatekeeper || e.ABI == OPA,
		},
		{"rego.text", "the text is missing", strings.TrimSpace(r.Text) != ""},
		{"rego.version", fmt.Sprintf("expected v0 or v1, found %q", r.Version), r.Version == string(rego.V0) || r.Version == string(rego.V1)},
		{"rego.libs", fmt.Sprintf("at most %d modules can be imported, found %d", mostLibs, len(r.Libs)), len(r.Libs) <= mostLibs},
		{"rego", fmt.Sprintf("at most %d bytes of text are allowed, found %d", rego.MostText, size), size <= rego.MostText},
	} {
		if !c.ok {
			return fault(n, path, c.field, c.problem)
		}
	}
	return nil
}
