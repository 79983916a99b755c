// SPDX-License-Identifier: Apache-2.0

package rego_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/wasmplane/wasmplane/plugins/rego"
)

const labels = `package k8srequiredlabels

import data.lib.sets

violation[{"msg": msg}] {
  provided := {l | input.review.object.metadata.labels[l]}
  missing := sets.without({l | l := input.parameters.labels[_]}, provided)
  count(missing) > 0
  msg := sprintf("missing: %v", [missing])
}
`

const sets = `package lib.sets

without(a, b) = c { c := a - b }
`

func TestAPolicyIsCompiled(t *testing.T) {
	p := rego.Policy{Files: []rego.File{{"main.rego", labels}, {"sets.rego", sets}}, Version: rego.V0}
	first, err := rego.Compile(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.HasPrefix(first, []byte("\x00asm")) {
		t.Errorf("not a module: %.16q", first)
	}
	again, err := rego.Compile(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first, again) { // compiled code is kept by the module's digest
		t.Error("the same text became another module")
	}
}

func TestWhatIsWrongIsSaidWithItsPlace(t *testing.T) {
	for _, c := range []struct {
		name string
		p    rego.Policy
		want []string
	}{
		{"a syntax error", rego.Policy{Files: []rego.File{{"main.rego", "package a\n\nviolation[{\"msg\": m}] {\n  m := \n}\n"}}, Version: rego.V0}, []string{"main.rego:5: ", "unexpected }"}},
		{"an unknown function", rego.Policy{Files: []rego.File{{"main.rego", "package a\nviolation contains m if {\n  m := foo(1)\n}\n"}}}, []string{"main.rego:3: ", "undefined function foo"}},
		{"two errors", rego.Policy{Files: []rego.File{{"main.rego", "package a\nviolation contains foo(1)\nviolation contains bar(1)\n"}}}, []string{"main.rego:2: ", "main.rego:3: "}},
		{"an error in a library", rego.Policy{Files: []rego.File{{"main.rego", labels}, {"sets.rego", "package lib.sets\nwithout(a, b) = c { c := }"}}, Version: rego.V0}, []string{"sets.rego:2: "}},
		{"the old language as the new", rego.Policy{Files: []rego.File{{"main.rego", labels}, {"sets.rego", sets}}}, []string{"main.rego:5: ", "if"}},
		{"no rule to ask", rego.Policy{Files: []rego.File{{"main.rego", "package a.b\nallow if input.x\n"}}}, []string{"entrypoint: ", "called a/b/violation", "a/b/allow"}},
		{"a rule that is not there", rego.Policy{Files: []rego.File{{"main.rego", "package a\nallow if input.x\n"}}, Entrypoint: "a/deny"}, []string{"a/deny"}},
		{"none of the rules that are looked for", rego.Policy{Files: []rego.File{{"main.rego", "package a\nb := 1\n"}}, Among: []string{"system/main", "x/y"}}, []string{"entrypoint: ", "system/main or x/y", "a/b"}},
		{"a package outside of its roots", rego.Policy{Files: []rego.File{{"main.rego", "package a.b\nviolation if true\n"}, {"lib.rego", "package ab\nc := 1\n"}}, Roots: []string{"a"}}, []string{"lib.rego: package ab is outside of the bundle's roots, [a]"}},
		{"no text", rego.Policy{Files: []rego.File{{"main.rego", " \n"}}}, []string{"no text"}},
		{"too much text", rego.Policy{Files: []rego.File{{"main.rego", "package a\n" + strings.Repeat("#", rego.MostText)}}}, []string{"at most 1048576"}},
		{"no package", rego.Policy{Files: []rego.File{{"main.rego", "# nothing\n"}}}, []string{"main.rego"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := rego.Compile(t.Context(), c.p)
			if err == nil {
				t.Fatal("it was compiled")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q has no %q", err, want)
				}
			}
		})
	}
}

func TestARuleIsAskedByItsPath(t *testing.T) {
	wasm, err := rego.Compile(t.Context(), rego.Policy{
		Files:      []rego.File{{"main.rego", "package a.b\nallow if input.x\n"}},
		Entrypoint: "a/b/allow",
	})
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(wasm, []byte("a/b/allow")) {
		t.Error("the module does not name its rule")
	}
}
